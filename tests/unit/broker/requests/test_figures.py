"""Figures of all topics and groups, in pages."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from metaq._core import BrokerPlane, Store
from metaq.broker.requests import figures, spaced_work
from metaq.broker.requests.consumption import ConsumptionParts
from metaq.broker.requests.figures import Figures
from metaq.broker.state.clients import Clients
from metaq.broker.state.consumer_group import Member
from metaq.broker.state.stats import Rates, Statistics
from metaq.protocol.bodies import ConsumerData, SubscriptionData, SubscriptionGroupConfig, TopicConfig
from metaq.protocol.commands.figures import (
    GetGroupFigures,
    GetTopicFigures,
    GroupLine,
    GroupLines,
    TopicLine,
    TopicLines,
)
from metaq.protocol.errors import Refused
from metaq.work_pools import WorkPools
from tests.unit.broker.conftest import NOW_MS


class FakePlane:
    """It has no `offsets()`: nothing here may copy the offsets of all groups."""

    def __init__(self) -> None:
        self.table: dict[str, dict[int, int]] = {}

    def offsets_of(self, group: str, topic: str) -> dict[int, int]:
        return self.table.get(f"{topic}@{group}", {})

    def topics_of_group(self, group: str) -> list[str]:
        return sorted(key.partition("@")[0] for key in self.table if key.endswith(f"@{group}"))


class FakeStore:
    """Queue → its first and its next message. A message was stored as many seconds ago as it is from 100."""

    def __init__(self) -> None:
        self.queues: dict[tuple[str, int], tuple[int, int]] = {}

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self.queues.get((topic, queue_id), (0, 0))[0]

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self.queues.get((topic, queue_id), (0, 0))[1]

    def store_time_ms(self, topic: str, queue_id: int, queue_offset: int) -> int:
        first, end = self.queues.get((topic, queue_id), (0, 0))
        return NOW_MS - 1_000 * (100 - queue_offset) if first <= queue_offset < end else -1

    def queue_entries(
        self, topic: str, queue_id: int, queue_offset: int, count_max: int
    ) -> list[tuple[int, int, int]]:
        """A message has as many bytes as its offset says."""
        first, end = self.queues.get((topic, queue_id), (0, 0))
        found = range(max(first, queue_offset), min(end, queue_offset + count_max))
        return [(0, offset, 0) for offset in found]


class FakeStatistics:
    known: Rates | None = None

    def rates(self) -> Rates | None:
        return self.known


class Desk:
    def __init__(self, tables: Any) -> None:
        self.topics, self.groups = tables.topics, tables.groups
        self.clients = Clients(tables.clock, 120.0, lambda group, change: None)
        self.plane, self.store, self.statistics = FakePlane(), FakeStore(), FakeStatistics()
        self.figures = Figures(
            ConsumptionParts(
                broker_name="b",
                clock=tables.clock,
                plane=cast(BrokerPlane, self.plane),
                store=cast(Store, self.store),
                topics=tables.topics,
                groups=tables.groups,
                clients=self.clients,
                statistics=cast(Statistics, self.statistics),
                address="127.0.0.1:10911",
                pools=WorkPools(),
            )
        )

    def make(self, *topics: str, queues: int = 2) -> None:
        for topic in topics:
            self.topics.put(TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues))

    def make_groups(self, *groups: str) -> None:
        for group in groups:
            self.groups.put(SubscriptionGroupConfig(group_name=group))

    def ask_topics(self, request: Any, **fields: Any) -> TopicLines:
        answer = asyncio.run(self.figures.get_topic_figures(GetTopicFigures(**fields), request))
        return TopicLines.decode(answer.body)

    def ask_groups(self, request: Any, **fields: Any) -> GroupLines:
        answer = asyncio.run(self.figures.get_group_figures(GetGroupFigures(**fields), request))
        return GroupLines.decode(answer.body)


@pytest.fixture
def desk(tables: Any) -> Desk:
    return Desk(tables)


def test_a_topic_with_messages_and_one_without(desk: Desk, request_with: Any) -> None:
    desk.make("orders", "empty")
    desk.store.queues = {("orders", 0): (10, 30), ("orders", 1): (20, 25)}
    [orders] = desk.ask_topics(request_with(), topic="orders").topics
    assert orders == TopicLine(
        name="orders",
        read_queues=2,
        write_queues=2,
        permission=6,
        messages=25,
        # The messages of queue 0 are estimated from eight at each end, the five of queue 1 are counted.
        size_bytes=round(20 * (sum(range(10, 18)) + sum(range(22, 30))) / 16) + sum(range(20, 25)),
        first_stored_ms=NOW_MS - 90_000,
        last_stored_ms=NOW_MS - 71_000,
    )
    desk.statistics.known = Rates({"orders": 3.0}, {"orders": 2.5}, {})
    [orders] = desk.ask_topics(request_with(), topic="orders").topics
    assert (orders.in_per_second, orders.out_per_second) == (3.0, 2.5)
    [empty] = desk.ask_topics(request_with(), topic="empty").topics
    assert (empty.messages, empty.first_stored_ms, empty.in_per_second) == (0, None, 0.0)
    with pytest.raises(Refused, match="topic nowhere does not exist"):
        desk.ask_topics(request_with(), topic="nowhere")


def test_all_topics_come_in_pages(desk: Desk, request_with: Any) -> None:
    desk.make("c", "a", "b")
    known = sorted(config.topic_name for config in desk.topics)
    seen: list[str] = []
    pages = 0
    while True:
        page = desk.ask_topics(request_with(), after=seen[-1] if seen else "", count=2)
        seen += [line.name for line in page.topics]
        pages += 1
        if page.is_last:
            break
        assert len(page.topics) == 2
    assert seen == known
    assert pages == (len(known) + 1) // 2
    assert desk.ask_topics(request_with(), after="~").topics == []
    assert len(desk.ask_topics(request_with(), count=-5).topics) == 1


def test_a_page_ends_where_there_are_too_many_queues(
    desk: Desk, request_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "QUEUES_MAX", 4)
    desk.make("zz_1", "zz_2", "zz_3", queues=3)
    first = desk.ask_topics(request_with(), after="zz")
    assert ([line.name for line in first.topics], first.is_last) == (["zz_1", "zz_2"], False)
    second = desk.ask_topics(request_with(), after="zz_2")
    assert ([line.name for line in second.topics], second.is_last) == (["zz_3"], True)


def test_the_lag_of_a_group(desk: Desk, request_with: Any) -> None:
    desk.make("orders", "history")
    desk.make_groups("billing", "idle")
    desk.store.queues = {("orders", 0): (10, 30), ("orders", 1): (0, 5), ("history", 0): (0, 50)}
    desk.plane.table = {"orders@billing": {0: 28, 1: 5}, "gone@billing": {0: 1}}
    desk.statistics.known = Rates({}, {}, {"orders@billing": 1.5, "orders@idle": 9.0})
    [billing] = desk.ask_groups(request_with(), group="billing").groups
    expected = GroupLine(name="billing", topics=1, lag=2, lag_ms=72_000, out_per_second=1.5, enabled=True)
    assert billing == expected
    desk.plane.table["history@billing"] = {}
    [billing] = desk.ask_groups(request_with(), group="billing").groups
    assert (billing.topics, billing.lag, billing.lag_ms) == (2, 52, 100_000)
    subscribed = ConsumerData(group_name="billing", subscription_data_set=[SubscriptionData(topic="orders")])
    for connection in (1, 2):
        desk.clients.put_consumer(subscribed, Member(connection, f"c{connection}", 0, 513, "h:1", 0))
    [billing] = desk.ask_groups(request_with(), group="billing").groups
    assert (billing.members, billing.lag) == (2, 2), "a topic that is no longer subscribed to is not backlog"
    [idle] = desk.ask_groups(request_with(), group="idle").groups
    assert (idle.members, idle.lag, idle.lag_ms) == (0, None, None)
    with pytest.raises(Refused, match="group nowhere does not exist"):
        desk.ask_groups(request_with(), group="nowhere")


def test_messages_that_aged_out_do_not_count_as_waiting_time(desk: Desk, request_with: Any) -> None:
    desk.make("orders")
    desk.make_groups("late")
    desk.store.queues = {("orders", 0): (10, 30)}
    desk.plane.table = {"orders@late": {0: 3}}
    [late] = desk.ask_groups(request_with(), group="late").groups
    assert (late.lag, late.lag_ms) == (27, 90_000)


def test_all_groups_come_in_pages(desk: Desk, request_with: Any) -> None:
    desk.make_groups("zz_1", "zz_2", "zz_3")
    first = desk.ask_groups(request_with(), after="zz", count=2)
    assert ([line.name for line in first.groups], first.is_last) == (["zz_1", "zz_2"], False)
    second = desk.ask_groups(request_with(), after="zz_2", count=2)
    assert ([line.name for line in second.groups], second.is_last) == (["zz_3"], True)


def test_rates_are_unknown_before_two_samples(desk: Desk, request_with: Any) -> None:
    desk.make("orders")
    desk.make_groups("billing")
    assert desk.ask_topics(request_with(), topic="orders").topics[0].in_per_second is None
    assert desk.ask_groups(request_with(), group="billing").groups[0].out_per_second is None


def test_the_event_loop_runs_while_a_page_is_made(
    desk: Desk, request_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.make(*(f"topic-{number:03}" for number in range(200)))
    desk.make_groups(*(f"group-{number:03}" for number in range(200)))
    pauses: list[int] = []
    monkeypatch.setattr(spaced_work, "let_event_loop_run", lambda: pauses.append(threading.get_ident()))
    assert len(desk.ask_topics(request_with()).topics) >= 200
    assert len(pauses) >= 200 / spaced_work.ITEMS_AT_ONCE
    pauses.clear()
    assert len(desk.ask_groups(request_with()).groups) >= 200
    assert len(pauses) >= 200 / spaced_work.ITEMS_AT_ONCE
    assert threading.get_ident() not in pauses, "the work is done on another thread"
