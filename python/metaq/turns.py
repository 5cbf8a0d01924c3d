"""The order in which connections get a thread, if many wait for a few.

Connections that have not used any time yet are next, then the one that has used the least. So a client that
asks for little waits for the work that runs, not for a turn of each busy client. Newcomers, however many,
leave a quarter of the turns to the others.

A pool may count by address instead: then all connections of an address are one, in the order in which they
came.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from typing import TypeAlias

Asker: TypeAlias = int | str
"""A connection, or an address whose connections share their turns."""
NEWCOMERS_AT_ONCE = 3
"""Turns of newcomers before one of a connection that has used time."""
REMEMBERED_MAX = 1_024
"""Connections whose times are remembered. Those with the most are remembered for longest."""


class Turns:
    """The turns of one pool. Times count from the last moment at which nobody waited."""

    def __init__(self) -> None:
        self._waiting: dict[Asker, deque[asyncio.Future[None]]] = {}
        self._newcomers: deque[Asker] = deque()
        self._known: list[tuple[float, int, Asker]] = []
        """A heap of used time, arrival and connection. Each connection that waits is here once, or among the
        newcomers."""
        self._arrivals = itertools.count()
        self._used_s: dict[Asker, float] = {}
        self._least_s = 0.0
        """The used time of the connection of the heap that had the last turn. A connection that was away has
        no less: otherwise it could have all turns until it has caught up."""
        self._newcomers_in_a_row = 0

    def waiting(self, connection: Asker) -> int:
        return len(self._waiting.get(connection, ()))

    def add(self, connection: Asker, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.setdefault(connection, deque())
        turns.append(turn)
        if len(turns) == 1:
            self._enqueue(connection)

    def take(self) -> asyncio.Future[None] | None:
        """The next turn that somebody still waits for."""
        while self._waiting:
            connection = self._next()
            turns = self._waiting[connection]
            turn = turns.popleft()
            if turns:
                self._used_s.setdefault(connection, self._least_s)
                self._enqueue(connection)
            else:
                del self._waiting[connection]
            if not turn.done():
                return turn
        return None

    def _next(self) -> Asker:
        if self._newcomers and (self._newcomers_in_a_row < NEWCOMERS_AT_ONCE or not self._known):
            self._newcomers_in_a_row += 1
            return self._newcomers.popleft()
        self._newcomers_in_a_row = 0
        while True:
            used_s, _, connection = heapq.heappop(self._known)
            if used_s >= self._used_s.get(connection, 0.0):
                self._least_s = used_s
                return connection
            # It has used more since it was put here.
            self._enqueue(connection)

    def charge(self, connection: Asker, time_s: float) -> None:
        """Notes that a thread has worked for this connection."""
        if not self._waiting:
            self._used_s.clear()
            self._least_s = 0.0
            return
        self._used_s[connection] = max(self._used_s.get(connection, 0.0), self._least_s) + time_s
        if len(self._used_s) > REMEMBERED_MAX:
            most = heapq.nlargest(REMEMBERED_MAX // 2, self._used_s.items(), key=lambda item: item[1])
            self._used_s = dict(most)

    def _enqueue(self, connection: Asker) -> None:
        used_s = self._used_s.get(connection)
        if used_s is None:
            self._newcomers.append(connection)
        else:
            heapq.heappush(self._known, (max(used_s, self._least_s), next(self._arrivals), connection))
