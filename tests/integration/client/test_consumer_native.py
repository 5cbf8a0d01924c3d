"""The native part of consumption: pull streams, and messages that threads take on their own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metaq.client.consumer.group import assignment
from metaq.errors import NoRoute, UnreadableBody, UsageError
from metaq.protocol.commands.messages import SendMessageV2
from metaq.protocol.commands.routes import DeleteTopicInNameServer
from metaq.protocol.commands.topics import DeleteTopicInBroker
from metaq.protocol.errors import Refused
from tests.integration.client.conftest import Served
from tests.integration.client.test_consumer_contract import connected, name, poll_all
from tests.support.clients import Face, create_topic, send
from tests.support.metaq import Metaq
from tests.support.patient import Connection
from tests.support.waiting import run, until

COMPRESSED = 1


async def tell(broker: str, *commands: Any, body: bytes = b"") -> None:
    connection = await Connection.open(broker)
    try:
        for command in commands:
            (await connection.call(command, body)).check()
    finally:
        await connection.close()


async def fill(broker: str, topic: str, count: int, queues: int) -> list[str]:
    bodies: list[str] = []
    for queue_id in range(queues):
        mine = [f"{queue_id}-{number}" for number in range(count // queues)]
        await send(broker, topic, *mine, queue_id=queue_id)
        bodies += mine
    return bodies


async def on_loop(client: Any, face: Face, work: Callable[[Any], Any]) -> Any:
    """Runs a function of the session on the client's loop."""
    if face.is_sync:
        return await asyncio.to_thread(client._portal.run, lambda: work(client._client._session))
    return await work(client._session)


