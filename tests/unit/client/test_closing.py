"""All of a client closes within one time, and a second close waits for the first."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from metaq.client.consumer_core import GroupConsumer
from metaq.client.consumer_options import ConsumerOptions
from metaq.client.handling import HandlerConsumer
from metaq.client.session import Session
from metaq.client.soon import Soon
from metaq.client.subscription import Subscription
from tests.support.clients import FACES, Face

NOBODY = "127.0.0.1:1"


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)


def test_producers_have_the_time_that_is_left(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[float] = []
    close = Soon.close

    async def note(soon: Soon, timeout: float) -> None:
        times.append(timeout)
        await close(soon, timeout)

    monkeypatch.setattr(Soon, "close", note)

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
    close, close_session = Soon.close, Session.close

    async def flush(soon: Soon, timeout: float) -> None:
        begun.set()
        while not may_end.is_set():
            await asyncio.sleep(0.001)
        await close(soon, timeout)
        order.append("flushed")

    async def end(session: Session) -> None:
        order.append("ended")
        await close_session(session)

    monkeypatch.setattr(Soon, "close", flush)
    monkeypatch.setattr(Session, "close", end)

    async def scenario() -> None:
        client = face.client(NOBODY)
        producer = client.producer("g")
        await face.call(client.start)
        await face.call(producer.start)
        under_way = asyncio.create_task(face.call(producer.close if first == "producer" else client.close))
        assert await asyncio.to_thread(begun.wait, 20)
        others = [asyncio.create_task(face.call(it.close)) for it in (producer, client)]
        await asyncio.sleep(0.05)
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


def test_a_second_close_of_a_consumer_waits_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    leave: Callable[[GroupConsumer], Any] = GroupConsumer.leave
    may_leave = asyncio.Event()

    async def slowly(core: GroupConsumer) -> None:
        await may_leave.wait()
        await leave(core)

    monkeypatch.setattr(GroupConsumer, "leave", slowly)

    async def scenario() -> None:
        session = Session(NOBODY)
        await session.start()
        consumer = HandlerConsumer(session, ConsumerOptions("g", (Subscription.of("t"),)), Idle())
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
