"""Sums over a cluster: unknown parts are never added as zero."""

from __future__ import annotations

from metaq.admin.health.results import BrokerHealth
from metaq.admin.results import BrokerFailure, GroupFigures
from metaq.console.live.tables import BrokerRow, GroupRow, GroupTable, TopicTable
from metaq.console.live.totals import ClusterTotals, totals_of


def broker(name: str, rate: float | None, error: str | None = None, *, is_gone: bool = False) -> BrokerRow:
    health = BrokerHealth(name, "c", 0, "master", f"{name}:1", messages_in_per_second=rate)
    return BrokerRow(health, 1 if error else None, error, is_gone)


def totals(*brokers: BrokerRow, groups: GroupTable | None = None) -> ClusterTotals:
    return totals_of({row.name: row for row in brokers}, None, groups, None, is_listed=True)


def group(name: str, lag: int | None, lag_ms: int | None = None, stale_ms: int | None = None) -> GroupRow:
    return GroupRow(GroupFigures(name, "normal", ("a",), 1, lag, lag_ms, 0.0), stale_ms)


def table(*rows: GroupRow) -> GroupTable:
    return GroupTable(rows={row.name: row for row in rows})


def test_a_broker_that_does_not_answer_makes_a_sum_partial() -> None:
    found = totals(broker("a", 5.0), broker("b", 7.0)).in_per_second
    assert (found.value, found.whole) == (12.0, 12.0)
    found = totals(broker("a", 5.0), broker("b", 7.0, "refused")).in_per_second
    assert (found.value, found.is_partial, found.whole) == (5.0, True, None)
    found = totals(broker("b", 7.0, "refused")).in_per_second
    assert found.value is None


def test_a_broker_that_left_the_cluster_takes_no_part() -> None:
    found = totals(broker("a", 5.0), broker("b", 7.0, "gone", is_gone=True))
    assert found.in_per_second.whole == 5.0
    assert (found.brokers, found.brokers_answering) == (2, 1)


def test_lags_of_groups() -> None:
    found = totals(groups=table(group("g", 5, 100), group("h", 7, 900), group("new", None)))
    assert (found.lag.whole, found.lag_ms, found.groups) == (12, 900, 3)
    found = totals(groups=table(group("g", 5, 100), group("h", 7, 900, stale_ms=1)))
    assert (found.lag.value, found.lag.is_partial, found.lag_ms) == (12, True, 100)


def test_a_broker_that_did_not_answer_may_have_more() -> None:
    away = (BrokerFailure("b", "refused"),)
    silent = totals(groups=GroupTable(away))
    assert (silent.lag.value, silent.lag.is_partial, silent.lag_ms) == (None, True, None)
    calm = totals(groups=GroupTable(away, rows={"g": group("g", 0)}))
    assert (calm.lag.value, calm.lag.whole, calm.lag_ms) == (0, None, None)
    letters = totals_of({}, TopicTable(away), None, {}, is_listed=True).dead_letters
    assert (letters.value, letters.is_partial) == (None, True)


def test_a_lag_that_a_broker_did_not_report_makes_the_sum_partial() -> None:
    unknown = GroupRow(GroupFigures("h", "normal", ("b",), None, None, None, None), missing=("b",))
    found = totals(groups=table(group("g", 5, 100), unknown)).lag
    assert (found.value, found.is_partial) == (5, True)


def test_unknown_is_not_zero() -> None:
    found = totals()
    assert (found.topics, found.groups, found.lag.value, found.dead_letters.value) == (None, None, None, None)
    assert totals(groups=table(group("g", None))).lag.value is None
    assert totals(groups=table(group("g", None))).lag_ms is None
    nothing = totals(groups=table())
    assert (nothing.lag.whole, nothing.lag_ms) == (0, 0)
    assert totals(groups=table(group("g", 0))).lag_ms == 0
