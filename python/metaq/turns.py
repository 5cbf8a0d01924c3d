"""The order in which clients get a thread, if many wait for a few.

Addresses take turns first, then the connections of each address. So a client has no more turns if it opens
more connections. One address has all turns while nobody else waits.

Among addresses, and among the connections of one, those that have not used any time yet are next, then the
one that has used the least. So a client that asks for little waits for the work that runs, not for a turn of
each busy client. Newcomers, however many, leave a quarter of the turns to the others.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from metaq.protocol.handling.askers import Asker

NEWCOMERS_AT_ONCE = 3
"""Turns of newcomers before one of an address or connection that has used time."""
REMEMBERED_MAX = 1_024
"""Addresses, and connections of one address, whose times are remembered. Those with the most are remembered
for longest."""

_Key = TypeVar("_Key", bound=Hashable)


class _Order(Generic[_Key]):
    """Addresses, or connections of one address, in the order of their turns."""

    def __init__(self) -> None:
        self._newcomers: deque[_Key] = deque()
        self._known: list[tuple[float, int, _Key]] = []
        """A heap of used time, arrival and key. Each key that waits is here once, or among the newcomers."""
        self._arrivals = itertools.count()
        self._used_s: dict[_Key, float] = {}
        self._least_s = 0.0
        """The used time of the key of the heap that had the last turn. A key that was away has no less:
        otherwise it could have all turns until it has caught up."""
        self._newcomers_in_a_row = 0

    def add(self, key: _Key) -> None:
        used_s = self._used_s.get(key)
        if used_s is None:
            self._newcomers.append(key)
        else:
            heapq.heappush(self._known, (max(used_s, self._least_s), next(self._arrivals), key))

    def add_again(self, key: _Key) -> None:
        """Adds one that has just had a turn and waits for another."""
        self._used_s.setdefault(key, self._least_s)
        self.add(key)

    def take(self) -> _Key:
        """Takes out the one that is next. Somebody must wait."""
        if self._newcomers and (self._newcomers_in_a_row < NEWCOMERS_AT_ONCE or not self._known):
            self._newcomers_in_a_row += 1
            return self._newcomers.popleft()
        self._newcomers_in_a_row = 0
        while True:
            used_s, _, key = heapq.heappop(self._known)
            if used_s >= self._used_s.get(key, 0.0):
                self._least_s = used_s
                return key
            # It has used more since it was put here.
            self.add(key)

    def charge(self, key: _Key, time_s: float) -> None:
        self._used_s[key] = max(self._used_s.get(key, 0.0), self._least_s) + time_s
        if len(self._used_s) > REMEMBERED_MAX:
            most = heapq.nlargest(REMEMBERED_MAX // 2, self._used_s.items(), key=lambda item: item[1])
            self._used_s = dict(most)

    def forget(self) -> None:
        """Forgets all times. Nobody may wait."""
        self._used_s.clear()
        self._least_s = 0.0


class _AddressTurns:
    """The turns of one address."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}
        self._order: _Order[int] = _Order()

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def waiting(self, connection: int) -> int:
        return len(self._waiting.get(connection, ()))

    def add(self, connection: int, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.setdefault(connection, deque())
        turns.append(turn)
        if len(turns) == 1:
            self._order.add(connection)

    def take(self) -> asyncio.Future[None] | None:
        """The next turn that somebody still waits for."""
        while self._waiting:
            connection = self._order.take()
            turns = self._waiting[connection]
            turn = turns.popleft()
            if turns:
                self._order.add_again(connection)
            else:
                del self._waiting[connection]
            if not turn.done():
                return turn
        return None

    def charge(self, connection: int, time_s: float) -> None:
        self._order.charge(connection, time_s)


class Turns:
    """The turns of one pool. Times count from the last moment at which nobody waited."""

    def __init__(self) -> None:
        self._of: dict[str, _AddressTurns] = {}
        """By address. One that has nobody waiting is removed with its next charge."""
        self._waiting = 0
        """Addresses that wait."""
        self._order: _Order[str] = _Order()

    def waiting(self, asker: Asker) -> int:
        turns = self._of.get(asker.source)
        return 0 if turns is None else turns.waiting(asker.connection)

    def add(self, asker: Asker, turn: asyncio.Future[None]) -> None:
        turns = self._of.setdefault(asker.source, _AddressTurns())
        if turns.is_empty:
            self._waiting += 1
            self._order.add(asker.source)
        turns.add(asker.connection, turn)

    def take(self) -> asyncio.Future[None] | None:
        """The next turn that somebody still waits for."""
        while self._waiting:
            source = self._order.take()
            turns = self._of[source]
            turn = turns.take()
            if turns.is_empty:
                self._waiting -= 1
            else:
                self._order.add_again(source)
            if turn is not None:
                return turn
        return None

    def charge(self, asker: Asker, time_s: float) -> None:
        """Notes that a thread has worked for this connection."""
        if not self._waiting:
            self._of.clear()
            self._order.forget()
            return
        self._order.charge(asker.source, time_s)
        turns = self._of.get(asker.source)
        if turns is None:
            return
        if turns.is_empty:
            del self._of[asker.source]
        else:
            turns.charge(asker.connection, time_s)
