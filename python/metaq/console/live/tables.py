"""Rows of topics, groups, brokers and dead letters.

A row outlives the broker that it came from: it keeps its last values, and `stale_ms` says when they were
true. A row that some of its brokers did not contribute to is `partial`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Self, TypeVar

from metaq.admin.health.results import BrokerHealth, Health
from metaq.admin.health.state import NOT_REGISTERED
from metaq.admin.results import BrokerFailure, GroupFigures, TopicFigures
from metaq.console.live.trends import UNKNOWN, Trend
from metaq.protocol.names import DEAD_LETTER_PREFIX

KEPT_MS: Final = 24 * 3_600_000
"""How long rows of a broker stay that is away."""

Column = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class TopicRow:
    """One topic."""

    figures: TopicFigures
    stale_ms: int | None = None
    """None if the figures are current; otherwise when they were true."""
    missing: tuple[str, ...] = ()
    """Brokers that have the topic, or may have it, and did not answer."""

    COLUMNS: ClassVar[Mapping[str, Column]] = {
        "name": lambda row: row.figures.name,
        "kind": lambda row: row.figures.kind,
        "queues": lambda row: row.figures.read_queues,
        "messages": lambda row: row.figures.messages,
        "size": lambda row: row.figures.size_bytes,
        # The older, the more.
        "oldest": lambda row: None if row.figures.first_stored_ms is None else -row.figures.first_stored_ms,
        "in": lambda row: row.figures.messages_in_per_second,
        "out": lambda row: row.figures.messages_out_per_second,
    }

    @property
    def name(self) -> str:
        return self.figures.name

    @property
    def kind(self) -> str:
        return self.figures.kind

    @property
    def partial(self) -> bool:
        return bool(self.missing) and self.stale_ms is None


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One group."""

    figures: GroupFigures
    stale_ms: int | None = None
    """None if the figures are current; otherwise when they were true."""
    missing: tuple[str, ...] = ()
    """Brokers that have the group, or may have it, and did not answer."""
    trend: Trend = UNKNOWN

    COLUMNS: ClassVar[Mapping[str, Column]] = {
        "name": lambda row: row.figures.name,
        "kind": lambda row: row.figures.kind,
        "members": lambda row: row.figures.members,
        "lag": lambda row: row.figures.lag,
        # Nothing waits: that is known, and better than any wait.
        "lag_ms": lambda row: 0 if row.figures.lag == 0 else row.figures.lag_ms,
        "out": lambda row: row.figures.messages_out_per_second,
        "trend": lambda row: row.trend.falls_per_second,
        "clear": lambda row: row.trend.clear_ms,
    }

    @property
    def name(self) -> str:
        return self.figures.name

    @property
    def kind(self) -> str:
        return self.figures.kind

    @property
    def partial(self) -> bool:
        return bool(self.missing) and self.stale_ms is None


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """One broker, with the last values that it reported."""

    health: BrokerHealth
    stale_ms: int | None = None
    error: str | None = None
    """Why it does not answer now."""
    is_gone: bool = False
    """Whether the name servers do not list it any more."""

    @property
    def name(self) -> str:
        return broker_key(self.health)


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """The dead letters of one group. They count until they were sent again."""

    name: str
    """The group."""
    topic: str
    waiting: int | None
    """Letters that were not sent again; None if a broker does not tell."""
    since_ms: int | None
    """When the oldest of these was stored."""
    stored: int | None
    """With those that were sent again."""
    last_stored_ms: int | None
    stale_ms: int | None
    partial: bool
    kind: str = "normal"

    COLUMNS: ClassVar[Mapping[str, Column]] = {
        "name": lambda row: row.name,
        "waiting": lambda row: row.waiting,
        # The older, the more.
        "since": lambda row: None if row.since_ms is None else -row.since_ms,
        "last": lambda row: row.last_stored_ms,
    }


@dataclass(frozen=True, slots=True)
class Table:
    """Facts about the looks that made a table."""

    failures: tuple[BrokerFailure, ...] = ()
    """Brokers that did not answer in the newest look."""
    notes: tuple[str, ...] = ()
    """A sentence for each broker that does not report all figures in a list."""
    seen: frozenset[str] = frozenset()
    """Brokers that have answered since the console started, without those that are gone for good."""
    away_since: Mapping[str, int] = field(default_factory=dict)
    """When each broker that does not answer now was last known to be well."""

    @property
    def has_all_figures(self) -> bool:
        """False if a broker must be asked for each row: see `Live.look_at_topics`."""
        return not self.notes


@dataclass(frozen=True, slots=True)
class TopicTable(Table):
    rows: Mapping[str, TopicRow] = field(default_factory=dict)
    """In the order of the names."""

    def aged(self, taken_ms: int) -> Self:
        """Returns the table after a look that failed as a whole."""
        return replace(self, rows=_aged(self.rows, taken_ms))


@dataclass(frozen=True, slots=True)
class GroupTable(Table):
    rows: Mapping[str, GroupRow] = field(default_factory=dict)
    """In the order of the names."""

    @property
    def worst_first(self) -> str:
        """The column by which the groups that are furthest behind come first: waiting times, if all brokers
        report them in a list."""
        return "lag_ms" if self.has_all_figures else "lag"

    def aged(self, taken_ms: int) -> Self:
        """Returns the table after a look that failed as a whole."""
        return replace(self, rows=_aged(self.rows, taken_ms))


# Rows that stay


_Row = TypeVar("_Row", TopicRow, GroupRow)
_F = TypeVar("_F", TopicFigures, GroupFigures)


