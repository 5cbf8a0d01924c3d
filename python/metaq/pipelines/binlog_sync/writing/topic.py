"""The topic of the changes: created if it is missing, and with the same queues in every run."""

from __future__ import annotations

import time
from typing import Final

from metaq.cli.cluster import Cluster, ask, master_addresses, writable_queues
from metaq.client.session.routes import Queue
from metaq.errors import CommandError, MetaqError
from metaq.pipelines.binlog_sync.writing.state import QueueName

_READ_AND_WRITE: Final = 6
ROUTE_TIMEOUT_S: Final = 10.0


def find_queues(nameservers: str, topic: str) -> list[QueueName] | None:
    """Returns the writable queues in a fixed order; None if the topic does not exist. Raises MetaqError."""

    async def look(cluster: Cluster) -> list[QueueName] | None:
        route = await cluster.route(topic)
        if route is None:
            return None
        return sorted((queue.broker, queue.queue_id) for queue in writable_queues(route))

    return ask(nameservers, look)


def queues_without_head(nameservers: str, topic: str) -> list[QueueName]:
    """Returns the queues whose first messages have been deleted; raises MetaqError."""

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
    """Creates the topic on every broker, with ordered messages; raises MetaqError."""
    brokers = ask(
        nameservers,
        lambda cluster: cluster.create_topic(
            topic, queues=queues, permission=_READ_AND_WRITE, order=True, cluster=None
        ),
    )
    # Each broker reports it to the name servers a moment later.
    deadline = time.monotonic() + ROUTE_TIMEOUT_S
    while time.monotonic() < deadline:
        found = find_queues(nameservers, topic) or []
        if {broker for broker, _ in found} >= set(brokers):
            return found
        time.sleep(0.05)
    raise CommandError(
        f"{topic} was created, but the name server does not list it after {ROUTE_TIMEOUT_S:g} s"
    )


def queues_for(nameservers: str, topic: str, queues: int, before: list[QueueName] | None) -> list[QueueName]:
    """Returns the queues to use.

    The queues of the previous run stay, even while some of their brokers are away, because a row must not
    change its queue. If the topic has more queues now, these are used too.
    """
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
