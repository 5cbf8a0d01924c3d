"""One micro-batch: barriers first, then the newest change of every row into its mirror."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from metaq.pipelines.binlog_mirror.columns import SEQUENCE, evolution, wanted_columns
from metaq.pipelines.binlog_mirror.config import IGNORE, MirrorConfig
from metaq.pipelines.binlog_mirror.decode import changes, latest, messages, readable, require_readable
from metaq.pipelines.binlog_mirror.errors import MirrorError
from metaq.pipelines.binlog_mirror.notes import Barriers, Notes, TableName, barriers_by_table
from metaq.pipelines.binlog_mirror.target import MirrorTable, Target

ROWS: Final = "rows"


@dataclass(slots=True)
class Applied:
    """What a run has applied."""

    batches: int = 0
    messages: int = 0
    rows: int = 0
    bytes: int = 0
    committed: int = 0
    """When the newest change was committed, in seconds."""
    tables: set[str] = field(default_factory=set)


class Applier:
    """Applies batches in their order. What it keeps in memory is on disk before it counts."""

    def __init__(self, config: MirrorConfig, target: Callable[[SparkSession], Target]) -> None:
        self._config = config
        self._make_target = target
        self._target: Target | None = None
        self._tables: dict[TableName, MirrorTable] = {}
        self.applied = Applied()

    def apply(self, frame: DataFrame, batch: int, app: str) -> None:
        """`app` is the id of the query, which stays with its checkpoint; raises MirrorError."""
        if self._target is None:
            # A query has a session of its own, the same for all of its batches.
            self._target = self._make_target(frame.sparkSession)
            if batch and not self._target.tables():
                raise MirrorError(
                    f"the checkpoint {self._config.checkpoint} goes on in the middle of the topic, and"
                    " there is no mirror that has what comes before",
                    hint="move the checkpoint away, and the topic is applied from its beginning",
                )
        target = self._target
        found = messages(frame).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            summary = _summary(found)
            require_readable(row.unreadable for row in summary)
            of_rows = [row for row in summary if row.kind == ROWS]
            barriers: dict[TableName, Barriers] = {}
            if len(of_rows) < len(summary):
                texts = found.where("barrier IS NOT NULL").select("barrier").collect()
                barriers = barriers_by_table((json.loads(row.barrier) for row in texts), target.table_names)
            with_rows = {(row.database, row.table) for row in of_rows}
            for name in sorted(barriers.keys() | with_rows):
                table = self._prepared(target, name, barriers.get(name, Barriers()))
                if name in with_rows:
                    told = [row for row in of_rows if row[:2] == name]
                    if table is None:
                        raise _untold(".".join(name), told[0].schema, told[0].lowest)
                    self._merge(table, found, name, told, batch, app)
            self._count(summary)
        finally:
            found.unpersist()

    def _prepared(self, target: Target, name: TableName, barriers: Barriers) -> MirrorTable | None:
        """The table with everything noted that the barriers say; None where nothing is known of it."""
        config = self._config
        table = self._tables.get(name)
        is_opened = table is None
        if table is None:
            table = target.open(name)
        notes = Notes(".".join(name)) if table is None else table.notes
        has_news = barriers.note(notes)
        newest = notes.newest
        if newest is None:
            return None
        wanted = wanted_columns(newest, typed_dates=config.typed_dates)
        if table is None:
            table = target.create(name, notes, wanted)
        else:
            if is_opened or barriers.definitions:
                # Noted or not, a run before may have ended before the columns were changed.
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

    def _merge(
        self, table: MirrorTable, found: DataFrame, name: TableName, summary: list[Row], batch: int, app: str
    ) -> None:
        rows = found.where(
            (f.col("m.kind") == ROWS) & (f.col("m.database") == name[0]) & (f.col("m.table") == name[1])
        )
        first = f.col("m.changes")[0]["seq"]
        notes = table.notes
        frames = []
        for version, lowest in sorted((row.schema, row.lowest) for row in summary):
            told = notes.told(version)
            if not told or lowest < told[0][0]:
                raise _untold(notes.table, version, lowest)
            ends = [number for number, _ in told[1:]]
            for (begins, definition), end in zip(told, [*ends, None], strict=True):
                some = rows.where((f.col("m.schema") == version) & (first >= begins))
                if end is not None:
                    some = some.where(first < end)
                strictly = definition == notes.newest and self._config.schema_changes != IGNORE
                frames.append(changes(some, definition, table.columns, table.value, strictly=strictly))
        newest = latest(frames)
        if notes.floor:
            newest = newest.where(f.col(SEQUENCE) >= notes.floor)
        table.merge(newest, app, batch)

    def _count(self, summary: list[Row]) -> None:
        applied = self.applied
        applied.batches += 1
        for row in summary:
            applied.messages += row.messages
            applied.bytes += row.bytes
            if row.kind == ROWS:
                applied.rows += row.rows
                applied.committed = max(applied.committed, row.committed)
                applied.tables.add(f"{row.database}.{row.table}")


def _untold(table: str, version: int, lowest: str) -> MirrorError:
    return MirrorError(
        f"the topic does not say what version {version} of {table} looks like at {lowest}",
        hint="the mirror begins behind that message; a restart of binlog-sync tells it again",
    )


def _summary(found: DataFrame) -> list[Row]:
    """Which tables and versions have rows, and how many; what else there is, by its kind. One look at a batch
    tells all that is told of it, as each one costs as much as some thousand rows."""
    return (
        found.groupBy(*(f.col(f"m.{name}") for name in ("database", "table", "schema", "kind")))
        .agg(
            f.count("*").alias("messages"),
            f.sum("bytes").alias("bytes"),
            f.min(f.col("m.changes")[0]["seq"]).alias("lowest"),
            f.sum(f.size("m.changes")).alias("rows"),
            f.max("m.committed").alias("committed"),
            f.min(f.when(~readable(), f.struct("queueId", "queueOffset"))).alias("unreadable"),
        )
        .collect()
    )
