"""Connections in the order in which their clients may expire."""

from __future__ import annotations

import heapq
from typing import Final

STALE_MAX: Final = 1_024
"""Entries of closed connections that may stay until they are due, besides one for each open connection."""


class DueConnections:
    """Each connection with a time since which none of its clients was silent. Heartbeats change nothing here,
    so a connection is looked at about once in the time after which its clients expire, and not with every
    look."""

    def __init__(self) -> None:
        self._since: dict[int, int] = {}
        """By connection, in milliseconds."""
        self._queue: list[tuple[int, int]] = []
        """A heap of times and connections. Only entries with the time in `_since` count."""

    def __len__(self) -> int:
        return len(self._since)

    def add(self, connection: int, since_ms: int) -> None:
        """Adds the connection, or changes its time."""
        self._since[connection] = since_ms
        heapq.heappush(self._queue, (since_ms, connection))
        if len(self._queue) > 2 * len(self._since) + STALE_MAX:
            self._rebuild()

    def remove(self, connection: int) -> None:
        """Safe to call for a connection that is not here."""
        self._since.pop(connection, None)

    def oldest(self, before_ms: int) -> int | None:
        """The connection with the oldest time, if that is older than `before_ms`."""
        while self._queue and self._queue[0][0] < before_ms:
            since_ms, connection = self._queue[0]
            if self._since.get(connection) == since_ms:
                return connection
            heapq.heappop(self._queue)
        return None

    def shift(self, by_ms: int) -> None:
        for connection in self._since:
            self._since[connection] += by_ms
        self._rebuild()

    def _rebuild(self) -> None:
        self._queue = [(since_ms, connection) for connection, since_ms in self._since.items()]
        heapq.heapify(self._queue)
