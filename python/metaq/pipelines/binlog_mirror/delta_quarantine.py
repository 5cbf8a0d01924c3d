"""The quarantine of mirrors in Delta: one table for the refused rows of all mirrors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from delta.tables import DeltaMergeBuilder, DeltaTable
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from metaq.pipelines.binlog_mirror.columns import KEY, SEQUENCE
from metaq.pipelines.binlog_mirror.notes import TableName
from metaq.pipelines.binlog_mirror.refusals import LISTED_MAX, QUARANTINE_COLUMNS, Refusal
from metaq.pipelines.binlog_sync.envelope import RangeBarrier
from metaq.pipelines.decimals import decimal_text

_CONSTRAINT: Final = "delta.constraints."
"""The prefix of the properties in which Delta keeps the constraints that people add to a table."""


def broken_constraints(properties: Mapping[str, str], columns: Iterable[str]) -> Column | None:
    """Returns a struct (column, reason) for rows that break a constraint of the table, and NULL for others.

    Returns None if the table has no constraints.
    """
    names = list(columns)
    found = []
    for key, condition in sorted(properties.items()):
        if not key.startswith(_CONSTRAINT):
            continue
        reason = f"it breaks the constraint {key.removeprefix(_CONSTRAINT)}: {condition}"
        broken = f.struct(f.lit(constrained(condition, names)).alias("column"), f.lit(reason).alias("reason"))
        # Delta refuses a row for which the condition is NULL, too.
        found.append(f.when(~f.coalesce(f.expr(condition), f.lit(False)), broken))
    return f.coalesce(*found) if found else None


def constrained(condition: str, columns: Iterable[str]) -> str:
    """Returns the only column of the source that a condition names; an empty text if there are more."""
    words = {word.lower() for word in re.findall(r"`([^`]+)`|(\w+)", condition) for word in word}
    named = [name for name in columns if name.lower() in words]
    return named[0] if len(named) == 1 else ""


def within(value: Column, barrier: RangeBarrier) -> Column:
    """Returns whether a value is in a range."""
    limits = f.lit(True)
    if barrier.first is not None:
        limits &= value >= barrier.first
    if barrier.last is not None:
        limits &= value <= barrier.last
    return limits


def as_refusal(table: str, row: Row) -> Refusal:
    return Refusal(table, row["key"], row["column_name"] or "", row["value"] or "", row["reason"])


class DeltaQuarantine:
    """The rows of one mirror in the table of all quarantined rows. The table exists from the first one on."""

    def __init__(self, spark: SparkSession, path: str, name: TableName) -> None:
        self._spark = spark
        self._path = path
        self._name = name
        self._is_empty: bool | None = None
        """None until it is known."""

    def add(self, rows: DataFrame) -> int:
        """Adds rows, unless the quarantine has newer changes of them; returns their number."""
        schema = ", ".join(f"{name} string" for name in QUARANTINE_COLUMNS)
        DeltaTable.createIfNotExists(self._spark).location(self._path).addColumns(
            self._spark.createDataFrame([], schema).schema
        ).execute()
        (
            self._merge(rows, f.col("s.key"))
            .whenMatchedUpdateAll("s.seq > q.seq")
            .whenNotMatchedInsertAll()
            .execute()
        )
        self._is_empty = False
        return rows.count()

    def settle(self, changes: DataFrame) -> None:
        """Takes rows out of the quarantine that have changed since they were refused."""
        if not self._is_there():
            return
        self._merge(changes, f.col(f"s.{KEY}")).whenMatchedDelete(f"s.{SEQUENCE} > q.seq").execute()

    def forget(self, floor: str | None = None) -> None:
        """Takes all rows out of the quarantine, or those below a floor."""
        if self._is_there():
            chosen = self._own()
            if floor is not None:
                chosen &= f.col("seq") < floor
            DeltaTable.forPath(self._spark, self._path).delete(chosen)

    def forget_range(self, barrier: RangeBarrier) -> None:
        """Takes rows of a range of keys out of the quarantine that were not read again."""
        if self._is_there():
            # Keys are JSON. A column of numbers comes first, see `range_column` of binlog-sync.
            first = decimal_text(f.get_json_object("key", "$[0]")).try_cast("decimal(20,0)")
            chosen = self._own() & (f.col("seq") < barrier.begun) & within(first, barrier)
            DeltaTable.forPath(self._spark, self._path).delete(chosen)

    def listed(self) -> tuple[int, list[Refusal]]:
        if not self._is_there():
            return 0, []
        rows = self._rows()
        table = ".".join(self._name)
        found = [as_refusal(table, row) for row in rows.orderBy("key").limit(LISTED_MAX).collect()]
        return (len(found) if len(found) < LISTED_MAX else rows.count()), found

    def _is_there(self) -> bool:
        if self._is_empty is None:
            is_table = DeltaTable.isDeltaTable(self._spark, self._path)
            self._is_empty = not is_table or self._rows().head() is None
        return not self._is_empty

    def _own(self) -> Column:
        return (f.col("database_name") == self._name[0]) & (f.col("table_name") == self._name[1])

    def _rows(self) -> DataFrame:
        return self._spark.read.format("delta").load(self._path).where(self._own())

    def _merge(self, rows: DataFrame, key: Column) -> DeltaMergeBuilder:
        same = (
            (f.col("q.database_name") == self._name[0])
            & (f.col("q.table_name") == self._name[1])
            & (f.col("q.key") == key)
        )
        return DeltaTable.forPath(self._spark, self._path).alias("q").merge(rows.alias("s"), same)
