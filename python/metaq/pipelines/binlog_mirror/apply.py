"""Applies one micro-batch: first its barriers, then the newest change of every row."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from metaq.pipelines.binlog_mirror.columns import SEQUENCE, evolution, wanted_columns
from metaq.pipelines.binlog_mirror.config import IGNORE, MirrorConfig
from metaq.pipelines.binlog_mirror.decode import (
    BARRIER,
    changes,
    first_sequence,
    latest,
    message_field,
    messages,
    readable,
    require_readable,
)
from metaq.pipelines.binlog_mirror.errors import MirrorError
from metaq.pipelines.binlog_mirror.notes import Barriers, Notes, TableName, barriers_by_table
from metaq.pipelines.binlog_mirror.target import MirrorTable, Target
from metaq.pipelines.binlog_sync.envelope import Field, Kind


@dataclass(slots=True)
class Applied:
    """Counters of a run."""

    batches: int = 0
    messages: int = 0
    rows: int = 0
    bytes: int = 0
    committed_s: int = 0
    """The commit time of the newest change."""
    tables: set[str] = field(default_factory=set)


class Applier:
    """Applies batches in order. Everything that it keeps in memory is on disk first."""

    def __init__(self, config: MirrorConfig, target: Callable[[SparkSession], Target]) -> None:
        self._config = config
        self._make_target = target
        self._target: Target | None = None
        self._tables: dict[TableName, MirrorTable] = {}
        self.applied = Applied()

    def apply(self, frame: DataFrame, batch_id: int, query_id: str) -> None:
        """Applies a batch of a query, whose id stays the same with its checkpoint; raises MirrorError."""
        if self._target is None:
            # The query has its own session, the same for all batches.
            self._target = self._make_target(frame.sparkSession)
            if batch_id and not self._target.tables():
                raise MirrorError(
                    f"the checkpoint {self._config.checkpoint} continues in the middle of the topic, but"
                    " there is no mirror with the changes before it",
                    hint="move the checkpoint away, and the topic is applied from its beginning",
                )
        target = self._target
        found = messages(frame).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            summary = _summary(found)
            require_readable(row.unreadable for row in summary)
            of_rows = [row for row in summary if row[Field.KIND] == Kind.ROWS]
            barriers: dict[TableName, Barriers] = {}
            if len(of_rows) < len(summary):
                texts = found.where(f.col(BARRIER).isNotNull()).select(BARRIER).collect()
                barriers = barriers_by_table((json.loads(row[0]) for row in texts), target.table_names)
            with_rows = {_name(row) for row in of_rows}
            for name in sorted(barriers.keys() | with_rows):
                table = self._prepared(target, name, barriers.get(name, Barriers()))
                if name in with_rows:
                    of_table = [row for row in of_rows if _name(row) == name]
                    if table is None:
                        raise _undefined(".".join(name), of_table[0][Field.SCHEMA], of_table[0].lowest)
                    newest = self._changes(table, found, name, of_table)
                    table.merge(newest, query_id, batch_id)
            self._count(summary)
        finally:
            found.unpersist()

    def _prepared(self, target: Target, name: TableName, barriers: Barriers) -> MirrorTable | None:
        """Returns the table after its barriers were applied; None if nothing is known of it."""
        config = self._config
        table = self._tables.get(name)
        is_opened = table is None
        if table is None:
            table = target.open(name)
        notes = Notes(".".join(name)) if table is None else table.notes
        has_news = barriers.add_to(notes)
        newest = notes.newest
        if newest is None:
            return None
        wanted = wanted_columns(newest, typed_dates=config.typed_dates)
        if table is None:
            table = target.create(name, notes, wanted)
        else:
            if is_opened or barriers.definitions:
                # A previous run may have ended between saving the notes and changing the columns.
                change = evolution(notes.table, table.columns, wanted, config.schema_changes)
            else:
                change = None
            if has_news:
                table.save_notes()
            if change:
                table.evolve(change)
            if barriers.may_empty:
                table.drop_below_floor()
        self._tables[name] = table
        return table

    def _changes(
        self, table: MirrorTable, found: DataFrame, name: TableName, summary: list[Row]
    ) -> DataFrame:
        """Returns the newest change of every row of a table; raises MirrorError."""
        rows = found.where(
            (message_field(Field.KIND) == Kind.ROWS)
            & (message_field(Field.DATABASE) == name[0])
            & (message_field(Field.TABLE) == name[1])
        )
        first = first_sequence()
        notes = table.notes
        frames = []
        for version, lowest in sorted((row[Field.SCHEMA], row.lowest) for row in summary):
            definitions = notes.definitions_of(version)
            if not definitions or lowest < definitions[0][0]:
                raise _undefined(notes.table, version, lowest)
            ends = [number for number, _ in definitions[1:]]
            for (begin, definition), end in zip(definitions, [*ends, None], strict=True):
                some = rows.where((message_field(Field.SCHEMA) == version) & (first >= begin))
                if end is not None:
                    some = some.where(first < end)
                strictly = definition == notes.newest and self._config.schema_changes != IGNORE
                frames.append(changes(some, definition, table.columns, table.convert, strictly=strictly))
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
                applied.rows += row.rows
                applied.committed_s = max(applied.committed_s, row.committed_s)
                applied.tables.add(".".join(_name(row)))


def _name(row: Row) -> TableName:
    return row[Field.DATABASE], row[Field.TABLE]


def _undefined(table: str, version: int, lowest: str) -> MirrorError:
    return MirrorError(
        f"the topic has no definition for version {version} of {table} at {lowest}",
        hint="the mirror begins after that message; restart binlog-sync, which sends it again",
    )


def _summary(found: DataFrame) -> list[Row]:
    """Counts messages and rows by table, schema version and kind.

    One query collects everything, because each query of a batch costs as much as some thousand rows.
    """
    return (
        found.groupBy(
            *(message_field(name) for name in (Field.DATABASE, Field.TABLE, Field.SCHEMA, Field.KIND))
        )
        .agg(
            f.count("*").alias("messages"),
            f.sum("bytes").alias("bytes"),
            f.min(first_sequence()).alias("lowest"),
            f.sum(f.size(message_field(Field.CHANGES))).alias("rows"),
            f.max(message_field(Field.COMMITTED)).alias("committed_s"),
            f.min(f.when(~readable(), f.struct("queueId", "queueOffset"))).alias("unreadable"),
        )
        .collect()
    )
