"""A reset of a busy group holds: consumers drop what they have, and nothing that they commit undoes it."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from metaq import Queue
from metaq.admin.aio import Admin
from metaq.client.consumer.group import group_member
from tests.integration.client.conftest import Served
from tests.integration.client.test_consumer_contract import connected, name
from tests.support.clients import Face, create_topic
from tests.support.metaq import run as command
from tests.support.waiting import run, until

WAITING = 8_000


@pytest.fixture(autouse=True)
def frequent_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_member, "COMMIT_INTERVAL_S", 0.1)


async def fill(face: Face, client: Any, topic: str, count: int, queues: list[Queue] | None = None) -> None:
    """Sends numbered messages to queue 0, or in turn to these queues."""
    producer = client.producer("fillers")
    await face.call(producer.start)
    chosen = queues or [Queue(topic, "broker-a", 0)]

    def put() -> None:
        for number in range(count):
            producer.send_soon(topic, b"%d" % number, queue=chosen[number % len(chosen)])

    async def put_async() -> None:
        for number in range(count):
            await producer.send_soon(topic, b"%d" % number, queue=chosen[number % len(chosen)])

    await (asyncio.to_thread(put) if face.is_sync else put_async())
    await face.call(producer.flush)
    await face.call(producer.close)


async def moved(admin: Admin, group: str, queues: list[Queue]) -> None:
    """Waits until consumers have followed in all queues."""

    async def none_left() -> bool:
        return not await admin.offsets.resets(group, queues)

    await until(none_left)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_busy_group_skips_its_backlog(face: Face, served: Served, ordered: bool) -> None:
    """With the command line, while 8,000 messages wait and a handler takes 5 to 10 ms."""

    async def scenario() -> None:
        topic = group = name(face, f"busy-{ordered}")
        await create_topic(served.broker, topic, queues=4)
        queues = [Queue(topic, "broker-a", number) for number in range(4)]
        seen: list[str] = []

        def handle(message: Any) -> None:
            time.sleep(0.005 if len(seen) % 2 else 0.01)
            seen.append(message.body.decode())

        async with connected(face, served) as client, Admin(served.nameserver) as admin:
            await fill(face, client, topic, WAITING, queues)
            declare = client.consumer(topic, group=group, start="earliest", ordered=ordered, concurrency=2)
            await face.call(declare, handle)
            await until(lambda: len(seen) >= 50)
            reset = ("group", "reset", group, topic, "--to", "latest", "--yes")
            await asyncio.to_thread(command, *reset, "--namesrv", served.nameserver)
            await moved(admin, group, queues)
            at_reset = len(seen)
            await fill(face, client, topic, 4, queues)
            await until(lambda: len(seen) >= at_reset + 4)
            ends = await admin.offsets.ends(queues)

            async def reached() -> bool:
                return await admin.offsets.committed(group, queues) == ends

            await until(reached)
            assert len(seen) < WAITING / 2, "it went on with what it had before the reset"
            assert {"0", "1", "2", "3"} <= set(seen[at_reset - 20 :])
        assert await ends_at(served, group, queues) == ends

    run(scenario)


async def ends_at(served: Served, group: str, queues: list[Queue]) -> dict[Queue, int | None]:
    async with Admin(served.nameserver) as admin:
        return await admin.offsets.committed(group, queues)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("backlog", [5, 100])
def test_a_handler_that_takes_long_does_not_keep_a_group_from_moving(
    face: Face, served: Served, ordered: bool, backlog: int
) -> None:
    """With a backlog of 5 the consumer has pulled all of it, and its pull waits where the reset leads to."""

    async def scenario() -> None:
        topic = group = name(face, f"slow-{ordered}-{backlog}")
        await create_topic(served.broker, topic, queues=1)
        queue = Queue(topic, "broker-a", 0)
        begun: list[str] = []
        goes_on = threading.Event()

        def handle(message: Any) -> None:
            begun.append(message.body.decode())
            goes_on.wait(60)

        async with connected(face, served) as client, Admin(served.nameserver) as admin:
            await fill(face, client, topic, backlog)
            declare = client.consumer(
                topic, group=group, start="earliest", ordered=ordered, concurrency=1, buffer_count=10
            )
            consumer = await face.call(declare, handle)
            await until(lambda: begun == ["0"])
            await admin.groups.reset(group, topic, "latest")
            await moved(admin, group, [queue])
            await fill(face, client, topic, 3)
            assert (await admin.offsets.committed(group, [queue]))[queue] == backlog
            if ordered:
                await asyncio.sleep(0.3)  # A message that overtakes the one in hand would come at once.
            assert begun == ["0"]
            goes_on.set()
            await until(lambda: len(begun) == 4)
            assert begun == ["0", "0", "1", "2"]
            await face.call(consumer.close, 30)
            assert (await admin.offsets.committed(group, [queue]))[queue] == backlog + 3

    run(scenario)


def test_a_puller_follows_with_its_commit_or_its_next_pull(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic = group = name(face, "pulled")
        await create_topic(served.broker, topic, queues=1)
        queue = Queue(topic, "broker-a", 0)
        async with connected(face, served) as client, Admin(served.nameserver) as admin:
            await fill(face, client, topic, 500)
            puller = client.puller(group=group, start="earliest", buffer_count=100)
            await face.call(puller.assign, topic)
            assert len(await face.call(puller.poll, 30, count=10)) > 0
            await face.call(puller.commit)
            await admin.groups.reset(group, topic, "latest")
            assert await face.call(puller.commit) == {queue: 500}, "it moves instead of undoing the reset"
            assert await admin.offsets.resets(group, [queue]) == {}
            await fill(face, client, topic, 300)
            assert (await face.call(puller.poll, 30, count=1))[0].queue_offset == 500

            await admin.groups.reset(group, topic, "latest")
            read = []
            while not read or read[-1].queue_offset < 800:
                await fill(face, client, topic, 1)
                read += await face.call(puller.poll, 30, count=50)
            assert len(read) <= 200, "it drops what it has buffered"
            await face.call(puller.commit)
            assert (await admin.offsets.committed(group, [queue]))[queue] == read[-1].queue_offset + 1

    run(scenario)
