"""Removes the clients of closed connections from their groups, a few memberships in each turn.

A connection may be in hundreds of groups, and many connections may close at the same time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

from metaq.broker.state.clients import Clients


class ClosedConnections:
    """The connections whose clients are still to be removed."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._waiting: deque[Iterator[None]] = deque()
        self._next: asyncio.Handle | None = None

    def add(self, connection: int) -> None:
        """The connection has closed. From now on, nobody finds its client."""
        steps = self._clients.remove_in_steps(connection)
        if _goes_on(steps):
            self._waiting.append(steps)
            self._set_next()

    def stop(self) -> None:
        """Leaves the other clients where they are."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self._waiting.clear()

    def _set_next(self) -> None:
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._remove)

    def _remove(self) -> None:
        self._next = None
        if not _goes_on(self._waiting[0]):
            self._waiting.popleft()
        if self._waiting:
            self._set_next()


def _goes_on(steps: Iterator[None]) -> bool:
    """Does one step. Whether there are more."""
    for _ in steps:
        return True
    return False
