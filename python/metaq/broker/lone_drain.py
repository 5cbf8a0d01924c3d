"""The drain of a lone broker: it takes no more messages, waits for its clients, and stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from metaq.broker.state.clients import Clients
from metaq.ha.operators.group_control import GroupStatus, NodeStatus, SwitchRefused
from metaq.protocol.commands.replication import NodeStateWord
from metaq.protocol.names import MASTER_ID

_log = logging.getLogger(__name__)

WAIT_S: Final = 35.0
"""How long clients may take, unless the order says otherwise: as long as a drained node of a group relays."""
WAIT_S_MAX: Final = 7 * 24 * 3600.0
LOOK_INTERVAL_S: Final = 0.2
PROGRESS_INTERVAL_S: Final = 10.0


class LoneDrain:
    """The operator's side of a broker without replicas. It lives as long as the process."""

    def __init__(self, name: str, address: Callable[[], str], clients: Clients) -> None:
        self.stop_writes: Callable[[], Awaitable[None]] | None = None
        """Set by the master of now: refuses messages and tells the name servers."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Is done when the process may stop."""
        self._name = name
        self._address = address
        self._clients = clients
        self._waiting: asyncio.Task[None] | None = None
        self._deadline_s = 0.0

    node_id: Final = MASTER_ID

    def status(self) -> GroupStatus:
        state: NodeStateWord = "in sync" if self._waiting is None else "leaving"
        node = NodeStatus(MASTER_ID, self._address(), "master", state, lag_bytes=0, lag_ms=0)
        return GroupStatus(self._name, 0, MASTER_ID, 1, (MASTER_ID,), (node,))

    async def switch(self, target: int, *, force: bool = False) -> None:
        raise SwitchRefused(f"broker {self._name} has no replicas, so there is no other node to switch to")

    async def drain(self, wait_s: float | None = None) -> None:
        """Refuses messages from now on, and lets the process stop once no client is connected, or after
        `wait_s`. Returns when messages are refused. A second order changes the time only."""
        if self.stop_writes is None:
            raise SwitchRefused(f"broker {self._name} is starting or stopping", hint="try again")
        await self.stop_writes()
        wait_s = min(max(WAIT_S if wait_s is None else wait_s, 0.0), WAIT_S_MAX)
        self._deadline_s = asyncio.get_running_loop().time() + wait_s
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._wait())

    async def stop(self) -> None:
        """Ends the wait. Safe to call twice."""
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.gather(self._waiting, return_exceptions=True)

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        told_s = -PROGRESS_INTERVAL_S
        while (connected := self._connected()) and (left_s := self._deadline_s - loop.time()) > 0:
            if loop.time() - told_s >= PROGRESS_INTERVAL_S:
                told_s = loop.time()
                _log.info("drained: waits for %d clients, at most %.0f s", connected, left_s)
            await asyncio.sleep(min(LOOK_INTERVAL_S, left_s))
        _log.info("drained: stops, with %d clients connected", connected)
        if not self.ended.done():
            self.ended.set_result(None)

    def _connected(self) -> int:
        """Counts the connections of producers and consumers."""
        clients = self._clients
        consumers = {
            member.connection for group in clients.all_consumer_groups() for member in group.present()
        }
        producers = {
            member.connection for name in clients.producer_groups() for member in clients.producers(name)
        }
        return len(consumers | producers)
