"""A consumer that is asked for its subscriptions: its answer has the limits of a heartbeat."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from metaq._core import Clock
from metaq.broker.background.subscription_inquiry import Inquiry, RunningSubscriptions
from metaq.broker.state.client_limits import SUBSCRIPTIONS_PER_GROUP_MAX
from metaq.broker.state.clients import Clients
from metaq.broker.state.consumer_group import Member
from metaq.broker.state.filters import Filters
from metaq.protocol.bodies import ConsumerData, SubscriptionData
from metaq.protocol.command import Command
from metaq.protocol.handling.askers import Peer
from metaq.protocol.reply import Reply


class LookedAt(Filters):
    """Counts the filters that it is asked to compile."""

    looks = 0

    async def compile_all_apart(self, peer: Peer, subscriptions: Iterable[SubscriptionData]) -> None:
        LookedAt.looks += len(list(subscriptions))


@pytest.mark.parametrize(
    ("entries", "looks", "version"),
    [(SUBSCRIPTIONS_PER_GROUP_MAX, SUBSCRIPTIONS_PER_GROUP_MAX, 2), (SUBSCRIPTIONS_PER_GROUP_MAX + 1, 0, 1)],
)
def test_an_answer_with_too_many_subscriptions_is_not_looked_at(
    entries: int, looks: int, version: int
) -> None:
    clock = Clock.manual(1_000_000)
    clients = Clients(clock, 120.0, lambda group, change: None)
    known = [SubscriptionData(topic="t", sub_version=1)]
    data = ConsumerData(group_name="g", subscription_data_set=known)
    clients.put_consumer(data, Member(1, "c", 0, 513, "h:1", clock.now_ms()))

    async def answer(connection: int, command: Command) -> Reply:
        told: list[Any] = [SubscriptionData(topic="t", sub_version=2)] * entries
        return Reply(0, None, {}, RunningSubscriptions(subscription_set=told).encode())

    async def ask() -> None:
        await Inquiry(clients, clock, answer, LookedAt()).ask(1, "g", "t", 2)

    LookedAt.looks = 0
    asyncio.run(ask())
    group = clients.consumer_group("g")
    assert group is not None
    assert (LookedAt.looks, group.subscriptions["t"].sub_version) == (looks, version)
