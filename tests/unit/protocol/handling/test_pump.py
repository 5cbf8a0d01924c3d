"""Requests that wait for a slot, and connections that close meanwhile."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metaq._core import Listener, Request
from metaq.protocol.dispatch import Handlers, Unfinished
from metaq.protocol.handling import pump as pumps
from metaq.protocol.handling.pump import Pump


class FakeListener:
    def pause(self, connection: int, is_paused: bool) -> None:
        pass

    def set_slow_request_ms(self, limit_ms: int) -> None:
        pass


class FakeRequest:
    """Counts how often somebody asks for its connection."""

    looks = 0
    remote = "127.0.0.1:50000"

    def __init__(self, connection: int) -> None:
        self._connection = connection

    @property
    def connection(self) -> int:
        FakeRequest.looks += 1
        return self._connection


class Rest:
    def __init__(self, dropped: list[int], connection: int, *, only_asks: bool) -> None:
        self.command = SimpleNamespace(has_reserved_slots=False, ends_with_connection=only_asks)
        self._dropped, self._connection = dropped, connection

    def drop(self) -> None:
        self._dropped.append(self._connection)


def test_the_end_of_a_connection_costs_what_it_has_waiting() -> None:
    pump = Pump(cast(Listener, FakeListener()), Handlers(), tasks_max=0)
    dropped: list[int] = []
    for connection in range(1_000):
        for only_asks in (True, False):
            rest: Any = Rest(dropped, connection, only_asks=only_asks)
            pump._finish_later(cast(Unfinished, rest), cast(Request, FakeRequest(connection)), 0.0)
    FakeRequest.looks = 0
    for connection in range(1_000):
        pump._cancel(connection)
    assert dropped == list(range(1_000)), "changes wait on"
    assert FakeRequest.looks <= 10 * 1_000, "and not once for each that waits"
    assert pump._slots.waiting_count() == 1_000
    assert all(len(pump._slots.waiting(connection)) == 1 for connection in range(1_000))


class QueueListener(FakeListener):
    """Hands out events like the real one: readable while it has some."""

    def __init__(self, events: int) -> None:
        self._events = deque(range(events))
        self._pipe = os.pipe()
        os.write(self._pipe[1], b"x")

    def fileno(self) -> int:
        return self._pipe[0]

    def drain(self, count_max: int) -> list[int]:
        taken = [self._events.popleft() for _ in range(min(count_max, len(self._events)))]
        if taken and not self._events:
            os.read(self._pipe[0], 1)
        return taken

    def close(self) -> None:
        for end in self._pipe:
            os.close(end)


class SlowPump(pumps.Pump):
    """Takes its whole turn for one event."""

    def __init__(self, listener: QueueListener, ends_with: int) -> None:
        super().__init__(cast(Listener, listener), Handlers())
        self.handled: list[Any] = []
        self.ended = asyncio.Event()
        self._ends_with = ends_with

    def _take(self, event: Any) -> None:
        self.handled.append(event)
        if event == self._ends_with:
            self.ended.set()
        if event % 5 == 0:
            raise ValueError("an event that cannot be handled")


def test_a_turn_ends_in_time_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pumps, "TURN_S", 0.0)

    async def scenario() -> None:
        listener = QueueListener(40)
        pump = SlowPump(listener, 39)
        seen: list[int] = []

        async def others() -> None:
            while not pump.ended.is_set():
                seen.append(len(pump.handled))
                await asyncio.sleep(0)

        pump.start()
        async with asyncio.timeout(60):
            await others()
        assert pump.handled == list(range(40))
        assert max(after - before for before, after in pairwise(seen)) == 1
        await pump.stop()
        listener.close()

    asyncio.run(scenario())


def test_events_that_are_taken_wait_while_requests_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pumps, "TURN_S", 0.0)

    async def scenario() -> None:
        listener = QueueListener(10)
        pump = SlowPump(listener, 4)
        pump.start()
        async with asyncio.timeout(60):
            await pump.ended.wait()
        pump.hold()
        before = list(pump.handled)
        for _ in range(20):
            await asyncio.sleep(0)
        assert pump.handled == before != list(range(10))
        pump.release()
        for _ in range(20):
            await asyncio.sleep(0)
        assert pump.handled == list(range(10))
        await pump.stop()
        listener.close()

    asyncio.run(scenario())


def test_a_pump_that_stops_handles_what_it_has_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pumps, "TURN_S", 0.0)

    async def scenario() -> None:
        listener = QueueListener(10)
        pump = SlowPump(listener, 0)
        pump.start()
        async with asyncio.timeout(60):
            await pump.ended.wait()
        await pump.stop()
        assert pump.handled == list(range(10))
        listener.close()

    asyncio.run(scenario())
