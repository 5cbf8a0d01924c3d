"""Selects the queue of a message, and avoids brokers that failed recently.

`session/broker_faults.py` decides which brokers are avoided and for how long. `crates/client` applies the
same rule to the batches of `send_soon`, from the list that `BrokerFaults.left` returns: no Python runs per
batch.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterator
from typing import Final

from metaq._core import tag_code
from metaq.client.session.broker_faults import BrokerFaults
from metaq.client.session.routes import Queue, Route
from metaq.errors import NoRoute

AVOID_MAX_S: Final = 4.0
"""A broker that comes back gets messages again after this time. Consumers avoid a node longer, because they
wait longer for its answer."""


class QueueSelector:
    """Takes turns through the queues of a topic, and skips avoided brokers while others are left."""

    def __init__(self) -> None:
        self.faults = BrokerFaults(AVOID_MAX_S)
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
    """Returns the queue of a sharding key, the same that Java's SelectMessageQueueByHash selects.

    The first message creates a topic on its own broker alone. So all keys of a topic that does not exist yet
    share one broker, and each key keeps its queue when the topic exists.
    """
    queues = writable_queues(route)
    if route.is_template:
        brokers = list(dict.fromkeys(queue.broker for queue in queues))
        broker = brokers[abs(tag_code(route.topic)) % len(brokers)]
        queues = [queue for queue in queues if queue.broker == broker]
    return queues[abs(tag_code(key)) % len(queues)]


def require_queue(route: Route, queue: Queue) -> Queue:
    """Returns the queue if it is writable. Raises NoRoute."""
    if queue in route.writable:
        return queue
    raise NoRoute(
        f"{route.topic} has no writable queue {queue.id} at {queue.broker}",
        retriable=route.may_lack_master(queue.broker),
    )


def writable_queues(route: Route) -> list[Queue]:
    """Returns the writable queues. Raises NoRoute, which is retriable if only a master is missing."""
    if not route.writable:
        raise NoRoute(
            f"{route.topic} has no writable queue",
            hint="its brokers may be read-only, or their masters may be away",
            retriable=any(map(route.may_lack_master, route.brokers)),
        )
    return route.writable