@dataclass(frozen=True, slots=True)
class Look:
    """The brokers that a look reached."""

    answered: frozenset[str]
    failing: frozenset[str]
    seen: frozenset[str]
    """The brokers that have answered earlier."""
    before_ms: int
    """When the look before was taken."""
    now_ms: int
    away_since: Mapping[str, int] = field(default_factory=dict)
    """The brokers that do not answer any more or never did, whether they are still registered or not."""
    gone: frozenset[str] = frozenset()
    """Brokers that have not been registered for `KEPT_MS`: somebody has taken them out of the cluster."""

    @classmethod
    def after(
        cls,
        before: Table,
        answered: Iterable[str],
        failures: Iterable[BrokerFailure],
        before_ms: int,
        now_ms: int,
    ) -> Look:
        """Returns the look that follows a table."""
        found, failing = frozenset(answered), frozenset(failure.broker for failure in failures)
        away = (before.seen | before.away_since.keys() | failing) - found
        since = {broker: before.away_since.get(broker, before_ms) for broker in away}
        gone = frozenset(
            broker for broker, ms in since.items() if broker not in failing and now_ms - ms > KEPT_MS
        )
        return cls(found, failing, before.seen, before_ms, now_ms, since, gone)

    @property
    def facts(self) -> dict[str, Any]:
        """Returns the brokers as fields of the table after this look."""
        since = {broker: ms for broker, ms in self.away_since.items() if broker not in self.gone}
        return {"seen": (self.seen | self.answered) - self.gone, "away_since": since}

    def missing(self, brokers: tuple[str, ...], old: TopicRow | GroupRow | None) -> tuple[str, ...]:
        """Returns the brokers that contribute to an object as far as we know, and did not answer."""
        if old is None:
            return tuple(sorted(self.failing))
        if not self.failing and not old.missing and old.figures.brokers == brokers:
            return ()
        homes = {*old.figures.brokers, *old.missing} - self.answered - self.gone
        return tuple(sorted(homes | (self.failing - self.seen)))


def merged(
    before: Mapping[str, _Row], found: Iterable[_F], look: Look, row: Callable[[_F, tuple[str, ...]], _Row]
) -> dict[str, _Row]:
    """Returns the rows after a look, in the order of their names. Rows of brokers that did not answer stay
    for `KEPT_MS`; rows that a broker does not have any more go."""
    rows = {
        figures.name: row(figures, look.missing(figures.brokers, before.get(figures.name)))
        for figures in found
    }
    kept = [
        stale for old in before.values() if old.name not in rows and (stale := _kept(old, look)) is not None
    ]
    if not kept:
        return rows
    rows.update((old.name, old) for old in kept)
    return dict(sorted(rows.items()))


def _kept(old: _Row, look: Look) -> _Row | None:
    stale_ms = look.before_ms if old.stale_ms is None else old.stale_ms
    # Brokers that are only missing may never have had it.
    if not look.answered.isdisjoint(old.figures.brokers) or look.now_ms - stale_ms > KEPT_MS:
        return None
    return old if old.stale_ms is not None else replace(old, stale_ms=stale_ms)


def _aged(rows: Mapping[str, _Row], taken_ms: int) -> dict[str, _Row]:
    return {
        name: row if row.stale_ms is not None else replace(row, stale_ms=taken_ms)
        for name, row in rows.items()
    }


# Brokers


def broker_key(broker: BrokerHealth) -> str:
    """Returns the name of a master, and the name and id of a replica."""
    return broker.name if broker.role == "master" else f"{broker.name}/{broker.id}"


def merged_brokers(
    before: Mapping[str, BrokerRow], health: Health, before_ms: int, now_ms: int
) -> dict[str, BrokerRow]:
    """Returns the brokers after a look. One that does not answer, or is not registered any more, keeps its
    last values."""
    rows: dict[str, BrokerRow] = {}
    for broker in health.brokers:
        old = before.get(broker_key(broker))
        if broker.error is None:
            rows[broker_key(broker)] = BrokerRow(broker)
        elif old is None or old.health.error is not None:
            rows[broker_key(broker)] = BrokerRow(broker, None, broker.error)
        else:
            rows[broker_key(broker)] = BrokerRow(old.health, old.stale_ms or before_ms, broker.error)
    is_listed = any(server.error is None for server in health.name_servers)
    addresses = {broker.address for broker in health.brokers}
    for key, old in before.items():
        stale_ms = old.stale_ms or before_ms
        # A node that changed its role has another name now.
        if key not in rows and old.health.address not in addresses and now_ms - stale_ms <= KEPT_MS:
            error = NOT_REGISTERED if is_listed else "no name server answers"
            rows[key] = BrokerRow(old.health, stale_ms, error, is_gone=is_listed)
    return dict(sorted(rows.items()))


# Dead letters


def dead_letters_of(topics: TopicTable) -> dict[str, DeadLetterRow]:
    """Returns the dead letters by group. They cost no request: each group's letters are a topic."""
    rows: dict[str, DeadLetterRow] = {}
    for row in topics.rows.values():
        if row.kind == "dead-letter":
            group = row.name.removeprefix(DEAD_LETTER_PREFIX)
            rows[group] = dead_letter_row(group, row)
    return rows


def dead_letter_row(group: str, topic: TopicRow) -> DeadLetterRow:
    figures = topic.figures
    return DeadLetterRow(
        group,
        figures.name,
        figures.waiting_letters,
        figures.waiting_since_ms,
        figures.messages,
        figures.last_stored_ms,
        topic.stale_ms,
        topic.partial,
    )
