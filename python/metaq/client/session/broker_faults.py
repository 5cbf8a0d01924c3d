"""Brokers that failed recently, which others should serve for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

AVOID_FIRST_S: Final = 1.0
AVOID_MAX_S: Final = 30.0


class BrokerFaults:
    """Brokers that failed recently. Each further failure doubles the time for which a broker is avoided.

    Producers count by the names of brokers, consumers by the addresses of single nodes.
    """

    def __init__(self, avoid_s_max: float = AVOID_MAX_S) -> None:
        self._avoid_s_max = avoid_s_max
        self._until: dict[str, tuple[float, float]] = {}
        """Broker → until when it is avoided, and how long the last pause was."""
        self.on_change: Callable[[], None] = lambda: None

    def failed(self, broker: str) -> None:
        _, before = self._until.get(broker, (0.0, AVOID_FIRST_S / 2))
        pause_s = min(before * 2, self._avoid_s_max)
        self._until[broker] = (asyncio.get_running_loop().time() + pause_s, pause_s)
        self.on_change()

    def worked(self, broker: str) -> None:
        if self._until.pop(broker, None) is not None:
            self.on_change()

    def left(self) -> list[tuple[str, float]]:
        """Returns each broker that has not worked since it failed, and for how long it is still avoided."""
        now = asyncio.get_running_loop().time()
        return [(broker, max(until - now, 0.0)) for broker, (until, _) in self._until.items()]

    def avoided(self) -> set[str]:
        if not self._until:
            return set()
        now = asyncio.get_running_loop().time()
        return {broker for broker, (until, _) in self._until.items() if until > now}
