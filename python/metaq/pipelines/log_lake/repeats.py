"""Drops lines that an agent has sent twice: same topic, file (`log.id`) and position in it (`log.at`).

Searching the lake for every line would cost too much. So the lake records how far each file is known. A line
after that position is new. Only a line before it may be in the lake already, because an agent was ended and
sends it again. For such lines the lake is searched, as far back as `repeats_days`.

The position is written before the lines. If the power fails in between, the lake is searched for lines that
it does not have, which only costs time.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from metaq.pipelines.log_lake.tables import FILES, QUARANTINE, RECORDS, BatchId, DeltaTables

FILE: Final = ("topic", "log_id")
LINE: Final = (*FILE, "log_at")
COPY: Final = "_copy"
DAY_US: Final = 86_400_000_000


def with_copies(rows: DataFrame) -> DataFrame:
    """Numbers the copies of a line within a batch from 1; rows that are not lines get 1."""
    # Rows without a file must not form one group.
    own = f.concat_ws("/", "broker", "queue_id", "queue_offset")
    is_line = f.col("log_id").isNotNull() & f.col("log_at").isNotNull()
    group = Window.partitionBy("topic", f.when(is_line, f.col("log_id")).otherwise(own), "log_at")
    return rows.withColumn(COPY, f.row_number().over(group.orderBy("broker", "queue_id", "queue_offset")))


class Repeats:
    """Keeps how far each file is known, in a Delta lake."""

    def __init__(self, tables: DeltaTables, days: int) -> None:
        self._tables = tables
        self._days = days

    def without(self, rows: DataFrame, batch_id: BatchId) -> DataFrame:
        """Returns the rows that the lake lacks; the same frame object if it can have none of them."""
        spark = rows.sparkSession
        known = self._tables.read(spark, FILES)
        if known is None:
            return rows
        # A batch that is repeated must not find its own record.
        others = known.where(~_is_of(batch_id))
        ends = others.groupBy(*FILE).agg(f.max("at_max").alias("at_max"))
        maybe = (
            rows.join(ends, list(FILE)).where(f.col("log_at") <= f.col("at_max")).select(*LINE, "stored_at")
        )
        oldest = _number(maybe.agg(f.unix_micros(f.min("stored_at"))))
        if oldest is None:
            return rows
        there = self._lines(spark, oldest - self._days * DAY_US, batch_id)
        if there is None:
            return rows
        again = there.join(maybe.select(*LINE), list(LINE), "left_semi").distinct()
        return rows.join(again, list(LINE), "left_anti")

    def _lines(self, spark: SparkSession, since_us: int, batch_id: BatchId) -> DataFrame | None:
        """Returns the lines of both tables since a time; None if there are no tables."""
        lines: DataFrame | None = None
        since = f.timestamp_micros(f.lit(since_us))
        for name in (RECORDS, QUARANTINE):
            found = self._tables.read(spark, name, batch_id)
            if found is not None:
                some = found.where((f.col("stored_at") >= since) & f.col("log_id").isNotNull()).select(*LINE)
                lines = some if lines is None else lines.unionAll(some)
        return lines

    def note(self, rows: DataFrame, batch_id: BatchId) -> None:
        """Records how far each file of the batch is known."""
        ends = (
            rows.where("log_id IS NOT NULL AND log_at IS NOT NULL")
            .groupBy(*FILE)
            .agg(f.max("log_at").alias("at_max"), f.max("stored_at").alias("seen"))
            .withColumns({"query": f.lit(batch_id.query), "batch": f.lit(batch_id.batch).cast("bigint")})
        )
        self._tables.append(FILES, ends, batch_id, is_partitioned=False)

    def fold(self, spark: SparkSession) -> None:
        """Keeps one record for each file, and none for files without lines for `repeats_days`."""
        known = self._tables.read(spark, FILES)
        if known is None:
            return
        # Topics are compared separately, because one may be far behind another. A time in the future, from
        # a wrong clock, must not expire the others.
        newest = f.least(f.max("seen").over(Window.partitionBy("topic")), f.current_timestamp())
        folded = (
            known.groupBy(*FILE)
            .agg(f.max("at_max").alias("at_max"), f.max("seen").alias("seen"))
            .withColumn("_newest", newest)
            .where(f.col("seen") >= f.col("_newest") - f.make_dt_interval(f.lit(self._days)))
            .drop("_newest")
            .withColumns({"query": f.lit(None).cast("string"), "batch": f.lit(None).cast("bigint")})
        )
        folded.coalesce(1).write.format("delta").mode("overwrite").save(self._tables.path(FILES))


def _is_of(batch_id: BatchId) -> Column:
    return f.col("query").eqNullSafe(batch_id.query) & (f.col("batch") >= batch_id.batch)


def _number(frame: DataFrame) -> int | None:
    row = frame.head()
    return None if row is None else row[0]
