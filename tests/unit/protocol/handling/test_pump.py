"""Requests that wait for a slot, and connections that close meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from metaq._core import Listener, Request
from metaq.protocol.dispatch import Handlers, Unfinished
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
