"""A client closes everything within one timeout, and a second close waits for the first."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metaq.client.consumer.group.group_member import GroupMember
from metaq.client.consumer.handler import HandlerConsumer
from metaq.client.consumer.iteration import Stream
from metaq.client.consumer.options import ConsumerOptions
from metaq.client.consumer.settlement.local_retry import _record
from metaq.client.consumer.settlement.local_retry_store import LocalRetryStore, local_retry_file
from metaq.client.consumer.subscription import Subscription
from metaq.client.message import Message
from metaq.client.producer.producer import Producer
from metaq.client.producer.send_buffer import BufferedSender
from metaq.client.session.routes import Queue
from metaq.client.session.session import Session
from tests.support.clients import FACES, Face

NOBODY = "127.0.0.1:1"


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)


def test_producers_have_the_time_that_is_left(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[float] = []
    close = BufferedSender.close

    async def note(buffered: BufferedSender, timeout: float) -> None:
        times.append(timeout)
        await close(buffered, timeout)

    monkeypatch.setattr(BufferedSender, "close", note)

    async def scenario() -> None:
        client = face.client(NOBODY)
        await face.call(client.start)
        for group in ("one", "two"):
            await face.call(client.producer(group).start)
        await face.call(client.close, 5)

    asyncio.run(scenario())
    assert len(times) == 2
    assert max(times) <= 5


@pytest.mark.parametrize("first", ["producer", "client"])
def test_a_client_ends_after_a_close_that_is_under_way(
    face: Face, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    begun, may_end = threading.Event(), threading.Event()
    close, close_session = BufferedSender.close, Session.close

    async def flush(buffered: BufferedSender, timeout: float) -> None:
        begun.set()
        while not may_end.is_set():
            await asyncio.sleep(0.001)
        await close(buffered, timeout)
        order.append("flushed")

    async def end(session: Session) -> None:
        order.append("ended")
        await close_session(session)

    closes = 0
    close_producer = Producer.close

    async def count(producer: Producer, timeout: float = 30) -> None:
        nonlocal closes
        closes += 1
        await close_producer(producer, timeout)

    monkeypatch.setattr(BufferedSender, "close", flush)
    monkeypatch.setattr(Session, "close", end)
    monkeypatch.setattr(Producer, "close", count)

    async def scenario() -> None:
        client = face.client(NOBODY)
        producer = client.producer("g")
        await face.call(client.start)
        await face.call(producer.start)
        under_way = asyncio.create_task(face.call(producer.close if first == "producer" else client.close))
        assert await asyncio.to_thread(begun.wait, 60)
        others = [asyncio.create_task(face.call(it.close)) for it in (producer, client)]
        # The client closes its producer too, unless its own close is the second one.
        while closes < (3 if first == "producer" else 2):
            await asyncio.sleep(0.001)
        assert not any(task.done() for task in (under_way, *others))
        may_end.set()
        await asyncio.gather(under_way, *others)

    asyncio.run(scenario())
    assert order == ["flushed", "ended"]


class Idle:
    """A handler that is never called."""

    is_plain = False

    async def call(self, argument: Any) -> None: ...

    def call_here(self, argument: Any, loop: asyncio.AbstractEventLoop) -> None: ...

    def close(self) -> None: ...


OPTIONS = ConsumerOptions("g", (Subscription.of("t"),))


@pytest.mark.parametrize(
    "make",
    [
        lambda session: HandlerConsumer(session, OPTIONS, Idle()),
        lambda session: Stream(session, OPTIONS, auto_ack=True),
    ],
)
def test_a_second_close_of_a_consumer_waits_for_the_first(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[Session], Any]
) -> None:
    leave: Callable[[GroupMember], Any] = GroupMember.leave
    may_leave = asyncio.Event()

    async def slowly(member: GroupMember) -> None:
        await may_leave.wait()
        await leave(member)

    monkeypatch.setattr(GroupMember, "leave", slowly)

    async def scenario() -> None:
        session = Session(NOBODY)
        await session.start()
        consumer = make(session)
        await consumer.start()
        first = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        assert not await consumer.close(0)  # It has not ended in that time.
        second = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        assert not second.done()
        may_leave.set()
        assert await first
        assert await second
        assert await consumer.close()
        await session.close()

    asyncio.run(scenario())


def test_a_parked_message_in_hand_is_tried_to_its_end(tmp_path: Path) -> None:
    class Slow(Idle):
        def __init__(self) -> None:
            self.begun, self.may_end = asyncio.Event(), asyncio.Event()
            self.ended = 0

        async def call(self, argument: Any) -> None:
            self.begun.set()
            await self.may_end.wait()
            self.ended += 1

    parked = LocalRetryStore(local_retry_file(tmp_path, "g"))
    for queue_offset in range(2):
        message = Message(
            "t", b"x", id=str(queue_offset), queue=Queue("t", "b", 0), queue_offset=queue_offset
        )
        parked.add(message, _record(message), "why", 0, 0)

    async def scenario() -> None:
        session = Session(NOBODY)
        await session.start()
        slow = Slow()
        options = replace(OPTIONS, on_failure="local", local_directory=tmp_path)
        consumer = HandlerConsumer(session, options, slow)
        await consumer.start()
        await asyncio.wait_for(slow.begun.wait(), 60)
        closing = asyncio.create_task(consumer.close(20))
        retries = consumer._local_retries
        assert retries is not None
        while not retries._stopping.is_set():
            await asyncio.sleep(0)
        assert not closing.done()
        slow.may_end.set()
        assert await closing
        assert slow.ended == 1, "the other one is left for the next consumer"
        await session.close()

    asyncio.run(scenario())
    (left,) = parked.rows()
    assert left.queue_offset == 1
    assert left.due_ms <= time.time_ns() // 1_000_000, "which need not wait until a claim is over"


def test_a_reset_in_order_waits_for_the_message_in_hand() -> None:
    async def scenario() -> None:
        queue = Queue("t", "b", 0)
        member = GroupMember(Session(NOBODY), replace(OPTIONS, ordered=True))
        prefetch = member.prefetch
        committed: list[dict[Queue, int]] = []

        async def commit(offsets: dict[Queue, int]) -> frozenset[Queue]:
            committed.append(offsets)
            return frozenset()

        member._committed._storage = SimpleNamespace(commit=commit)  # type: ignore[assignment]
        member._pulls.begin(queue, 0, math.inf)
        before = prefetch.buffers[queue]
        before.put([Message("t", b"", queue=queue, queue_offset=number) for number in range(3)], 3)
        taken = prefetch.take_now(1)
        assert taken is not None
        await member.assignment.reset({queue: 2})
        fresh = prefetch.buffers[queue]
        assert fresh is not before and fresh.pull_offset == 2
        assert committed == [{queue: 2}]
        fresh.put([Message("t", b"", queue=queue, queue_offset=2)], 3)
        assert prefetch.take_now(1) is None, "nothing overtakes it"
        prefetch.settle(*taken)
        assert prefetch.take_now(1) is not None
        await member._pulls.drop(queue)

    asyncio.run(scenario())
