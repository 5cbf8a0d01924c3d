"""The topic that changes go to: made where it is missing, and the same queues with every run."""

from __future__ import annotations

import time
from typing import Final

from metaq.cli.cluster import Cluster, ask, master_addresses, writable_queues
from metaq.client.session.routes import Queue
from metaq.errors import CommandError, MetaqError
from metaq.pipelines.binlog_sync.state import QueueName

_READ_AND_WRITE: Final = 6
ROUTE_TIMEOUT_S: Final = 10.0


def find_queues(nameservers: str, topic: str) -> list[QueueName] | None:
    """In an order that is always the same; None where there is no such topic. Raises MetaqError."""

    async def look(cluster: Cluster) -> list[QueueName] | None:
        route = await cluster.route(topic)
        if route is None:
            return None
        return sorted((queue.broker, queue.queue_id) for queue in writable_queues(route))

    return ask(nameservers, look)


def lost_heads(nameservers: str, topic: str) -> list[QueueName]:
    """Queues whose first messages are not kept any more; raises MetaqError."""

    async def look(cluster: Cluster) -> list[QueueName]:
        route = await cluster.route_required(topic)
        stats = [await cluster.topic_stats(address, topic) for address in master_addresses(route).values()]
        return sorted(
            (queue.broker_name, queue.queue_id)
            for table in stats
            for queue, offsets in table.offset_table.items()
            if offsets.min_offset > 0
        )

    return ask(nameservers, look)


def make_topic(nameservers: str, topic: str, queues: int) -> list[QueueName]:
    """On every broker, as one whose messages are in order; raises MetaqError."""
    brokers = ask(
        nameservers,
        lambda cluster: cluster.create_topic(
            topic, queues=queues, permission=_READ_AND_WRITE, order=True, cluster=None
        ),
    )
    # Name servers hear of it a moment later, from each broker.
    deadline = time.monotonic() + ROUTE_TIMEOUT_S
    while time.monotonic() < deadline:
        found = find_queues(nameservers, topic) or []
        if {broker for broker, _ in found} >= set(brokers):
            return found
        time.sleep(0.05)
    raise CommandError(f"{topic} was made, but the name server does not tell of it")


def queues_for(nameservers: str, topic: str, queues: int, before: list[QueueName] | None) -> list[QueueName]:
    """The queues to use. Those of the run before stay, also while some of their brokers are away, because a
    row must not change its queue; only where the topic has got more are these used too."""
    try:
        found = find_queues(nameservers, topic)
        if found is None and before is None:
            found = make_topic(nameservers, topic, queues)
    except MetaqError:
        if before is None:
            raise
        return before
    if before is not None and (found is None or set(found) <= set(before)):
        return before
    if not found:
        raise CommandError(f"no queue of {topic} can be written to", hint="is its broker running?")
    return sorted({*found, *(before or ())})


def as_queues(topic: str, names: list[QueueName]) -> list[Queue]:
    return [Queue(topic, broker, number) for broker, number in names]
