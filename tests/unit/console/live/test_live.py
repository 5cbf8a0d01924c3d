"""Polls and looks in which a broker did not say everything: unknown figures are not zero."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from metaq.admin.aio import Admin
from metaq.admin.health.results import Health
from metaq.admin.results import BrokerFailure, GroupFigures, NameServer, TopicFigures, TopicOverview
from metaq.console.live.live import Live
from metaq.console.live.trends import UNKNOWN
from metaq.console.settings import ConsoleSettings
from tests.support.waiting import run

BROKERS = ("a", "b")
NOTES = ("a does not report everything in a list",)
AWAY = (BrokerFailure("b", "no answer"),)


class Cluster:
    """Stands in for the admin client and its parts."""

    def __init__(self) -> None:
        self.topics = self.groups = self.health = self
        self.group = GroupFigures("billing", "normal", BROKERS, None, 60, None, 1.0, enabled=False)
        self.topic = TopicFigures("orders", "normal", BROKERS, 8, 8, None, None, None, None, None, None)
        self.failures: tuple[BrokerFailure, ...] = ()
        self.asked: list[Mapping[str, Collection[str]]] = []

    async def check(self) -> Health:
        return Health("", (), (NameServer("h:1", None),), (), ())

    async def figures(self, *, one_by_one: bool) -> Any:
        # Both tables are read with the same call: the fields have the same names.
        assert not one_by_one
        return _Both((self.topic,), (self.group,), self.failures, NOTES, BROKERS)

    async def figures_by_name(self, brokers_of: Mapping[str, Collection[str]]) -> Any:
        self.asked.append(brokers_of)
        group = replace(self.group, lag=40, lag_ms=9_000, members=2, enabled=None)
        answered = tuple(broker for broker in BROKERS if broker not in {one.broker for one in AWAY})
        return _Both((self.topic,), (group,), AWAY, (), answered)


class _Both(TopicOverview):
    def __init__(self, topics: Any, groups: Any, failures: Any, missing: Any, brokers: Any) -> None:
        object.__setattr__(self, "groups", groups)
        super().__init__(topics, failures, missing, brokers)


class Watched:
    """Polls the cluster each ten seconds."""

    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster()
        self.now_ms = 1_800_000_000_000
        settings = ConsoleSettings("127.0.0.1:1", folder)
        self.live = Live(cast(Admin, self.cluster), settings, lambda: self.now_ms)

    async def poll(self, **figures: Any) -> None:
        self.now_ms += 10_000
        self.cluster.group = replace(self.cluster.group, **figures)
        await self.live.poll()

    def lags(self) -> list[float | None]:
        return self.live.history.series("group", "billing", "lag").values[-2:]


def test_a_lag_that_a_broker_does_not_report_is_a_gap(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    live = watched.live

    async def scenario() -> None:
        for lag in (60, 50, 40):
            await watched.poll(lag=lag)
        assert live.groups.value is not None and live.totals.value is not None
        assert live.groups.value.rows["billing"].trend.direction == "falling"
        assert live.totals.value.lag.whole == 40
        await watched.poll(lag=5, unreported=("b",))
        row = live.groups.value.rows["billing"]
        assert row.partial and row.missing == ("b",) and row.trend == UNKNOWN
        assert watched.lags() == [40, None]
        assert (live.totals.value.lag.value, live.totals.value.lag.is_partial) == (5, True)
        await watched.poll(lag=30, unreported=())
        assert not live.groups.value.rows["billing"].partial
        assert watched.lags() == [None, 30]

    run(scenario)


def test_a_look_at_one_row_knows_which_broker_it_lacks(tmp_path: Path) -> None:
    watched = Watched(tmp_path)

    async def scenario() -> None:
        await watched.poll()
        group = (await watched.live.look_at_groups(["billing", "missing"]))["billing"]
        assert (group.figures.lag, group.missing, group.partial) == (40, ("b",), True)
        assert group.figures.enabled is False, "known from the poll"
        topic = (await watched.live.look_at_topics(["orders"]))["orders"]
        assert topic.missing == ("b",)
        assert watched.cluster.asked == [{"billing": BROKERS}, {"orders": BROKERS}]
        assert watched.live.history.series("group", "billing", "lag_ms").values[-1] is None

    run(scenario)
