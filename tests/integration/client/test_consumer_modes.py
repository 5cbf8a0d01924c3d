"""Broadcast, batches, filters, priority, pause, rewind, local retry and restarts, in both faces."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metaq.client.consumer.group import group_member
from metaq.errors import UnusableFile
from metaq.protocol.bodies import ConsumeMessageDirectlyResult
from metaq.protocol.commands.clients import ConsumeMessageDirectly, GetConsumerRunningInfo, GetConsumerStatus
from metaq.protocol.commands.offsets import QueryConsumerOffset, ResetConsumerOffset
from metaq.protocol.errors import Refused
from tests.integration.client.conftest import Served
from tests.integration.client.test_consumer_contract import connected, dead_letters, name, poll_all
from tests.support.clients import Face, create_topic, send
from tests.support.metaq import Metaq
from tests.support.metaq import run as command
from tests.support.patient import Connection
from tests.support.processes import free_port
from tests.support.waiting import run, until


def noting(bodies: list[str]) -> Callable[[Any], None]:
    return lambda message: bodies.append(message.body.decode())


def test_broadcast_reaches_everybody_and_goes_on_from_its_file(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic, group = name(face, "broadcast"), name(face, "broadcast-group")
        await create_topic(served.broker, topic, queues=2)
        await send(served.broker, topic, "1", "2", queue_id=1)
        seen: dict[str, list[str]] = {"a": [], "b": [], "forgetful": []}

        async def declare(client: Any, who: str) -> None:
            declared = client.consumer(
                topic,
                group=group,
                mode="broadcast",
                start="earliest",
                offsets="memory" if who == "forgetful" else "file",
            )
            consumer = await face.call(declared, face.handler(noting(seen[who])))
            await face.call(consumer.start)

        # With the default file, each consumer on the machine has one of its own.
        async with connected(face, served) as a, connected(face, served) as b, connected(face, served) as c:
            await declare(a, "a")
            await declare(b, "b")
            await declare(c, "forgetful")
            await until(lambda: all(sorted(bodies) == ["1", "2"] for bodies in seen.values()))
        await send(served.broker, topic, "3")
        async with connected(face, served) as a, connected(face, served) as b:
            await declare(a, "a")
            await declare(b, "forgetful")
            await until(lambda: len(seen["a"]) == 3 and len(seen["forgetful"]) == 5)
        assert (sorted(seen["a"][:2]), seen["a"][2:]) == (["1", "2"], ["3"])
        assert sorted(seen["forgetful"][2:]) == ["1", "2", "3"]

    run(scenario)


def test_batches_and_filters(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic = name(face, "filtered")
        await create_topic(served.broker, topic, queues=1)
        for number in range(12):
            await send(
                served.broker, topic, f"{number}", TAGS="even" if number % 2 == 0 else "odd", n=f"{number}"
            )
        batches: list[list[str]] = []
        chosen: list[str] = []
        async with connected(face, served) as client:
            by_tag = client.consumer(
                topic, group=name(face, "by-tag"), tags="even", start="earliest", batch=4, concurrency=1
            )
            await face.call(
                by_tag, face.handler(lambda messages: batches.append([m.body.decode() for m in messages]))
            )
            by_sql = client.consumer(topic, group=name(face, "by-sql"), sql="n > 9", start="earliest")
            await face.call(by_sql, face.handler(noting(chosen)))
            with pytest.raises(Refused, match=r"the filter 'n >' on .* was refused"):
                await face.call(client.subscribe(topic, group=name(face, "bad-sql"), sql="n >").start)
            await until(lambda: sum(map(len, batches)) == 6 and len(chosen) == 2)
        assert [body for batch in batches for body in batch] == ["0", "2", "4", "6", "8", "10"]
        assert 1 < max(map(len, batches)) <= 4
        assert sorted(chosen) == ["10", "11"]

    run(scenario)


def test_a_group_is_taken_by_one_consumer_of_a_client(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic, group = name(face, "twice"), name(face, "twice-group")
        await create_topic(served.broker, topic, queues=1)
        async with connected(face, served) as client:
            consumer = await face.call(
                client.consumer(topic, group=group), face.handler(lambda message: None)
            )
            try:
                client.subscribe(topic, group=group)
            except Exception as error:
                assert "already" in str(error)
            else:
                raise AssertionError("a second member under the same client id would read the same queues")
            await face.call(consumer.close)
            client.subscribe(topic, group=group)

    run(scenario)


def test_priority_drains_the_higher_queue_first(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic, group = name(face, "prior"), name(face, "prior-group")
        await create_topic(served.broker, topic, queues=2)
        await send(served.broker, topic, *(["low"] * 20), queue_id=0)
        await send(served.broker, topic, *(["high"] * 20), queue_id=1)
        bodies: list[str] = []
        gate = threading.Event()

        def handle(message: Any) -> None:
            gate.wait(60)
            bodies.append(message.body.decode())

        connection = await Connection.open(served.broker)
        async with connected(face, served) as client:
            declare = client.consumer(
                topic, group=group, start="earliest", priority=True, priority_patience=4, concurrency=1
            )
            await face.call(declare, handle)
            info = GetConsumerRunningInfo(consumer_group=group, client_id=client.client_id)
            async with asyncio.timeout(60):
                # The broker answers after the heartbeat, and both queues must be pulled.
                while (await connection.call(info)).body.count(b'"cachedMsgCount":20,') < 2:
                    await asyncio.sleep(0.02)
            gate.set()
            await until(lambda: len(bodies) == 40)
        await connection.close()
        after = bodies[1:]  # The first may have been taken when only one queue was pulled.
        assert after[:3] == ["high"] * 3
        last_high = len(after) - 1 - after[::-1].index("high")
        lows = [place for place, body in enumerate(after[:last_high]) if body == "low"]
        assert len(lows) >= 3, "the lower queue has its share meanwhile"
        assert {later - earlier for earlier, later in itertools.pairwise(lows)} == {5}

    run(scenario)


def test_rewind_and_what_a_broker_asks(face: Face, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_member, "COMMIT_INTERVAL_S", 0.05)

    async def scenario() -> None:
        topic, group = name(face, "rewound"), name(face, "rewound-group")
        await create_topic(served.broker, topic, queues=1)
        sent = await send(served.broker, topic, "a", "b")
        bodies: list[str] = []

        def handle(message: Any) -> None:
            bodies.append(message.body.decode())

        connection = await Connection.open(served.broker)
        query = QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=0)

        async def committed(wanted: int) -> None:
            async with asyncio.timeout(60):
                while (await connection.call(query)).fields.get("offset") != str(wanted):
                    await asyncio.sleep(0.02)

        try:
            async with connected(face, served) as client:
                await face.call(client.consumer(topic, group=group, start="earliest"), face.handler(handle))
                await until(lambda: sorted(bodies) == ["a", "b"])
                await committed(2)
                reset = ResetConsumerOffset(topic=topic, group=group, timestamp=0, is_force=True)
                (await connection.call(reset)).check()
                # Apache's broker resets with the answer to the next pull, which it holds for up to 15 s.
                await until(lambda: sorted(bodies) == ["a", "a", "b", "b"])
                await committed(2)  # The client commits the same offset again.

                status = (await connection.call(GetConsumerStatus(topic=topic, group=group))).check()
                assert b'"queueId":0' in status.body
                info = GetConsumerRunningInfo(
                    consumer_group=group, client_id=client.client_id, jstack_enable=True
                )
                text = (await connection.call(info)).check().body.decode()
                assert "PROP_CONSUME_ORDERLY" in text
                assert "keep_pulling" in text
                direct = ConsumeMessageDirectly(
                    consumer_group=group, client_id=client.client_id, msg_id=sent[1].msg_id, broker_name=""
                )
                reply = (await connection.call(direct)).check()
                result = ConsumeMessageDirectlyResult.decode(reply.body)
                assert (result.consume_result, bodies[-1]) == ("CR_SUCCESS", "b")
            await committed(2)
        finally:
            await connection.close()

    run(scenario)


def test_messages_that_keep_failing_are_retried_locally_across_restarts(
    face: Face, served: Served, client_directory: Path
) -> None:
    async def scenario() -> None:
        topic, group = name(face, "parked"), name(face, "parked-group")
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "bad", "good", "hopeless")
        tries: list[str] = []
        broken = {"bad", "hopeless"}

        def handle(message: Any) -> None:
            body = message.body.decode()
            tries.append(body)
            if body in broken:
                raise RuntimeError(f"{body} is broken")

        async def listed() -> list[dict[str, Any]]:
            done = await asyncio.to_thread(
                command, "parked", "list", "--output", "json", METAQ_CLIENT_DIRECTORY=str(client_directory)
            )
            assert done.returncode == 0, done.stderr
            return list(json.loads(done.stdout))

        async with connected(face, served) as client:
            declare = client.consumer(
                topic, group=group, start="earliest", on_failure="local", local_after=2, local_first_wait=3600
            )
            await face.call(declare, face.handler(handle))
            await until(lambda: sorted(tries) == ["bad", "bad", "good", "hopeless", "hopeless"])
            async with asyncio.timeout(60):
                while len(await listed()) < 2:
                    await asyncio.sleep(0.05)
        rows = await listed()
        assert {row["topic"] for row in rows} == {topic}
        assert "is broken" in rows[0]["error"]

        broken.discard("bad")
        tries.clear()
        done = await asyncio.to_thread(
            command, "parked", "replay", group, METAQ_CLIENT_DIRECTORY=str(client_directory)
        )
        assert done.returncode == 0, done.stderr
        async with connected(face, served) as client:
            declare = client.consumer(
                topic, group=group, on_failure="local", local_after=2, local_first_wait=0, local_retries_max=3
            )
            await face.call(declare, face.handler(handle))
            assert await dead_letters(face, client, group) == ["hopeless"]
        assert tries.count("bad") == 1
        assert tries.count("hopeless") == 3
        assert await listed() == []

    run(scenario)


def test_a_slow_handler_holds_up_no_other_call(face: Face, served: Served) -> None:
    """A plain handler that blocks leaves the client's loop free to commit and to answer."""

    async def scenario() -> None:
        topic, group = name(face, "slow"), name(face, "slow-group")
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "slow")
        entered, released, left = threading.Event(), threading.Event(), threading.Event()

        def handle(message: Any) -> None:
            entered.set()
            released.wait(60)
            left.set()

        async with connected(face, served) as client:
            await face.call(client.consumer(topic, group=group, start="earliest"), handle)
            await until(entered.is_set)
            puller = client.puller(start="earliest")
            await face.call(puller.assign, topic)
            assert await poll_all(face, puller, 1) == ["slow"]
            assert not left.is_set(), "the client answers while the handler is at work"
            released.set()
            await until(left.is_set)

    run(scenario)


