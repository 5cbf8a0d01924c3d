"""Edge cases: filter functions, start times, unreadable bodies, deleted records, forks and wrong loops."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import metaq
from metaq import aio
from metaq.client.consumer.settlement.local_retry_store import LocalRetryStore, local_retry_file
from metaq.errors import UsageError
from metaq.protocol.commands.messages import SendMessageV2
from metaq.testing import LocalMetaq
from tests.integration.client.conftest import Served
from tests.integration.client.test_consumer_contract import connected, name, poll_all
from tests.support.clients import Face, create_topic, send
from tests.support.patient import Connection
from tests.support.waiting import run, until

COMPRESSED = 1
FUNCTIONS = '''
from metaq.filters import FilterMessage, function

@function
def longer(message: FilterMessage, size: int) -> bool:
    """Messages with larger bodies."""
    return len(message.body) > size
'''


def local(server: LocalMetaq) -> Served:
    return Served(server.nameserver, server.broker, None)  # type: ignore[arg-type]


def noting(bodies: list[str]) -> Callable[[Any], None]:
    return lambda message: bodies.append(message.body.decode())


def test_a_function_of_the_broker_chooses(face: Face, tmp_path: Path) -> None:
    (tmp_path / "sizes.py").write_text(FUNCTIONS)

    async def scenario(served: Served) -> None:
        await create_topic(served.broker, "sized", queues=2)
        await send(served.broker, "sized", "a", "bbb", "cc", "dddd")
        handled: list[str] = []
        async with connected(face, served) as client:
            declare = client.consumer("sized", group="handlers", function="longer(2)", start="earliest")
            await face.call(declare, face.handler(noting(handled)))
            await until(lambda: sorted(handled) == ["bbb", "dddd"])
            await send(served.broker, "sized", "e", "fff", queue_id=1)
            await until(lambda: sorted(handled) == ["bbb", "dddd", "fff"])
            subscribed = client.subscribe("sized", group="loops", function="longer(3)", start="earliest")
            assert (await face.take(subscribed)).body == b"dddd"
            puller = client.puller(function="longer(2)", start="earliest")
            await face.call(puller.assign, "sized")
            assert sorted(await poll_all(face, puller, 3)) == ["bbb", "dddd", "fff"]
            refused = client.puller(function="shorter(2)", start="earliest")
            await face.call(refused.assign, "sized")
            with pytest.raises(metaq.MetaqError, match="no function is called shorter") as error:
                await face.call(refused.poll, 60)
            assert error.value.code == 23

    with LocalMetaq(settings={"filter_functions": str(tmp_path)}) as server:
        run(lambda: scenario(local(server)))


def test_a_group_can_begin_at_a_time(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic, group = name(face, "since"), name(face, "since-group")
        await create_topic(served.broker, topic, queues=2)
        for queue_id in range(2):
            await send(served.broker, topic, "old", queue_id=queue_id)
        served.clock.jump(60_000)
        since = datetime.fromtimestamp(served.clock.now_ms() / 1000 - 1, UTC)
        for queue_id in range(2):
            await send(served.broker, topic, f"new-{queue_id}", queue_id=queue_id)
        bodies: list[str] = []
        async with connected(face, served) as client:
            declare = client.consumer(topic, group=group, start=since)
            await face.call(declare, face.handler(noting(bodies)))
            await until(lambda: len(bodies) >= 2)
            await send(served.broker, topic, "newest")
            await until(lambda: "newest" in bodies)
        assert sorted(bodies) == ["new-0", "new-1", "newest"]
        # From then on the committed offsets count, and not the time.
        bodies.clear()
        async with connected(face, served) as client:
            declare = client.consumer(topic, group=group, start=datetime.fromtimestamp(0, UTC))
            await face.call(declare, face.handler(noting(bodies)))
            await send(served.broker, topic, "later")
            await until(lambda: bool(bodies))
        assert bodies == ["later"]

    run(scenario)


async def send_unreadable(broker: str, topic: str) -> None:
    """Sends a body that is marked as compressed and is not."""
    connection = await Connection.open(broker)
    try:
        command = SendMessageV2(
            producer_group="tests", topic=topic, queue_id=0, sys_flag=COMPRESSED, properties="KEYS\x01k\x02"
        )
        (await connection.call(command, b"no zlib at all")).check()
    finally:
        await connection.close()


def test_an_unreadable_body_becomes_a_dead_letter_and_stops_nothing(face: Face) -> None:
    async def scenario(server: LocalMetaq) -> None:
        served = local(server)
        await create_topic(served.broker, "garbled", queues=1)
        await send(served.broker, "garbled", "before")
        await send_unreadable(served.broker, "garbled")
        await send(served.broker, "garbled", "after")
        bodies: list[str] = []
        async with connected(face, served) as client:
            await face.call(
                client.consumer("garbled", group="readers", start="earliest"), face.handler(noting(bodies))
            )
            await until(lambda: sorted(bodies) == ["after", "before"])
            puller = client.puller(start="earliest")
            await face.call(puller.assign, "garbled")
            with pytest.raises(metaq.MetaqError, match="zlib"):
                # One poll raises the error, the others return readable messages.
                for _ in range(3):
                    await face.call(puller.poll, 60, count=1)

        # The dead letter is stored before the queue continues.
        (letter,) = await asyncio.to_thread(server.dead_letters, "readers")
        assert (letter.body, letter.keys) == (b"no zlib at all", ("k",))

    with LocalMetaq() as server:
        run(lambda: scenario(server))


def test_a_parked_message_whose_record_is_gone_is_sent_anew(face: Face, client_directory: Path) -> None:
    """The broker may have deleted a message before it is given up; then only the local copy is left."""

    def fail(message: Any) -> None:
        raise RuntimeError("as ever")

    async def consume(served: Served, done: Callable[[], bool], **options: Any) -> None:
        async with connected(face, served) as client:
            declare = client.consumer(
                "bills", group="billing", start="earliest", on_failure="local", local_after=1, **options
            )
            await face.call(declare, face.handler(fail))
            async with asyncio.timeout(60):
                while not await asyncio.to_thread(done):
                    await asyncio.sleep(0.02)

    def parked() -> int:
        with closing(LocalRetryStore(local_retry_file(client_directory / "parked", "billing"))) as store:
            store.replay()  # Makes everything due.
            return len(store)

    async def park(served: Served) -> None:
        await create_topic(served.broker, "bills", queues=1)
        await send(served.broker, "other", "in front of it")
        await send(served.broker, "bills", "bill", KEYS="k1 k2", TAGS="t", colour="grün")
        await consume(served, lambda: parked() == 1)

    with LocalMetaq() as server:
        run(lambda: park(local(server)))
    with LocalMetaq() as server:  # With an empty store.
        server.create_topic("bills", queues=1)
        run(lambda: consume(local(server), lambda: parked() == 0, local_retries_max=1))
        (letter,) = server.dead_letters("billing")
        assert (letter.body, letter.keys, letter.tag) == (b"bill", ("k1", "k2"), "t")
        assert letter.properties["colour"] == "grün"


def test_after_a_fork_no_consumer_works(served: Served) -> None:
    topic = "forked"

    def calls(client: metaq.Client, consumer: Any, subscribed: Any, puller: Any) -> list[Callable[[], Any]]:
        return [
            lambda: client.consumer(topic, group="another")(lambda message: None),
            lambda: client.subscribe(topic, group="another"),
            lambda: client.puller(),
            consumer.close,
            consumer.pause,
            lambda: consumer.queues,
            lambda: next(subscribed),
            subscribed.close,
            puller.poll,
            lambda: puller.assign(topic),
            puller.commit,
        ]

    run(lambda: create_topic(served.broker, topic, queues=1))
    bodies: list[str] = []
    with metaq.Client(served.nameserver) as client:
        consumer = client.consumer(topic, group="forked-handlers", start="earliest")(noting(bodies))
        subscribed = client.subscribe(topic, group="forked-loops", start="earliest", idle_timeout=60)
        subscribed.start()
        puller = client.puller(group="forked-pulls", start="earliest")
        puller.assign(topic)
        heard, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                for number, call in enumerate(calls(client, consumer, subscribed, puller)):
                    try:
                        call()
                        os.write(told, f"call {number} returned\n".encode())
                    except UsageError as error:
                        if "fork" not in str(error):
                            os.write(told, f"call {number}: {error}\n".encode())
                    except BaseException as error:
                        os.write(told, f"call {number}: {error!r}\n".encode())
            finally:
                os._exit(0)
        os.close(told)
        os.waitpid(pid, 0)
        with os.fdopen(heard) as report:
            assert report.read() == ""
        run(lambda: send(served.broker, topic, "still read"))
        assert next(subscribed).body == b"still read"
        assert puller.poll(60)[0].body == b"still read"
        run(lambda: until(lambda: bodies == ["still read"]))


def test_another_event_loop_is_told_so(served: Served) -> None:
    topic = "looped"
    made: dict[str, Any] = {}
    ready, end = threading.Event(), threading.Event()

    async def handle(message: Any) -> None:
        pass

    async def own() -> None:
        await create_topic(served.broker, topic, queues=1)
        async with aio.Client(served.nameserver) as client:
            made["client"] = client
            made["consumer"] = client.consumer(topic, group="looped-handlers")(handle)
            made["subscribed"] = client.subscribe(topic, group="looped-loops", idle_timeout=0.1)
            await made["subscribed"].start()
            made["puller"] = client.puller(group="looped-pulls")
            await made["puller"].assign(topic)
            ready.set()
            await asyncio.to_thread(end.wait, 60)
            assert await anext(made["subscribed"], None) is None, "it still works where it belongs"

    async def elsewhere() -> None:
        client, consumer = made["client"], made["consumer"]
        subscribed, puller = made["subscribed"], made["puller"]
        waiting: list[Callable[[], Any]] = [
            client.close,
            consumer.start,
            consumer.close,
            lambda: anext(subscribed),
            subscribed.close,
            puller.poll,
            puller.commit,
            lambda: puller.assign(topic),
        ]
        for call in waiting:
            with pytest.raises(UsageError, match="another event loop"):
                await call()
        at_once: list[Callable[[], Any]] = [
            lambda: client.consumer(topic, group="another")(handle),
            consumer.pause,
            consumer.resume,
            subscribed.pause,
            subscribed.resume,
        ]
        for call in at_once:
            with pytest.raises(UsageError, match="another event loop"):
                call()

    thread = threading.Thread(target=lambda: asyncio.run(own()))
    thread.start()
    try:
        assert ready.wait(60)
        asyncio.run(elsewhere())
    finally:
        end.set()
        thread.join()
