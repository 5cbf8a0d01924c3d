"""The order in which connections get a thread, if many wait for a few.

The connection that has used the least time is next; of those with the same time, the one that has waited
longest. So a client that asks for little waits for the work that runs, not for a turn of each busy client.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque

FORGET_AT = 1_024
"""Connections whose times are remembered before those that make no difference are forgotten."""


class Turns:
    """The turns of one pool. Times count from the last moment at which nobody waited."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}
        self._next: list[tuple[float, int, int]] = []
        """A heap of used time, arrival and connection, with one entry for each connection that waits."""
        self._arrivals = itertools.count()
        self._used_s: dict[int, float] = {}
        self._least_s = 0.0
        """The used time that a new connection starts with, and one that was away. With less it could have all
        turns until it has caught up. It grows by one share of the time, so a stream of newcomers has no more
        than its shares."""
        self._forget_at = FORGET_AT

    def waiting(self, connection: int) -> int:
        return len(self._waiting.get(connection, ()))

    def add(self, connection: int, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.setdefault(connection, deque())
        turns.append(turn)
        if len(turns) == 1:
            self._enqueue(connection)

    def take(self) -> asyncio.Future[None] | None:
        """The next turn that somebody still waits for."""
        while self._next:
            used_s, _, connection = heapq.heappop(self._next)
            if used_s < self._used_s.get(connection, 0.0):
                self._enqueue(connection)
                continue
            turns = self._waiting[connection]
            turn = turns.popleft()
            if turns:
                self._enqueue(connection)
            else:
                del self._waiting[connection]
            if not turn.done():
                self._least_s = max(self._least_s, used_s)
                return turn
        return None

    def charge(self, connection: int, time_s: float) -> None:
        """Notes that a thread has worked for this connection."""
        if not self._waiting:
            self._used_s.clear()
            self._least_s = 0.0
            return
        self._used_s[connection] = max(self._used_s.get(connection, 0.0), self._least_s) + time_s
        self._least_s += time_s / (1 + len(self._waiting))
        if len(self._used_s) > self._forget_at:
            kept = {key: used_s for key, used_s in self._used_s.items() if used_s > self._least_s}
            self._used_s, self._forget_at = kept, max(FORGET_AT, 2 * len(kept))

    def _enqueue(self, connection: int) -> None:
        used_s = max(self._used_s.get(connection, 0.0), self._least_s)
        heapq.heappush(self._next, (used_s, next(self._arrivals), connection))