def test_a_broker_that_restarts_is_found_again(face: Face, tmp_path: Path) -> None:
    async def scenario() -> None:
        nameserver = await asyncio.to_thread(Metaq, "nameserver", "--listen", "127.0.0.1:0", home=tmp_path)
        arguments = ("broker", "--data", str(tmp_path / "data"), "--namesrv", nameserver.nameserver)
        listen = ("--listen", f"127.0.0.1:{free_port()}")
        broker = await asyncio.to_thread(Metaq, *arguments, *listen, home=tmp_path)
        try:
            await create_topic(broker.broker, "T", queues=2)
            await send(broker.broker, "T", *(f"{n}" for n in range(50)))
            bodies: list[str] = []

            def handle(message: Any) -> None:
                time.sleep(0.01)
                bodies.append(message.body.decode())

            served = Served(nameserver.nameserver, broker.broker, None)  # type: ignore[arg-type]
            async with connected(face, served) as client:
                declare = client.consumer("T", group="g", start="earliest", concurrency=1)
                await face.call(declare, handle)
                await until(lambda: len(bodies) > 5)
                await asyncio.to_thread(broker.child.kill)
                broker = await asyncio.to_thread(Metaq, *arguments, *listen, home=tmp_path)
                await send(broker.broker, "T", "after", queue_id=1)
                await until(lambda: "after" in bodies and len(set(bodies)) == 51, timeout_s=60)
        finally:
            await asyncio.to_thread(broker.stop)
            await asyncio.to_thread(nameserver.stop)

    run(scenario)


def test_a_consumer_that_cannot_start_leaves_its_group_free(
    face: Face, served: Served, tmp_path: Path
) -> None:
    async def scenario() -> None:
        topic, group = name(face, "unstarted"), name(face, "unstarted-group")
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "a")
        broken = tmp_path / "broken.json"
        broken.write_text("no offsets")
        bodies: list[str] = []
        async with connected(face, served) as client:
            declare = client.consumer(
                topic, group=group, mode="broadcast", start="earliest", offsets_file=broken
            )
            with pytest.raises(UnusableFile, match="cannot be read"):
                consumer = await face.call(declare, face.handler(noting(bodies)))
                await face.call(consumer.start)
            broken.unlink()
            await face.call(declare, face.handler(noting(bodies)))
            await until(lambda: bodies == ["a"])

    run(scenario)
