"""One poll of the cluster for all viewers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from metaq.admin.aio import Admin
from metaq.admin.health.results import Health
from metaq.admin.results import BrokerFailure, GroupFigures, GroupOverview, TopicFigures, TopicOverview
from metaq.console.live.asking import Answers, ask
from metaq.console.live.history import CLUSTER, History, Kind
from metaq.console.live.looks import Looks
from metaq.console.live.parts import Part
from metaq.console.live.polling import SPACING_S, WANTED_SPACING_S, next_interval_s
from metaq.console.live.recorded_figures import broker_values, group_values, topic_values
from metaq.console.live.tables import (
    BrokerRow,
    DeadLetterRow,
    GroupRow,
    GroupTable,
    Look,
    Table,
    TopicRow,
    TopicTable,
    dead_letters_of,
    merged,
    merged_brokers,
)
from metaq.console.live.totals import ClusterTotals, totals_of
from metaq.console.live.trends import LOOKED_AT_STEPS, UNKNOWN, trend_of
from metaq.console.settings import ConsoleSettings

RECORDED_AT_ONCE = 200
"""Rows whose history is written before pages are served again."""

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
_Row = TypeVar("_Row", TopicRow, GroupRow)


@dataclass(frozen=True, slots=True)
class Tick:
    """A new snapshot is there."""

    number: int
    taken_ms: int
    ok: bool
    """Whether every look succeeded."""


class Live:
    """The newest figures of a cluster and their history. It belongs to one event loop."""

    def __init__(
        self, admin: Admin, settings: ConsoleSettings, now_ms: Callable[[], int] | None = None
    ) -> None:
        self._admin = admin
        self._poll_interval_s = settings.poll_interval_s
        self._now_ms = now_ms or _now_ms
        self.history = History(settings.history_series_max, self._now_ms)
        self.health: Part[Health] = Part()
        self.brokers: Part[Mapping[str, BrokerRow]] = Part()
        """The masters by their names, and replicas by name and id."""
        self.topics: Part[TopicTable] = Part()
        self.groups: Part[GroupTable] = Part()
        self.dead_letters: Part[Mapping[str, DeadLetterRow]] = Part()
        """By group: all letters that brokers still hold."""
        self.totals: Part[ClusterTotals] = Part()
        self.interval_s = settings.poll_interval_s
        """The time between the beginnings of two polls."""
        self._topic_looks = Looks(self._fetch_topics, self._now_ms)
        self._group_looks = Looks(self._fetch_groups, self._now_ms)
        self._begun = 0
        self._was_whole = True
        self._tick: Tick | None = None
        self._changed = asyncio.Event()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    # Life

    async def start(self) -> None:
        """Begins to poll. It does not wait for an answer: until then all parts are empty."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ends the polls and the streams of ticks. Safe to call twice."""
        self._is_stopped = True
        self._changed.set()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def ticks(self, after: int | None = None) -> AsyncIterator[Tick]:
        """Yields each new snapshot, from the next one on or behind that number. A slow reader skips some."""
        seen = after if after is not None else 0 if self._tick is None else self._tick.number
        while not self._is_stopped:
            changed = self._changed
            if self._tick is not None and self._tick.number > seen:
                seen = self._tick.number
                yield self._tick
            else:
                await changed.wait()

    def changed(self) -> None:
        """Has the cluster polled soon, because it was changed. Many calls make one poll."""
        self._topic_looks.forget()
        self._group_looks.forget()
        self._wanted.set()

    async def fresh(self, timeout_s: float = 5.0) -> bool:
        """Polls soon, and waits until that has ended: for a page that shows the effect of a change. Returns
        False if it took too long."""
        wanted = self._begun + 1
        self.changed()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                async for tick in self.ticks(wanted - 1):
                    if tick.number >= wanted:
                        return True
        return False

    # Rows that cost requests

    async def look_at_topics(self, names: Sequence[str]) -> dict[str, TopicRow]:
        """Returns the rows of these topics with all figures that brokers have. On a MetaQ cluster they are
        there; Apache's brokers are asked for each, at most 100 in one call and once in a poll interval."""
        table = self.topics.value or TopicTable()
        return await self._look_at(names, table.rows, self._topic_looks, is_known=table.has_all_figures)

    async def look_at_groups(self, names: Sequence[str]) -> dict[str, GroupRow]:
        """Returns the rows of these groups, as `look_at_topics` does."""
        table = self.groups.value or GroupTable()
        return await self._look_at(names, table.rows, self._group_looks, is_known=table.has_all_figures)

    async def _look_at(
        self, names: Sequence[str], rows: Mapping[str, _Row], looks: Looks[_Row], *, is_known: bool
    ) -> dict[str, _Row]:
        known = [name for name in names if name in rows]
        if is_known:
            return {name: rows[name] for name in known}
        current = [name for name in known if rows[name].stale_ms is None]
        found = await looks.rows(current, round(self.interval_s * 1000))
        return {name: found.get(name, rows[name]) for name in known}

    async def _fetch_topics(self, names: frozenset[str]) -> dict[str, TopicRow]:
        known = self.topics.value.rows if self.topics.value else {}
        found = await self._admin.topics.figures_by_name(_brokers_of(names, known))
        now_ms, rows = self._now_ms(), {}
        for figures in found.topics:
            row = TopicRow(figures, None, _missing(known[figures.name], found.failures))
            rows[figures.name] = row
            self.history.record_alone("topic", figures.name, topic_values(row), now_ms)
        return rows

    async def _fetch_groups(self, names: frozenset[str]) -> dict[str, GroupRow]:
        known = self.groups.value.rows if self.groups.value else {}
        found = await self._admin.groups.figures_by_name(_brokers_of(names, known))
        now_ms, rows = self._now_ms(), {}
        for figures in found.groups:
            before = known[figures.name]
            missing = _missing(before, found.failures)
            if figures.enabled is None:
                figures = replace(figures, enabled=before.figures.enabled)
            row = replace(
                before, figures=figures, missing=missing, trend=UNKNOWN if missing else before.trend
            )
            rows[figures.name] = row
            lag_ms = group_values(row)["lag_ms"]
            self.history.record_alone("group", figures.name, {"lag_ms": lag_ms}, now_ms)
        return rows

    # Polls

    async def _run(self) -> None:
        while True:
            began_s = time.monotonic()
            self._wanted.clear()
            is_whole = False
            try:
                is_whole = (await self.poll()).is_whole
            except Exception:
                _LOG.exception("the answers of the cluster could not be published; the next poll tries again")
            duration_s = time.monotonic() - began_s
            self.interval_s = next_interval_s(self._poll_interval_s, duration_s, is_whole=is_whole)
            with contextlib.suppress(TimeoutError):
                rest_s = min(SPACING_S, self._poll_interval_s)
                async with asyncio.timeout(max(self.interval_s - duration_s, rest_s)):
                    await self._wanted.wait()
                    await asyncio.sleep(max(WANTED_SPACING_S, duration_s))

    async def poll(self) -> Answers:
        """Asks the cluster once and publishes the answers."""
        self._begun += 1
        number = self._begun
        answers = await ask(self._admin, at_once=not self._was_whole)
        now_ms = self._now_ms()
        self._take_health(answers.health, now_ms)
        await self._take_topics(answers.topics, now_ms)
        await self._take_groups(answers.groups, now_ms)
        self._take_totals(now_ms)
        self._tick = Tick(number, now_ms, answers.is_ok)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._was_whole = answers.is_whole
        return answers

    def _take_health(self, health: Health | str, now_ms: int) -> None:
        if isinstance(health, str):
            self.health = self.health.failed(health, now_ms)
            self.brokers = self.brokers.failed(health, now_ms)
            return
        before_ms = now_ms if self.brokers.taken_ms is None else self.brokers.taken_ms
        rows = merged_brokers(self.brokers.value or {}, health, before_ms, now_ms)
        from_ms = self._looked("broker", self.brokers, now_ms)
        for name, row in rows.items():
            self.history.record("broker", name, broker_values(row), from_ms, now_ms)
        self.history.keep_only("broker", rows.keys())
        self.health = self.health.renewed(health, now_ms)
        self.brokers = self.brokers.renewed(rows, now_ms)

    async def _take_topics(self, found: TopicOverview | str, now_ms: int) -> None:
        before = self.topics.value or TopicTable()
        if isinstance(found, str):
            if self.topics.taken_ms is not None and self.topics.error is None:
                self.topics = replace(self.topics, value=before.aged(self.topics.taken_ms))
                letters = dead_letters_of(self.topics.value or before)
                self.dead_letters = replace(self.dead_letters, value=letters)
            self.topics = self.topics.failed(found, now_ms)
            self.dead_letters = self.dead_letters.failed(found, now_ms)
            return
        look = self._look(found, before, self.topics.taken_ms, now_ms)
        rows = merged(before.rows, found.topics, look, _topic_row)
        table = TopicTable(found.failures, found.missing, **look.facts, rows=rows)
        await self._record("topic", rows, topic_values, self._looked("topic", self.topics, now_ms), now_ms)
        self.topics = self.topics.renewed(table, now_ms)
        self.dead_letters = self.dead_letters.renewed(dead_letters_of(table), now_ms)

    async def _take_groups(self, found: GroupOverview | str, now_ms: int) -> None:
        before = self.groups.value or GroupTable()
        if isinstance(found, str):
            if self.groups.taken_ms is not None and self.groups.error is None:
                self.groups = replace(self.groups, value=before.aged(self.groups.taken_ms))
            self.groups = self.groups.failed(found, now_ms)
            return
        look = self._look(found, before, self.groups.taken_ms, now_ms)
        rows = merged(before.rows, found.groups, look, _group_row)
        await self._record("group", rows, group_values, self._looked("group", self.groups, now_ms), now_ms)
        for number, (name, row) in enumerate(rows.items()):
            if number % RECORDED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if row.stale_ms is None and not row.missing:
                points = self.history.recent("group", name, "lag", LOOKED_AT_STEPS)
                rows[name] = replace(row, trend=trend_of(points, row.figures.lag))
        table = GroupTable(found.failures, found.missing, **look.facts, rows=rows)
        self.groups = self.groups.renewed(table, now_ms)

    def _take_totals(self, now_ms: int) -> None:
        servers = () if self.health.value is None else self.health.value.name_servers
        totals = totals_of(
            self.brokers.value or {},
            self.topics.value,
            self.groups.value,
            self.dead_letters.value,
            is_listed=any(server.error is None for server in servers),
        )
        values = {
            "in": totals.in_per_second.whole,
            "out": totals.out_per_second.whole,
            "lag": totals.lag.whole,
            "lag_ms": None if totals.lag.is_partial else totals.lag_ms,
            "dead_letters": totals.dead_letters.whole,
        }
        from_ms = self._looked("cluster", self.totals, now_ms)
        self.history.record("cluster", CLUSTER, values, from_ms, now_ms)
        self.totals = self.totals.renewed(totals, now_ms)

    def _look(
        self, found: TopicOverview | GroupOverview, before: Table, taken_ms: int | None, now_ms: int
    ) -> Look:
        before_ms = now_ms if taken_ms is None else taken_ms
        return Look.after(before, found.brokers, found.failures, before_ms, now_ms)

    def _looked(self, kind: Kind, before: Part[_T], now_ms: int) -> int:
        """Notes a look for the history. Returns from when on its values count: from the look before, if that
        was the last poll."""
        from_ms = now_ms
        if before.taken_ms is not None and before.error is None:
            late_ms = now_ms - before.taken_ms - round(self.interval_s * 1000)
            if late_ms < round(self._poll_interval_s * 1000):
                from_ms = before.taken_ms
        self.history.looked(kind, from_ms, now_ms)
        return from_ms

    async def _record(
        self,
        kind: Kind,
        rows: Mapping[str, _Row],
        values: Callable[[_Row], Mapping[str, float | None]],
        from_ms: int,
        now_ms: int,
    ) -> None:
        for number, (name, row) in enumerate(rows.items()):
            if number % RECORDED_AT_ONCE == 0:
                await asyncio.sleep(0)
            self.history.record(kind, name, values(row), from_ms, now_ms)
        self.history.keep_only(kind, rows.keys())


def _brokers_of(names: Iterable[str], rows: Mapping[str, _Row]) -> dict[str, tuple[str, ...]]:
    return {name: rows[name].figures.brokers for name in names if name in rows}


def _missing(before: TopicRow | GroupRow, failures: Iterable[BrokerFailure]) -> tuple[str, ...]:
    """Returns the brokers that a row lacks which was looked at by itself."""
    asked = set(before.figures.brokers)
    failing = {failure.broker for failure in failures}
    return tuple(sorted({*before.missing} - asked | asked & failing))


def _topic_row(figures: TopicFigures, missing: tuple[str, ...]) -> TopicRow:
    return TopicRow(figures, None, missing)


def _group_row(figures: GroupFigures, missing: tuple[str, ...]) -> GroupRow:
    return GroupRow(figures, None, tuple(sorted({*missing, *figures.unreported})))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
