"""Looks for queues without a commit stay bounded with very many groups and queues."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metaq._core import Clock
from metaq.broker.background import stuck_queues
from metaq.broker.background.stuck_queues import StuckQueues
from metaq.protocol.bodies import CONSUME_PASSIVELY, SubscriptionGroupConfig


class Group:
    consume_type = CONSUME_PASSIVELY
    broadcasting = False

    def __init__(self, name: str) -> None:
        self.name = name

    def client_ids(self) -> list[str]:
        return ["one"]


class Broker:
    """Many groups with members, each with messages that it has not committed."""

    def __init__(self, groups: int, queues: int) -> None:
        self.groups = [Group(f"g{number}") for number in range(groups)]
        self.queues = queues
        self.asked = 0

    def all_consumer_groups(self) -> list[Group]:
        return self.groups

    def get(self, group: str) -> SubscriptionGroupConfig:
        return SubscriptionGroupConfig(group_name=group)

    def unsettled(self, group: str, queues_max: int) -> list[tuple[str, int, int, int | None]]:
        self.asked += 1
        return [("t", queue, 10, 4) for queue in range(min(self.queues, queues_max))]


def watch(broker: Broker, clock: Clock) -> StuckQueues:
    parts: Any = broker
    return StuckQueues(parts, parts, parts, clock)


def test_ten_thousand_groups() -> None:
    clock, broker = Clock.manual(1_000_000), Broker(10_000, 1)
    looks = watch(broker, clock)
    asyncio.run(looks.look())
    assert looks.stuck() == []
    clock.advance_ms(60_000)
    asyncio.run(looks.look())
    found = looks.stuck()
    assert (len(found), broker.asked, looks.is_complete) == (10_000, 20_000, True)
    assert (found[0].group, found[0].topic, found[0].queues, found[0].messages) == ("g0", "t", (0,), 6)


def test_queues_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck_queues, "QUEUES_MAX", 500)
    clock, broker = Clock.manual(1_000_000), Broker(10, 3_000)
    looks = watch(broker, clock)
    asyncio.run(looks.look())
    clock.advance_ms(60_000)
    asyncio.run(looks.look())
    [found] = looks.stuck()
    assert (found.queue_count, len(found.queues), looks.is_complete) == (500, 64, False)
