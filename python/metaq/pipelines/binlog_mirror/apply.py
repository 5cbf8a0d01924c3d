"""Applies one micro-batch: first its barriers, then the newest change of every row."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from metaq.counts import counted
from metaq.pipelines.binlog_mirror.columns import SEQUENCE, evolution, wanted_columns
from metaq.pipelines.binlog_mirror.config import IGNORE, MirrorConfig
from metaq.pipelines.binlog_mirror.decode import (
    BARRIER,
    READABLE,
    changes,
    first_sequence,
    is_newer,
    last_sequence,
    latest,
    message_field,
    messages,
    require_known_version,
)
from metaq.pipelines.binlog_mirror.errors import MirrorError, Unmirrored
from metaq.pipelines.binlog_mirror.left_out import LeftOutTables
from metaq.pipelines.binlog_mirror.notes import Barriers, Notes, TableName, barriers_by_table
from metaq.pipelines.binlog_mirror.policies import ARCHIVE, EMPTY, KEEP, QUARANTINE, SKIP, TablePolicy
from metaq.pipelines.binlog_mirror.refusals import RefusedRow
from metaq.pipelines.binlog_mirror.target import MirrorTable, Target
from metaq.pipelines.binlog_sync.envelope import Barrier, Field, Kind, parse_barrier
from metaq.pipelines.binlog_sync.values.columns import Definition
from metaq.pipelines.remarks import REMARK

_log = logging.getLogger(__name__)

LINES_MAX: Final = 10
"""The log lines of one batch about barriers that binlog-sync did not write, and about rows without a
definition."""


@dataclass(frozen=True, slots=True)
class BatchId:
    """A batch of a query."""

    query: str
    number: int


@dataclass(slots=True)
class BatchProgress:
    """How far a batch is that is being applied."""

    begun_s: float
    step: str = "reading"
    step_begun_s: float = 0.0
    rows: int | None = None
    """The number of changes in the batch; None until the batch was read."""
    rows_done: int = 0

    def begin(self, step: str) -> None:
        self.step, self.step_begun_s = step, time.monotonic()


@dataclass(slots=True)
class Applied:
    """Counters of a run. A thread that reports reads them while a batch is applied."""

    batches: int = 0
    messages: int = 0
    rows: int = 0
    bytes: int = 0
    committed_s: int = 0
    """The commit time of the newest change."""
    quarantined: int = 0
    foreign: int = 0
    """The messages that binlog-sync did not write, or that no definition of their table belongs to; they are
    left out."""
    tables: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    """The tables that are left out: the target has refused a row, or it cannot hold the table."""
    batch: BatchProgress | None = None
    """None between two batches."""

    def begin_batch(self) -> BatchProgress:
        self.batch = BatchProgress(time.monotonic())
        self.batch.begin("reading")
        return self.batch


class Applier:
    """Applies batches in order. Everything that it keeps in memory is on disk first."""

    def __init__(self, config: MirrorConfig, target: Callable[[SparkSession], Target]) -> None:
        self._config = config
        self._make_target = target
        self._target: Target | None = None
        self._tables: dict[TableName, MirrorTable] = {}
        self._left_out: LeftOutTables | None = None
        self._undefined = 0
        """The groups of rows in this batch that no definition belongs to."""
        self.applied = Applied()

    def apply(self, frame: DataFrame, batch_id: int, query_id: str) -> None:
        """Applies a batch of a query, whose id stays the same with its checkpoint; raises MirrorError."""
        if self._target is None:
            # The query has its own session, the same for all batches.
            self._target = self._make_target(frame.sparkSession)
            if batch_id and not self._target.is_begun():
                raise MirrorError(
                    f"the checkpoint {self._config.checkpoint} continues in the middle of the topic, but"
                    " there is no mirror with the changes before it",
                    hint="move the checkpoint away, and the topic is applied from its beginning",
                )
        found = messages(frame).persist(StorageLevel.MEMORY_AND_DISK)
        progress = self.applied.begin_batch()
        try:
            self._apply_all(self._target, found, progress, BatchId(query_id, batch_id))
        finally:
            self.applied.batch = None
            found.unpersist()

    def _apply_all(self, target: Target, found: DataFrame, progress: BatchProgress, batch: BatchId) -> None:
        if self._left_out is None:
            self._left_out = LeftOutTables(target.left_out(), target.save_left_out)
            self.applied.skipped.update(self._left_out.names())
        self._undefined = 0
        everything = _summary(found)
        require_known_version(row.newer for row in everything)
        self._set_aside(everything)
        summary = [row for row in everything if row[READABLE]]
        of_rows = [row for row in summary if row[Field.KIND] == Kind.ROWS]
        progress.rows = sum(row.rows for row in of_rows)
        barriers: dict[TableName, Barriers] = {}
        if len(of_rows) < len(summary):
            barriers = barriers_by_table(self._barriers(found), target.table_names)
        for name in sorted(barriers.keys() | {_name(row) for row in of_rows}):
            progress.begin(".".join(name))
            of_table = [row for row in of_rows if _name(row) == name]
            self._apply_table(target, name, barriers.get(name, Barriers()), found, of_table, batch)
            rows = sum(row.rows for row in of_table)
            progress.rows_done += rows
            self.applied.rows += rows
        # Without any table, the next run could not tell this target from another, empty one.
        self._left_out.save(is_first=batch.number == 0 and not target.tables())
        if self._undefined > LINES_MAX:
            _log.warning(
                "%s like these were left out", counted(self._undefined - LINES_MAX, "more group of rows")
            )
        self._count(summary)

    def _set_aside(self, summary: list[Row]) -> None:
        """Counts and logs the messages that binlog-sync cannot have written. They stay in the topic."""
        for row in summary:
            if not row[READABLE]:
                self.applied.foreign += row.messages
                _log.warning(
                    "%s from offset %d of queue %d on: binlog-sync did not write this, the mirror goes on"
                    " without it",
                    counted(row.messages, "message"),
                    row.first.queueOffset,
                    row.first.queueId,
                )

    def _barriers(self, found: DataFrame) -> Iterator[tuple[Barrier, int]]:
        """Decodes the barriers of a batch; sets those aside that binlog-sync cannot have written."""
        texts = found.where(f.col(READABLE) & f.col(BARRIER).isNotNull())
        foreign = 0
        for row in texts.select(BARRIER, "queueId", "queueOffset").collect():
            try:
                yield parse_barrier(row[BARRIER])
            except (KeyError, TypeError, ValueError) as error:
                foreign += 1
                if foreign <= LINES_MAX:
                    _log.warning(
                        "message %d of queue %d is left out, because binlog-sync does not write this: %r",
                        row.queueOffset,
                        row.queueId,
                        error,
                    )
        if foreign > LINES_MAX:
            _log.warning("%s like these were left out", counted(foreign - LINES_MAX, "more message"))
        self.applied.foreign += foreign

    def _apply_table(
        self,
        target: Target,
        name: TableName,
        barriers: Barriers,
        found: DataFrame,
        summary: list[Row],
        batch: BatchId,
    ) -> None:
        """Applies the barriers and rows of one table; raises MirrorError."""
        assert self._left_out is not None
        policy = self._config.policies.of(name)
        table = self._prepared(target, self._left_out, name, barriers, policy)
        if table is None:
            self._pass_over(self._left_out, name, barriers, summary)
            return
        if summary:
            self.applied.tables.add(".".join(name))
            self._merge(table, found, name, summary, policy, batch)
        if not table.notes.skipped:
            # After the rows of the batch, which may be older than the range.
            for barrier in barriers.complete_ranges(table.notes):
                table.drop_range(barrier)
        self._follow_drop(name, table, policy)
        if table.notes.skipped:
            self.applied.skipped.add(table.notes.table)
        else:
            self.applied.skipped.discard(table.notes.table)

    def _pass_over(
        self, left_out: LeftOutTables, name: TableName, barriers: Barriers, summary: list[Row]
    ) -> None:
        """Notes the rows of a table that has no mirror."""
        left = left_out.get(name)
        if left is None:
            self.applied.skipped.discard(".".join(name))
        else:
            self.applied.skipped.add(".".join(name))
        if not summary:
            return
        highest = max(row.highest for row in summary)
        if left is not None:
            left_out.add(name, highest, left.reason)
        # A run that ended before Spark recorded the batch has deleted the mirror of a dropped table.
        elif not barriers.drops_after(highest):
            for row in summary:
                self._count_undefined(name, row, row.messages)

    def _count_undefined(self, name: TableName, row: Row, messages: int) -> None:
        """Counts messages with rows that nobody can read. They stay in the topic.

        Every definition comes before its rows, so binlog-sync has not sent them, or the mirror was made after
        them: then a checkpoint is older than its mirror.
        """
        self.applied.foreign += messages
        self._undefined += 1
        if self._undefined <= LINES_MAX:
            _log.warning(
                "%s from %s on with rows of %s are left out: the topic has no definition for version %d",
                counted(messages, "message"),
                row.lowest,
                ".".join(name),
                row[Field.SCHEMA],
            )

    def _merge(
        self,
        table: MirrorTable,
        found: DataFrame,
        name: TableName,
        summary: list[Row],
        policy: TablePolicy,
        batch: BatchId,
    ) -> None:
        notes = table.notes
        highest = max(row.highest for row in summary)
        if notes.skipped:
            notes.skip(highest)
            table.save_notes()
            return
        newest = self._changes(table, found, name, summary)
        if newest is None:
            return
        try:
            refused = table.merge(newest, batch.query, batch.number, quarantines=policy.refused == QUARANTINE)
        except RefusedRow as error:
            if policy.refused != SKIP:
                raise
            _log.warning("%s is skipped from now on: %s", notes.table, error, extra=REMARK)
            notes.skip(highest, error.refusal.summary)
            table.save_notes()
            return
        self.applied.quarantined += refused

    def _follow_drop(self, name: TableName, table: MirrorTable, policy: TablePolicy) -> None:
        """Drops or archives the mirror of a table that the source has dropped, when every queue says so."""
        notes = table.notes
        dropped = notes.dropped
        if not dropped or not notes.drops[dropped].is_complete or policy.dropped == KEEP:
            return
        if policy.dropped == ARCHIVE:
            table.archive(dropped)
        table.discard()
        self._tables.pop(name, None)

    def _prepared(
        self,
        target: Target,
        left_out: LeftOutTables,
        name: TableName,
        barriers: Barriers,
        policy: TablePolicy,
    ) -> MirrorTable | None:
        """Returns the table after its barriers were applied; None if nothing is known of it, or if the target
        cannot hold it."""
        table = self._tables.get(name)
        is_opened = table is None
        if table is None:
            table = target.open(name)
        left = left_out.get(name) if table is None else None
        notes = Notes(".".join(name)) if table is None else table.notes
        if left is not None and left.sequence:
            notes.skip(left.sequence, left.reason)
        fault = self._withdraw_unmirrored(target, name, barriers)
        has_news = fault is not None
        if fault is not None:
            if not notes.skipped and table is not None:
                _log.warning("%s is skipped from now on: %s", notes.table, fault[1], extra=REMARK)
            notes.skip(*fault)
        has_news |= barriers.add_to(notes, policy.dropped if left is None else EMPTY)
        # A drop may have waited for queues when the policy was another one.
        is_emptied = bool(notes.dropped) and (barriers.recreates(notes.dropped) or policy.dropped == EMPTY)
        if is_emptied:
            # The rows from before the drop must not mix with those of the new table.
            if policy.dropped == ARCHIVE and table is not None:
                table.archive(notes.dropped)
            notes.raise_floor(notes.dropped)
            has_news = True
        if table is not None and notes.newest is not None:
            self._update(
                target, table, barriers, is_opened=is_opened, has_news=has_news, is_emptied=is_emptied
            )
        elif notes.newest is not None:
            table = self._created(target, left_out, name, notes)
        else:
            if barriers.drops:
                left_out.remove(name)
            if fault is not None:
                left_out.add(name, notes.skipped, fault[1])
            return None
        if table is None:
            return None
        if is_opened or barriers.definitions:
            table.ensure_index()
        self._tables[name] = table
        return table

    def _wanted(self, target: Target, name: TableName, definition: Definition) -> dict[str, str]:
        """Returns the columns of a mirror; raises Unmirrored."""
        wanted = wanted_columns(
            definition, typed_dates=self._config.typed_dates, native=target.native_types()
        )
        target.require(name, wanted)
        return wanted

    def _withdraw_unmirrored(
        self, target: Target, name: TableName, barriers: Barriers
    ) -> tuple[str, str] | None:
        """Removes definitions that the target cannot hold; returns the number of the last one and why."""
        fault = None
        for entry in sorted(barriers.definitions, key=lambda entry: entry[0]):
            try:
                self._wanted(target, name, entry[2])
            except Unmirrored as error:
                barriers.definitions.remove(entry)
                fault = entry[0], str(error)
        return fault

    def _created(
        self, target: Target, left_out: LeftOutTables, name: TableName, notes: Notes
    ) -> MirrorTable | None:
        """Returns the new mirror of a table; None if the target cannot hold it."""
        assert notes.newest is not None
        try:
            table = target.create(name, notes, self._wanted(target, name, notes.newest))
        except Unmirrored as error:
            left_out.add(name, max(notes.definitions)[0], str(error))
            return None
        left_out.remove(name)
        return table

    def _update(
        self,
        target: Target,
        table: MirrorTable,
        barriers: Barriers,
        *,
        is_opened: bool,
        has_news: bool,
        is_emptied: bool,
    ) -> None:
        """Saves the notes of a mirror and makes its columns those of the newest definition."""
        notes = table.notes
        assert notes.newest is not None
        change = None
        try:
            if is_opened or barriers.definitions:
                # A previous run may have ended between saving the notes and changing the columns.
                wanted = self._wanted(target, table.name, notes.newest)
                change = evolution(notes.table, table.columns, wanted, self._config.schema_changes)
            if has_news:
                table.save_notes()
            if change:
                table.evolve(change)
        except Unmirrored as error:
            _log.warning("%s is skipped from now on: %s", notes.table, error, extra=REMARK)
            notes.skip(max(notes.definitions)[0], str(error))
            table.save_notes()
        if barriers.may_empty or is_emptied:
            table.drop_below_floor()

    def _changes(
        self, table: MirrorTable, found: DataFrame, name: TableName, summary: list[Row]
    ) -> DataFrame | None:
        """Returns the newest change of every row of a table; None if no definition belongs to any of them."""
        rows = found.where(
            f.col(READABLE)
            & (message_field(Field.KIND) == Kind.ROWS)
            & (message_field(Field.DATABASE) == name[0])
            & (message_field(Field.TABLE) == name[1])
        )
        first = first_sequence()
        notes = table.notes
        frames = []
        for row in sorted(summary, key=lambda row: int(row[Field.SCHEMA])):
            version = row[Field.SCHEMA]
            definitions = notes.definitions_of(version)
            if not definitions:
                self._count_undefined(name, row, row.messages)
                continue
            if row.lowest < definitions[0][0]:
                is_older = (message_field(Field.SCHEMA) == version) & (first < definitions[0][0])
                self._count_undefined(name, row, rows.where(is_older).count())
            ends = [number for number, _ in definitions[1:]]
            for (begin, definition), end in zip(definitions, [*ends, None], strict=True):
                some = rows.where((message_field(Field.SCHEMA) == version) & (first >= begin))
                if end is not None:
                    some = some.where(first < end)
                strictly = definition == notes.newest and self._config.schema_changes != IGNORE
                frames.append(changes(some, definition, table.columns, table.convert, strictly=strictly))
        if not frames:
            return None
        newest = latest(frames)
        if notes.floor:
            newest = newest.where(f.col(SEQUENCE) >= notes.floor)
        return newest

    def _count(self, summary: list[Row]) -> None:
        applied = self.applied
        applied.batches += 1
        for row in summary:
            applied.messages += row.messages
            applied.bytes += row.bytes
            if row[Field.KIND] == Kind.ROWS:
                # A message that a stranger has copied may lack it.
                applied.committed_s = max(applied.committed_s, row.committed_s or 0)


def _name(row: Row) -> TableName:
    return row[Field.DATABASE], row[Field.TABLE]


def _summary(found: DataFrame) -> list[Row]:
    """Counts messages and rows by table, schema version and kind, and the unreadable messages by queue.

    One query collects everything, because each query of a batch costs as much as some thousand rows.
    """
    fields = (Field.DATABASE, Field.TABLE, Field.SCHEMA, Field.KIND)
    return (
        found.groupBy(
            READABLE,
            f.when(~f.col(READABLE), f.col("queueId")).alias("queueId"),
            # Strangers may write any names.
            *(f.when(f.col(READABLE), message_field(name)).alias(name) for name in fields),
        )
        .agg(
            f.count("*").alias("messages"),
            f.sum("bytes").alias("bytes"),
            f.min(first_sequence()).alias("lowest"),
            f.max(last_sequence()).alias("highest"),
            f.sum(f.size(message_field(Field.CHANGES))).alias("rows"),
            f.max(message_field(Field.COMMITTED)).alias("committed_s"),
            f.min(f.struct("queueId", "queueOffset")).alias("first"),
            f.min(f.when(is_newer(), f.struct("queueId", "queueOffset"))).alias("newer"),
        )
        .collect()
    )
