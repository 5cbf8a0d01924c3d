"""Selects the queue of a message, and avoids brokers that failed recently.

This module decides which brokers are avoided and for how long. `crates/client` applies the same rule to the
batches of `send_soon`, from the list that `Faults.left` returns: no Python runs per batch.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Collection, Iterator
from typing import Final

from metaq._core import tag_code
from metaq.client.session.routes import Queue, Route
from metaq.errors import NoRoute
from metaq.protocol.names import MASTER_ID

AVOID_FIRST_S: Final = 1.0
AVOID_MAX_S: Final = 30.0


class BrokerFaults:
    """Brokers that failed recently. Each further failure doubles the time for which a broker is avoided."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[float, float]] = {}
        """Broker → until when it is avoided, and how long the last pause was."""
        self.on_change: Callable[[], None] = lambda: None

    def failed(self, broker: str) -> None:
        _, before = self._until.get(broker, (0.0, AVOID_FIRST_S / 2))
        pause_s = min(before * 2, AVOID_MAX_S)
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


class QueueSelector:
    """Takes turns through the queues of a topic, and skips avoided brokers while others are left."""

    def __init__(self) -> None:
        self.faults = BrokerFaults()
        self._turns: dict[str, Iterator[int]] = {}

    def next(self, route: Route, tried: Collection[str] = ()) -> Queue:
        """Returns the next queue, if possible of a broker that was not tried yet. Raises NoRoute."""
        queues = writable_queues(route)
        turn = self._turns.get(route.topic)
        if turn is None:
            turn = self._turns[route.topic] = itertools.count(random.randrange(1 << 16))
        avoided = self.faults.avoided()
        for unwanted in ({*tried, *avoided}, avoided, set(tried)):
            if not unwanted:
                break
            left = [queue for queue in queues if queue.broker not in unwanted]
            if left:
                queues = left
                break
        return queues[next(turn) % len(queues)]


def queue_of_key(route: Route, key: str) -> Queue:
    """Returns the queue of a sharding key, the same that Java's SelectMessageQueueByHash selects."""
    queues = writable_queues(route)
    return queues[abs(tag_code(key)) % len(queues)]


def require_queue(route: Route, queue: Queue) -> Queue:
    """Returns the queue if it is writable. Raises NoRoute."""
    if queue in route.writable:
        return queue
    raise NoRoute(
        f"{route.topic} has no writable queue {queue.id} at {queue.broker}",
        retriable=MASTER_ID not in route.brokers.get(queue.broker, {}),
    )


def writable_queues(route: Route) -> list[Queue]:
    """Returns the writable queues. Raises NoRoute, which is retriable if only a master is missing."""
    if not route.writable:
        raise NoRoute(
            f"{route.topic} has no writable queue",
            hint="its brokers may be read-only, or their masters may be away",
            retriable=any(MASTER_ID not in addresses for addresses in route.brokers.values()),
        )
    return route.writable
