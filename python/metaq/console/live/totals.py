"""Sums over the cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from metaq.admin.results import BrokerFailure
from metaq.console.live.tables import BrokerRow, DeadLetterRow, GroupTable, TopicTable


@dataclass(frozen=True, slots=True)
class Total:
    """A sum of the values that are known."""

    value: float | None
    """None if none of them is known."""
    is_partial: bool
    """Whether one is not known, or not any more: then the true sum may be larger."""

    @property
    def whole(self) -> float | None:
        """The sum if all values are known."""
        return None if self.is_partial else self.value


@dataclass(frozen=True, slots=True)
class ClusterTotals:
    """The cluster in a few numbers. Topics, groups and dead letters are those of users."""

    brokers: int | None
    """None if no name server answers, and no broker has been seen before."""
    brokers_answering: int
    topics: int | None
    groups: int | None
    in_per_second: Total
    out_per_second: Total
    lag: Total
    lag_ms: int | None
    """The longest time that a message waits for a group; 0 if none waits, None if that is not known."""
    dead_letters: Total


def totals_of(
    brokers: Mapping[str, BrokerRow],
    topics: TopicTable | None,
    groups: GroupTable | None,
    dead_letters: Mapping[str, DeadLetterRow] | None,
    *,
    is_listed: bool,
) -> ClusterTotals:
    """Adds up the rows. `is_listed` says whether a name server has listed the brokers."""
    # Brokers that are not registered any more take no part in the traffic.
    masters = [row for row in brokers.values() if row.health.role == "master" and not row.is_gone]
    users = [] if groups is None else [row for row in groups.rows.values() if row.kind == "normal"]
    # A group that has committed nothing has no lag, unless a broker did not say so.
    behind = [row for row in users if row.figures.lag is not None or row.missing]
    waits = [row.figures.lag_ms for row in behind if row.figures.lag_ms is not None and row.stale_ms is None]
    lag = _total(
        ((row.figures.lag, row.stale_ms is None and not row.partial) for row in behind),
        is_known=groups is not None and bool(behind or not users),
        failures=groups.failures if groups is not None else (),
    )
    letters = () if dead_letters is None else dead_letters.values()
    return ClusterTotals(
        brokers=len(brokers) if brokers or is_listed else None,
        brokers_answering=sum(row.error is None for row in brokers.values()),
        topics=None if topics is None else sum(row.kind == "normal" for row in topics.rows.values()),
        groups=None if groups is None else len(users),
        in_per_second=_total(
            ((None if row.error else row.health.messages_in_per_second, True) for row in masters),
            is_known=is_listed,
        ),
        out_per_second=_total(
            ((None if row.error else row.health.messages_out_per_second, True) for row in masters),
            is_known=is_listed,
        ),
        lag=lag,
        lag_ms=max(waits) if waits else 0 if lag.whole == 0 else None,
        dead_letters=_total(
            ((row.waiting, row.stale_ms is None and not row.partial) for row in letters),
            is_known=dead_letters is not None,
            failures=topics.failures if topics is not None else (),
        ),
    )


def _total(
    values: Iterable[tuple[float | None, bool]],
    *,
    is_known: bool = True,
    failures: Collection[BrokerFailure] = (),
) -> Total:
    """Adds up values, each with whether it is current and complete. An empty sum is 0 if that is known and
    every broker answered: one that did not may have more."""
    found = list(values)
    known = [value for value, _ in found if value is not None]
    is_whole = is_known and not failures
    is_partial = not is_whole or any(value is None or not is_current for value, is_current in found)
    is_sum = is_known and bool(known or (not found and is_whole))
    return Total(sum(known) if is_sum else None, is_partial)