def test_the_checksum_of_a_record_is_no_property_of_its_message(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic = name(face, "checksum")
        await create_topic(served.broker, topic, queues=1)
        async with connected(face, served) as client:
            puller = client.puller(start="earliest")
            await face.call(puller.assign, topic)
            await send(served.broker, topic, "first", color="red")
            await send(served.broker, topic, "again", **{"color": "red", "__CRC32#": "0123456789"})
            messages = [
                *await face.call(puller.poll, 60, count=1),
                *await face.call(puller.poll, 60, count=1),
            ]
            assert [message.body for message in messages] == [b"first", b"again"]
            for message in messages:
                assert dict(message.properties) == {"color": "red"}
                assert "__CRC32#" not in message.system_properties

    run(scenario)


def test_one_poll_gives_more_than_one_pull_of_java_would(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic = name(face, "many")
        await create_topic(served.broker, topic, queues=1)
        sent = await fill(served.broker, topic, 300, 1)
        async with connected(face, served) as client:
            puller = client.puller(start="earliest")
            (queue,) = await face.call(puller.assign, topic)
            first = await face.call(puller.poll, 60, count=1000)
            assert [message.body.decode() for message in first] == sent
            assert {message.queue for message in first} == {queue}
            assert await face.call(puller.position, queue) == 300

    run(scenario)


def test_a_small_buffer_loses_and_repeats_nothing(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic = name(face, "small")
        await create_topic(served.broker, topic, queues=2)
        sent = await fill(served.broker, topic, 60, 2)
        async with connected(face, served) as client:
            puller = client.puller(start="earliest", buffer_count=3, buffer_bytes=1)
            queues = await face.call(puller.assign, topic)
            found: list[str] = []
            async with asyncio.timeout(60):
                while len(found) < 60:
                    found += [m.body.decode() for m in await face.call(puller.poll, 5, count=2)]
                    place = await face.call(puller.position, queues[0])
                    assert place == sum(body.startswith("0-") for body in found)
            assert sorted(found) == sorted(sent)
            for queue_id in range(2):
                mine = [body for body in found if body.startswith(f"{queue_id}-")]
                assert mine == [f"{queue_id}-{number}" for number in range(30)]

    run(scenario)


def test_paused_queues_give_nothing_until_resumed(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic = name(face, "held")
        await create_topic(served.broker, topic, queues=2)
        await fill(served.broker, topic, 10, 2)
        async with connected(face, served) as client:
            puller = client.puller(start="earliest")
            queues = await face.call(puller.assign, topic)
            await face.call(puller.pause, [queues[1]])
            assert sorted(await poll_all(face, puller, 5)) == [f"0-{number}" for number in range(5)]
            assert await face.call(puller.poll, 0.1) == []
            await face.call(puller.seek, 2, queues[1])
            assert await face.call(puller.poll, 0.1) == [], "a seek does not resume"
            await face.call(puller.resume)
            assert await poll_all(face, puller, 3) == ["1-2", "1-3", "1-4"]

    run(scenario)


def test_a_place_that_the_queue_does_not_reach_is_left(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic = name(face, "beyond")
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "old")
        async with connected(face, served) as client:
            puller = client.puller(start="earliest")
            (queue,) = await face.call(puller.assign, topic)
            await face.call(puller.seek, 1000, queue)
            assert await face.call(puller.poll, 0.2) == []
            await send(served.broker, topic, "new")
            assert await poll_all(face, puller, 1) == ["new"]
            assert await face.call(puller.position, queue) == 2

    run(scenario)


def test_a_body_that_cannot_be_inflated_is_told_once_and_stepped_over(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic = name(face, "unreadable")
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "before")
        junk = SendMessageV2(producer_group="tests", topic=topic, queue_id=0, sys_flag=COMPRESSED)
        await tell(served.broker, junk, body=b"no zlib")
        await send(served.broker, topic, "after")
        async with connected(face, served) as client:
            puller = client.puller(start="earliest")
            await face.call(puller.assign, topic)
            assert await poll_all(face, puller, 2) == ["before", "after"]
            with pytest.raises(UnreadableBody, match="damaged"):
                await face.call(puller.poll, 60)
            assert await face.call(puller.poll, 0.05) == []

    run(scenario)


def test_poll_raises_the_refusal_of_a_broker(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic = name(face, "refused")
        await create_topic(served.broker, topic, queues=1)
        async with connected(face, served) as client:
            puller = client.puller(start="earliest", sql="this is not SQL")
            await face.call(puller.assign, topic)
            with pytest.raises(Refused):
                await face.call(puller.poll, 60)

    run(scenario)


def test_a_puller_that_was_closed_polls_no_more(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic = name(face, "shut")
        await create_topic(served.broker, topic, queues=1)
        async with connected(face, served) as client:
            puller = client.puller(start="earliest")
            await face.call(puller.assign, topic)
            await face.call(puller.close)
            await face.call(puller.close)
            with pytest.raises(UsageError, match="closed"):
                await face.call(puller.poll)

    run(scenario)


def test_threads_share_one_puller(served: Served) -> None:
    async def scenario() -> None:
        face = Face("sync")
        topic = "shared-by-threads"
        await create_topic(served.broker, topic, queues=4)
        sent = await fill(served.broker, topic, 400, 4)
        async with connected(face, served) as client:
            puller = client.puller(start="earliest")
            await face.call(puller.assign, topic)
            found: list[str] = []

            def drain() -> None:
                while len(found) < 400:
                    found.extend(message.body.decode() for message in puller.poll(0.2, count=7))

            await asyncio.gather(*(asyncio.to_thread(drain) for _ in range(4)))
            assert sorted(found) == sorted(sent)

    run(scenario)


def test_a_puller_goes_on_when_its_broker_comes_back(face: Face, tmp_path: Path) -> None:
    async def scenario() -> None:
        nameserver = await asyncio.to_thread(Metaq, "nameserver", "--listen", "127.0.0.1:0", home=tmp_path)
        arguments = ("broker", "--data", str(tmp_path / "data"), "--namesrv", nameserver.nameserver)
        broker = await asyncio.to_thread(Metaq, *arguments, "--listen", "127.0.0.1:0", home=tmp_path)
        try:
            await create_topic(broker.broker, "T", queues=1)
            await send(broker.broker, "T", "before")
            served = Served(nameserver.nameserver, broker.broker, None)  # type: ignore[arg-type]
            async with connected(face, served) as client:
                puller = client.puller(start="earliest")
                await face.call(puller.assign, "T")
                assert await poll_all(face, puller, 1) == ["before"]
                await asyncio.to_thread(broker.child.kill)
                broker = await asyncio.to_thread(Metaq, *arguments, "--listen", "127.0.0.1:0", home=tmp_path)
                await send(broker.broker, "T", "after")
                assert await poll_all(face, puller, 1) == ["after"], "at another address"
        finally:
            await asyncio.to_thread(broker.stop)
            await asyncio.to_thread(nameserver.stop)

    run(scenario)


def test_a_slow_call_holds_up_no_other(served: Served) -> None:
    async def scenario() -> None:
        face, topic = Face("sync"), "held-up"
        await create_topic(served.broker, topic, queues=1)
        sent = await fill(served.broker, topic, 50, 1)
        others = threading.Event()
        bodies: list[str] = []

        def handle(message: Any) -> None:
            if message.body == b"0-0":
                assert others.wait(60)
            bodies.append(message.body.decode())
            if len(bodies) == 49:
                others.set()

        async with connected(face, served) as client:
            await face.call(
                client.consumer(topic, group="held-up-group", start="earliest", concurrency=2), handle
            )
            await until(lambda: len(bodies) == 50)
        assert sorted(bodies) == sorted(sent)
        assert bodies[-1] == "0-0"

    run(scenario)


def test_new_queues_are_seen_with_the_route_that_tells_of_them(
    face: Face, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The regular rebalance, every 20 s, is switched off."""
    monkeypatch.setattr(assignment, "REBALANCE_INTERVAL_S", 3600.0)

    async def scenario() -> None:
        topic = name(face, "grown")
        await create_topic(served.broker, topic, queues=1)
        bodies: list[str] = []
        async with connected(face, served) as client:
            declare = client.consumer(topic, group=name(face, "grown-group"), start="earliest")
            handler = face.handler(lambda message: bodies.append(message.body.decode()))
            await face.call(declare, handler)
            await send(served.broker, topic, "first")
            await until(lambda: bodies == ["first"])
            await create_topic(served.broker, topic, queues=3)
            await send(served.broker, topic, "grown", queue_id=2)
            await on_loop(client, face, lambda session: session.routes.refresh_all())
            await until(lambda: bodies == ["first", "grown"])

    run(scenario)


def test_a_topic_that_was_deleted_is_let_go(
    face: Face, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "REBALANCE_INTERVAL_S", 3600.0)

    async def scenario() -> None:
        arguments = ("serve", "--namesrv-port", "0", "--broker-port", "0", "--data", str(tmp_path / "data"))
        server = await asyncio.to_thread(Metaq, *arguments, "--set", "auto_create_topic=false", home=tmp_path)
        served = Served(server.nameserver, server.broker, None)  # type: ignore[arg-type]
        try:
            await create_topic(served.broker, "kept", queues=1)
            await create_topic(served.broker, "deleted", queues=1)
            bodies: list[str] = []
            async with connected(face, served) as client:
                declare = client.consumer(["kept", "deleted"], group="g", start="earliest")
                handler = face.handler(lambda message: bodies.append(message.body.decode()))
                consumer = await face.call(declare, handler)
                await send(served.broker, "deleted", "a")
                await until(lambda: bodies == ["a"])
                await tell(served.broker, DeleteTopicInBroker(topic="deleted"))
                await tell(served.nameserver, DeleteTopicInNameServer(topic="deleted"))
                await on_loop(client, face, lambda session: session.routes.refresh_all())

                def topics() -> set[str]:
                    return {queue.topic for queue in consumer.queues}

                async with asyncio.timeout(60):
                    while "deleted" in (await asyncio.to_thread(topics) if face.is_sync else topics()):
                        await asyncio.sleep(0.05)
                with pytest.raises(NoRoute):
                    await on_loop(client, face, lambda session: session.routes.get("deleted"))
                await send(served.broker, "kept", "b")
                await until(lambda: bodies == ["a", "b"])
        finally:
            await asyncio.to_thread(server.stop)

    run(scenario)


def test_a_poll_that_is_cancelled_loses_nothing(served: Served) -> None:
    async def scenario() -> None:
        face, topic = Face("aio"), "cancelled-polls"
        await create_topic(served.broker, topic, queues=2)
        sent = await fill(served.broker, topic, 200, 2)
        async with connected(face, served) as client:
            puller = client.puller(start="earliest")
            await puller.assign(topic)
            found: list[str] = []
            async with asyncio.timeout(60):
                while len(found) < 200:
                    poll = asyncio.create_task(puller.poll(5, count=3))
                    for _ in range(len(found) % 5):
                        await asyncio.sleep(0)
                    if len(found) % 2:
                        poll.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        found += [message.body.decode() for message in await poll]
                    if len(found) % 2:
                        found += [message.body.decode() for message in await puller.poll(5, count=2)]
            assert sorted(found) == sorted(sent)

    run(scenario)
