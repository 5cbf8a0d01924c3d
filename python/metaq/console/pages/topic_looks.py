"""Queues, settings, groups and producers of a topic, as pages ask for them.

A broker that does not answer any more keeps its rows, with the time when they were true.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from starlette.requests import Request

from metaq.admin.results import BrokerFailure, ConnectedClients, QueueState, Topic, TopicSettings
from metaq.console.console import console_of
from metaq.console.live.latest import latest_of
from metaq.console.live.parts import Part
from metaq.console.live.tables import TopicRow


@dataclass(frozen=True, slots=True)
class TopicLook:
    """The queues and settings of a topic."""

    settings: tuple[TopicSettings, ...]
    queues: tuple[QueueState, ...]
    failures: tuple[BrokerFailure, ...]
    taken_ms: int
    stale_ms: Mapping[str, int] = field(default_factory=dict)
    """When the rows of brokers that do not answer were true, by broker."""


async def look_at_topic(request: Request, topic: str, row: TopicRow | None) -> Part[TopicLook]:
    """Returns the queues and settings of a topic on each broker."""
    admin = console_of(request).admin
    away = () if row is None else row.missing

    async def ask(before: TopicLook | None) -> TopicLook:
        return joined(before, await admin.topics.show(topic), away, time.time_ns() // 1_000_000)

    return await latest_of(request).ask(("topic", topic), ask)


async def look_at_groups(request: Request, topic: str) -> Part[tuple[str, ...]]:
    """Returns the names of the groups that consume a topic."""
    admin = console_of(request).admin

    async def ask(before: tuple[str, ...] | None) -> tuple[str, ...]:
        return await admin.topics.groups(topic)

    return await latest_of(request).ask(("topic-groups", topic), ask)


async def look_at_producers(request: Request) -> Part[ConnectedClients]:
    """Returns the producers of the cluster. All topics share the answer."""
    admin = console_of(request).admin

    async def ask(before: ConnectedClients | None) -> ConnectedClients:
        return await admin.brokers.clients(kind="producer")

    return await latest_of(request).ask(("producers",), ask)


def joined(before: TopicLook | None, found: Topic, away: Collection[str], now_ms: int) -> TopicLook:
    """Returns what was found, with the last rows of the brokers that are away."""
    answered = {one.broker for one in found.settings}
    silent = {*away, *(failure.broker for failure in found.failures)} - answered
    if before is None or not silent:
        return TopicLook(found.settings, found.queues, found.failures, now_ms)
    settings = (*found.settings, *(one for one in before.settings if one.broker in silent))
    queues = (*found.queues, *(one for one in before.queues if one.queue.broker in silent))
    return TopicLook(
        tuple(sorted(settings, key=lambda one: one.broker)),
        tuple(sorted(queues, key=lambda one: one.queue)),
        found.failures,
        now_ms,
        {broker: before.stale_ms.get(broker, before.taken_ms) for broker in silent},
    )
