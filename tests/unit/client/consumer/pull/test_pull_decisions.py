"""Decisions of a puller when its native stream cannot continue on its own."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from metaq.client.consumer.pull import pull_consumer
from metaq.client.consumer.pull.pull_consumer import PullConsumer
from metaq.client.consumer.pull.read_nodes import ReadNode
from metaq.client.session.routes import Queue
from metaq.client.session.session import Session
from metaq.errors import UnreadableBody, UsageError


class Stream:
    """Replaces the native stream, because a test cannot cause its events while a route is missing."""

    def __init__(self, *kinds: str) -> None:
        self.resumed: list[int] = []
        self._events = [
            SimpleNamespace(number=number, kind=kind, value=7, text="", is_empty=True)
            for number, kind in enumerate(kinds)
        ]

    def events(self) -> list[Any]:
        return self._events

    def position(self, number: int) -> int:
        return 0

    def resume(self, number: int, address: str, **_: object) -> None:
        self.resumed.append(number)


@pytest.mark.parametrize("kind", ["suggested", "moved"])
def test_a_broker_that_no_route_tells_of_stops_no_other_queue(kind: str) -> None:
    async def scenario() -> None:
        session = Session("127.0.0.1:1")
        assigned = PullConsumer(session)._assigned
        stream = Stream(kind, kind)
        queues = [Queue("t", "gone", 0), Queue("t", "127.0.0.1:2", 0)]  # An address needs no route.
        assigned.stream = stream  # type: ignore[assignment]
        assigned._queues = dict(enumerate(queues))
        assigned._sources = {number: ReadNode(0, "127.0.0.1:2") for number in assigned._queues}
        assigned._read_events()
        assert stream.resumed == [1]
        assert len(assigned._tasks._tasks) == 1, "the other continues when its broker is known again"
        await assigned._tasks.end()

    asyncio.run(scenario())


def test_an_assign_during_a_close_starts_no_queue() -> None:
    async def scenario() -> None:
        session = Session("127.0.0.1:1")
        await session.start()
        puller = PullConsumer(session)

        async def while_it_is_closed(queue: Queue) -> int:
            puller._is_closed = True
            return 0

        puller._start_offset = while_it_is_closed  # type: ignore[method-assign]
        session.routes.get = _found  # type: ignore[method-assign]
        with pytest.raises(UsageError, match="closed"):
            await puller.assign(Queue("t", "127.0.0.1:2", 0))
        assert puller._assigned.stream is None
        await session.close()

    asyncio.run(scenario())


async def _found(topic: str, **_: object) -> Any:
    return SimpleNamespace(readable=[])


def test_a_poll_inflates_no_more_at_once_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_consumer, "INFLATED_TOGETHER_BYTES", 1000)
    inflated: list[int] = []

    class Compressed:
        queue, offset_id, body_size = None, "id", 300

        def __init__(self, number: int, problem: str = "") -> None:
            self.number = number
            self.problem = problem

        @property
        def body(self) -> bytes:
            inflated.append(self.number)
            if self.problem:
                raise UnreadableBody(self.problem)
            return b""

    def take(count: int) -> tuple[list[Any], list[Any]]:
        # Like the native stream, it stops after a compressed message.
        taken = [left.pop(0) for _ in range(min(count, 1, len(left)))]
        return taken, [message for message in taken if isinstance(message, Compressed)]

    stream: Any = SimpleNamespace(take=take)
    puller = PullConsumer(Session("127.0.0.1:1"))

    def poll(count: int) -> list[int]:
        return [message.number for message in puller._readable(stream, count, *take(count))]

    left: list[Any] = [Compressed(number) for number in range(10)]
    assert poll(2) == [0, 1]
    assert poll(100) == [2, 3, 4, 5]
    assert inflated == list(range(6))
    left[:] = [Compressed(10), Compressed(11, "damaged"), Compressed(12)]
    assert poll(100) == [10], "what cannot be read may have taken as much as anything can"
    with pytest.raises(UnreadableBody, match="damaged"):
        puller._raise_failure()
    assert poll(100) == [12]
