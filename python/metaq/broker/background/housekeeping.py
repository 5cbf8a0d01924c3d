"""The regular work of a master, each piece at its own interval. A failure never ends it for good."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from metaq.broker.background.stuck_queues import LOOK_INTERVAL_S, StuckQueues
from metaq.broker.background.topic_retention import TopicRetention
from metaq.broker.background.transaction_checks import TransactionChecks
from metaq.broker.node import Node
from metaq.broker.state.broker_state import BrokerState
from metaq.broker.state.stats import SAMPLE_INTERVAL_S
from metaq.protocol.handling.peer_log import peer_log

_log = logging.getLogger(__name__)

INTERVAL_S = 1.0
PROTECT_INTERVAL_S = 30.0
TOPIC_RETENTION_INTERVAL_S = 10.0
FUNCTIONS_REST_INTERVAL_S = 10.0
DELAYS_PERSIST_INTERVAL_S = 0.5
"""A kill delivers again what was delivered since the last write, which takes a moment itself. Together that
is less than a second."""
CLOCK_DRIFT_MS_MAX = 5_000
"""Beyond this the clock was set or the process did not run, so the time that passed means nothing."""


class Housekeeping:
    """Runs from `start` to `stop`."""

    def __init__(
        self, node: Node, state: BrokerState, transactions: TransactionChecks, stuck_queues: StuckQueues
    ) -> None:
        self._node = node
        self._state = state
        self._transactions = transactions
        self._stuck_queues = stuck_queues
        self._retention = TopicRetention(state.topics, node.store, node.clock, state.starts)
        self._tasks: list[asyncio.Task[None]] = []
        self.looked_ms = node.clock.now_ms()

    def start(self) -> None:
        persist_interval_s = self._node.options.offsets_persist_interval_s
        self.looked_ms = self._node.clock.now_ms()
        self._every(INTERVAL_S, self.look)
        self._every(INTERVAL_S, self._transactions.check)
        self._every(persist_interval_s, self.persist_offsets)
        self._every(min(persist_interval_s, DELAYS_PERSIST_INTERVAL_S), self._state.delays.persist)
        self._every(PROTECT_INTERVAL_S, self._state.offsets.protect)
        self._every(TOPIC_RETENTION_INTERVAL_S, self._retention.look)
        self._every(FUNCTIONS_REST_INTERVAL_S, self._node.functions.rest)
        self._every(LOOK_INTERVAL_S, self._stuck_queues.look)
        self._every(SAMPLE_INTERVAL_S, lambda: asyncio.to_thread(self._state.sample))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def skip_time(self, by_ms: int) -> None:
        """The clock was moved by this much, and that counts as time that passed."""
        self.looked_ms += by_ms

    async def look(self) -> None:
        """Looks once at the clock, at the store's reports, and for clients and locks that have expired."""
        clients, locks = self._node.clients, self._state.locks
        now_ms, before_ms = self._node.clock.now_ms(), self.looked_ms
        self.looked_ms = now_ms
        drift_ms = now_ms - before_ms - int(INTERVAL_S * 1000)
        if abs(drift_ms) > CLOCK_DRIFT_MS_MAX:
            _log.warning("the clock moved by %d ms between two looks at it", now_ms - before_ms)
            clients.shift_time(drift_ms)
            locks.shift_time(drift_ms)
        for report in self._node.store.take_reports():
            _log.warning("store: %s", report)
        for expired in clients.remove_expired():
            for member in expired:
                peer_log.write(
                    _log,
                    logging.WARNING,
                    member.remote,
                    "client %s (%s) was silent for too long",
                    member.client_id,
                    member.remote,
                )
            await asyncio.sleep(0)
        for _ in locks.forget_expired():
            await asyncio.sleep(0)

    async def apply_retention(self) -> None:
        """Applies the retention of single topics at once."""
        await self._retention.look()

    async def persist_offsets(self) -> None:
        await self._transactions.keep_offsets()
        await self._state.offsets.persist()
        await self._state.locks.keep()

    def _every(self, interval_s: float, work: Callable[[], Awaitable[object]]) -> None:
        async def repeat() -> None:
            while True:
                await asyncio.sleep(interval_s)
                try:
                    await work()
                except Exception:
                    # One failure, such as a full disk, must not end the housekeeping for good.
                    _log.exception("housekeeping failed and will be tried again")

        self._tasks.append(asyncio.create_task(repeat()))
