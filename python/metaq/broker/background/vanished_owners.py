"""Takes the queues of consumers that have vanished away from them, long before their leases end.

A consumer that reads in order is killed: its socket closes, and its queues would wait until its leases end,
up to a minute. But a socket also closes while its client lives: the client, or something on the way, has
closed it. Such a client goes on with messages that it has, so its queues must stay its own. It shows that it
lives: it connects again and sends a heartbeat, renews a lock, pulls, or commits. Our client does so at once,
and trusts its locks no longer than 3 s without an answer. Java's pulls again after 3 s and commits every 5 s,
whatever it does. So a queue without a sign for a little longer than that has no reader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from itertools import islice
from typing import Final

from metaq._core import BrokerPlane
from metaq.broker.background.rebalance_notices import Notices
from metaq.broker.state.clients import Clients
from metaq.broker.state.locks import Held, QueueLocks
from metaq.journal.journal import NotWritten

_log = logging.getLogger(__name__)

SIGN_WAIT_S: Final = 5.25
"""A little longer than the 5 s between two commits of a Java consumer."""
QUEUES_AT_ONCE: Final = 256
"""Queues that are watched or freed before other work has its turn."""


Queue = tuple[str, str, int]
"""Group, topic and queue."""


class VanishedOwners:
    """Waits for signs of clients whose last connection has closed, and takes their locks away."""

    def __init__(
        self,
        plane: BrokerPlane,
        locks: QueueLocks,
        clients: Clients,
        notices: Notices,
        wait_s: float = SIGN_WAIT_S,
    ) -> None:
        self._plane = plane
        self._locks = locks
        self._clients = clients
        self._notices = notices
        self._wait_s = wait_s
        self._waiting: dict[tuple[str, str], asyncio.Task[None]] = {}
        """By group and client."""

    def vanished(self, group: str, client_id: str) -> None:
        """The last connection of a client in a group has closed."""
        held = self._locks.held_by(group, client_id)
        if not held:
            return
        before = self._waiting.pop((group, client_id), None)
        if before is not None:
            before.cancel()
        parts = list(_parts(group, held))
        # A sign from now on counts. The others are watched before the time begins.
        self._plane.watch_signs(parts[0])
        self._waiting[group, client_id] = asyncio.create_task(self._decide(group, client_id, held, parts))

    def stop(self) -> None:
        """Takes nothing away any more."""
        for task in self._waiting.values():
            task.cancel()
        self._waiting.clear()

    async def _decide(self, group: str, client_id: str, held: Held, parts: list[list[Queue]]) -> None:
        for part in parts[1:]:
            self._plane.watch_signs(part)
            await asyncio.sleep(0)
        await asyncio.sleep(self._wait_s)
        released = 0
        for part in parts:
            silent = self._plane.take_silent(part)
            if not self._is_back(group, client_id):
                queues = {(topic, queue_id): held[topic, queue_id] for _, topic, queue_id in silent}
                released += self._locks.release(group, client_id, queues)
            await asyncio.sleep(0)
        del self._waiting[group, client_id]
        if not released:
            return
        _log.info("client %s of group %s has vanished: %d queues are free", client_id, group, released)
        live = self._clients.consumer_group(group)
        if live is not None:
            self._notices.consumers_changed(live)
        try:
            await self._locks.keep()
        except NotWritten as error:
            _log.error("the free queues of group %s are not written yet: %s", group, error)

    def _is_back(self, group: str, client_id: str) -> bool:
        live = self._clients.consumer_group(group)
        return live is not None and live.has_client(client_id)


def _parts(group: str, held: Held) -> Iterator[list[Queue]]:
    queues = iter(held)
    while part := [(group, topic, queue_id) for topic, queue_id in islice(queues, QUEUES_AT_ONCE)]:
        yield part
