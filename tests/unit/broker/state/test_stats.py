"""Rates and sums, computed from the growth of queues and offsets."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metaq._core import Clock, Listener, Store
from metaq.broker.state.stats import BROKER_PUT, GROUP_GET, TOPIC_PUT, Statistics
from metaq.protocol.bodies import BrokerStatsData
from metaq.protocol.commands.admin import ViewBrokerStatsData
from metaq.protocol.errors import Refused


class FakeListener:
    def __init__(self) -> None:
        self.counts = SimpleNamespace(messages_in=0, messages_out=0)

    def figures(self) -> SimpleNamespace:
        return self.counts


class FakeStore:
    def __init__(self) -> None:
        self.ends: dict[str, dict[int, int]] = {}
        self.found = 0

    def queue_ends(self) -> dict[str, dict[int, int]]:
        return self.ends

    def search_offset(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        return self.found


class Watch:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.store = FakeStore()
        self.listener = FakeListener()
        self.statistics = Statistics(
            cast(Listener, self.listener),
            cast(Store, self.store),
            clock,
            "cluster",
        )
        self.statistics.sample()

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds // 10):
            self.clock.advance_ms(10_000)
            self.statistics.sample()


@pytest.fixture
def watch(clock: Clock) -> Watch:
    return Watch(clock)


def test_messages_of_a_topic_over_three_windows(watch: Watch) -> None:
    watch.store.ends = {"orders": {0: 30, 1: 30}}
    watch.pass_time(10)
    data = watch.statistics.data(TOPIC_PUT, "orders")
    assert data is not None
    assert (data.stats_minute.sum, data.stats_minute.tps) == (60, 6.0)
    watch.pass_time(600)
    data = watch.statistics.data(TOPIC_PUT, "orders")
    assert data is not None
    assert data.stats_minute.sum == 0, "the minute is over"
    assert data.stats_hour.sum == data.stats_day.sum == 60
    watch.pass_time(2 * 3600)
    data = watch.statistics.data(TOPIC_PUT, "orders")
    assert data is not None and (data.stats_hour.sum, data.stats_day.sum) == (0, 60)


def test_a_queue_seen_for_the_first_time_counts_what_is_new_in_it(watch: Watch) -> None:
    watch.store.ends, watch.store.found = {"old": {0: 1_000}}, 995
    watch.pass_time(10)
    data = watch.statistics.data(TOPIC_PUT, "old")
    assert data is not None and data.stats_minute.sum == 5


def test_what_a_group_consumed_and_not_what_it_skipped(watch: Watch) -> None:
    watch.statistics.count_committed({"orders@billing": {0: 100}})
    watch.pass_time(10)
    assert watch.statistics.data(GROUP_GET, "orders@billing") is None, "where it began is not known"
    watch.statistics.count_committed({"orders@billing": {0: 150}})
    watch.pass_time(10)
    assert watch.statistics.per_second(GROUP_GET, "orders@billing") == 5.0
    watch.statistics.moved("orders", "billing", {0: 9_000})
    watch.statistics.count_committed({"orders@billing": {0: 9_000}})
    watch.pass_time(10)
    data = watch.statistics.data(GROUP_GET, "orders@billing")
    assert data is not None and data.stats_minute.sum == 50
    watch.statistics.count_committed({"orders@billing": {0: 1}})
    watch.pass_time(10)
    data = watch.statistics.data(GROUP_GET, "orders@billing")
    assert data is not None and data.stats_minute.sum == 50, "going back consumes nothing"
    watch.statistics.count_committed({"orders@billing": {}})
    watch.pass_time(10)
    assert watch.statistics.data(GROUP_GET, "orders@billing") is None, "its offsets are gone"


def test_a_topic_that_is_gone_is_forgotten(watch: Watch) -> None:
    watch.store.ends = {"orders": {0: 10}}
    watch.pass_time(10)
    watch.store.ends = {}
    watch.pass_time(10)
    assert watch.statistics.data(TOPIC_PUT, "orders") is None


def test_the_broker_as_a_whole_and_its_days(watch: Watch) -> None:
    watch.listener.counts = SimpleNamespace(messages_in=100, messages_out=40)
    watch.pass_time(10)
    assert watch.statistics.broker_triple(BROKER_PUT).split()[0] == "10.0"
    seconds_left = 86_400 - sum(
        value * factor
        for value, factor in zip(time.localtime(watch.clock.now_ms() / 1000)[3:6], (3600, 60, 1), strict=True)
    )
    watch.clock.advance_ms(seconds_left * 1000 + 1_000)
    watch.statistics.sample()
    assert watch.statistics.mornings == {
        "put_yesterday": 0,
        "put_today": 100,
        "get_yesterday": 0,
        "get_today": 40,
    }
    watch.clock.advance_ms(86_400_000)
    watch.statistics.sample()
    assert watch.statistics.mornings["put_yesterday"] == 100


def test_what_is_not_kept_is_named(watch: Watch, request_with: Any) -> None:
    watch.store.ends = {"orders": {0: 10}}
    watch.pass_time(10)
    asked = ViewBrokerStatsData(stats_name=TOPIC_PUT, stats_key="orders")
    answer = watch.statistics.view_broker_stats_data(asked, request_with())
    assert BrokerStatsData.decode(answer.body).stats_minute.sum == 10
    for name, key, why in (("TOPIC_PUT_SIZE", "orders", "are not kept"), (TOPIC_PUT, "x", "know nothing")):
        with pytest.raises(Refused, match=why):
            asked = ViewBrokerStatsData(stats_name=name, stats_key=key)
            watch.statistics.view_broker_stats_data(asked, request_with())


def test_the_rates_of_all_topics_and_groups(watch: Watch) -> None:
    assert watch.statistics.rates() is None, "one sample has no rate"
    watch.statistics.count_committed({"orders@billing": {0: 0}, "orders@audit": {0: 0}})
    watch.pass_time(10)
    watch.store.ends = {"orders": {0: 30, 1: 30}}
    watch.statistics.count_committed({"orders@billing": {0: 20}, "orders@audit": {0: 10}})
    watch.pass_time(10)
    rates = watch.statistics.rates()
    assert rates is not None
    assert rates.topic_in == {"orders": 6.0}
    assert rates.pair_out == {"orders@billing": 2.0, "orders@audit": 1.0}
    assert rates.topic_out == {"orders": 3.0}
    assert watch.statistics.rates() is rates, "computed once per sample"
    watch.pass_time(10)
    assert watch.statistics.rates() is not rates


def test_nothing_is_remembered_of_topics_that_are_gone(watch: Watch) -> None:
    for number in range(100):
        watch.store.ends = {f"t{number}": {0: 5}}
        watch.pass_time(10)
    assert watch.statistics._ends.keys() == {"t99"}
    assert (TOPIC_PUT, "t98") not in watch.statistics._series
