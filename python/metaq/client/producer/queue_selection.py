"""Which queue a message goes to, and which brokers are left alone for a while.

This module is the authority: it decides which brokers are avoided and for how long. `crates/client` applies
the same rule to the batches of `send_soon`, from the list that `Faults.left` gives: no Python runs per batch.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Collection, Iterator
from typing import Final

from metaq._core import tag_code
from metaq.client.session.routes import MASTER_ID, Queue, Route
from metaq.errors import NoRoute

AVOID_FIRST_S: Final = 1.0
AVOID_MAX_S: Final = 30.0


class Faults:
    """Brokers that failed lately. Each failure in a row doubles the time for which a broker is avoided."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[float, float]] = {}
        self.on_change: Callable[[], None] = lambda: None

    def failed(self, broker: str) -> None:
        _, before = self._until.get(broker, (0.0, AVOID_FIRST_S / 2))
        pause = min(before * 2, AVOID_MAX_S)
        self._until[broker] = (asyncio.get_running_loop().time() + pause, pause)
        self.on_change()

    def worked(self, broker: str) -> None:
        if self._until.pop(broker, None) is not None:
            self.on_change()

    def left(self) -> list[tuple[str, float]]:
        """Every broker that failed since it worked last, and for how many seconds more it is avoided."""
        now = asyncio.get_running_loop().time()
        return [(broker, max(until - now, 0.0)) for broker, (until, _) in self._until.items()]

    def avoided(self) -> set[str]:
        if not self._until:
            return set()
        now = asyncio.get_running_loop().time()
        return {broker for broker, (until, _) in self._until.items() if until > now}


class Picker:
    """Turns round through the queues of a topic, past the brokers that are avoided if others are left."""

    def __init__(self) -> None:
        self.faults = Faults()
        self._turns: dict[str, Iterator[int]] = {}

    def any(self, route: Route, tried: Collection[str] = ()) -> Queue:
        """The next queue, of another broker than those tried where there is one; raises NoRoute."""
        queues = writable(route)
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


def by_key(route: Route, key: str) -> Queue:
    """The same queue for the same key, and the one that Java's SelectMessageQueueByHash chooses."""
    queues = writable(route)
    return queues[abs(tag_code(key)) % len(queues)]


def given(route: Route, queue: Queue) -> Queue:
    """That queue, if it can be written to; raises NoRoute."""
    if queue in route.writable:
        return queue
    error = NoRoute(f"{route.topic} has no queue {queue.id} at {queue.broker} that can be written to")
    error.retriable = MASTER_ID not in route.brokers.get(queue.broker, {})
    raise error


def writable(route: Route) -> list[Queue]:
    """Raises NoRoute where there is none; another try is worth it where only a master is missing."""
    if not route.writable:
        error = NoRoute(f"no queue of {route.topic} can be written to")
        error.retriable = any(MASTER_ID not in addresses for addresses in route.brokers.values())
        raise error
    return route.writable
