"""Lines that an agent has sent twice: same topic, file (`log.id`) and place in it (`log.at`).

A lake cannot be searched for every line. But of each file it is kept how far it is known: a line behind that
is new. Only one before it may be there already, which happens when an agent was ended and sends again, and
for such lines the lake is searched, as far back as `repeats_days` says.

How far is written before the lines are: if the power goes between, lines are looked for that are not there,
which costs time and nothing else.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from metaq.pipelines.log_lake.tables import FILES, QUARANTINE, RECORDS, Commit, DeltaTables

FILE: Final = ("topic", "log_id")
LINE: Final = (*FILE, "log_at")
COPY: Final = "_copy"
DAY_US: Final = 86_400_000_000


def with_copies(rows: DataFrame) -> DataFrame:
    """Numbers lines that a batch has several times: the first one has 1, as every row that is no line."""
    # Rows without a file would all be one group otherwise.
    own = f.concat_ws("/", "broker", "queue_id", "queue_offset")
    is_line = f.col("log_id").isNotNull() & f.col("log_at").isNotNull()
    group = Window.partitionBy("topic", f.when(is_line, f.col("log_id")).otherwise(own), "log_at")
    return rows.withColumn(COPY, f.row_number().over(group.orderBy("broker", "queue_id", "queue_offset")))


class Repeats:
    """What a Delta lake knows of files."""

    def __init__(self, tables: DeltaTables, days: int) -> None:
        self._tables = tables
        self._days = days

    def without(self, rows: DataFrame, commit: Commit) -> DataFrame:
        """The rows that the lake has not got; the very same frame where none of them can be there."""
        spark = rows.sparkSession
        known = self._tables.read(spark, FILES)
        if known is None:
            return rows
        # A batch that is done again is not behind itself.
        others = known.where(~_is_of(commit))
        ends = others.groupBy(*FILE).agg(f.max("at_max").alias("at_max"))
        maybe = (
            rows.join(ends, list(FILE)).where(f.col("log_at") <= f.col("at_max")).select(*LINE, "stored_at")
        )
        oldest = _number(maybe.agg(f.unix_micros(f.min("stored_at"))))
        if oldest is None:
            return rows
        there = self._lines(spark, oldest - self._days * DAY_US, commit)
        if there is None:
            return rows
        again = there.join(maybe.select(*LINE), list(LINE), "left_semi").distinct()
        return rows.join(again, list(LINE), "left_anti")

    def _lines(self, spark: SparkSession, since_us: int, commit: Commit) -> DataFrame | None:
        """Of both tables."""
        lines: DataFrame | None = None
        since = f.timestamp_micros(f.lit(since_us))
        for name in (RECORDS, QUARANTINE):
            found = self._tables.read(spark, name, commit)
            if found is not None:
                some = found.where((f.col("stored_at") >= since) & f.col("log_id").isNotNull()).select(*LINE)
                lines = some if lines is None else lines.unionAll(some)
        return lines

    def note(self, rows: DataFrame, commit: Commit) -> None:
        """How far each file of the batch is known."""
        ends = (
            rows.where("log_id IS NOT NULL AND log_at IS NOT NULL")
            .groupBy(*FILE)
            .agg(f.max("log_at").alias("at_max"), f.max("stored_at").alias("seen"))
            .withColumns({"query": f.lit(commit.query), "batch": f.lit(commit.batch).cast("bigint")})
        )
        self._tables.append(FILES, ends, commit, is_partitioned=False)

    def fold(self, spark: SparkSession) -> None:
        """One row for each file, and none for those of which nothing has come for long."""
        known = self._tables.read(spark, FILES)
        if known is None:
            return
        # One topic may be far behind another. And a clock that was wrong once says nothing of the others.
        newest = f.least(f.max("seen").over(Window.partitionBy("topic")), f.current_timestamp())
        folded = (
            known.groupBy(*FILE)
            .agg(f.max("at_max").alias("at_max"), f.max("seen").alias("seen"))
            .withColumn("_newest", newest)
            .where(f.col("seen") >= f.col("_newest") - f.make_dt_interval(f.lit(self._days)))
            .drop("_newest")
            .withColumns({"query": f.lit(None).cast("string"), "batch": f.lit(None).cast("bigint")})
        )
        folded.coalesce(1).write.format("delta").mode("overwrite").save(self._tables.place(FILES))


def _is_of(commit: Commit) -> Column:
    return f.col("query").eqNullSafe(commit.query) & (f.col("batch") >= commit.batch)


def _number(frame: DataFrame) -> int | None:
    row = frame.head()
    return None if row is None else row[0]
