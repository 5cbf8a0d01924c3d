"""One micro-batch: decoded, without repeats, into the two tables."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from metaq.pipelines.log_lake.config import DELTA, LakeConfig
from metaq.pipelines.log_lake.decode import ORIGIN, REASON, Decoder
from metaq.pipelines.log_lake.repeats import COPY, Repeats, with_copies
from metaq.pipelines.log_lake.tables import QUARANTINE, RECORDS, Commit, DeltaTables, ParquetTables, Tables

_log = logging.getLogger(__name__)
_ZONE: Final = "spark.sql.session.timeZone"
FOLD_BATCHES: Final = 60
"""How far files are known is written by each batch, and must not grow for ever where nothing is compacted."""


@dataclass(slots=True)
class Written:
    """What a run has done."""

    rows: int = 0
    bytes: int = 0
    quarantined: int = 0
    repeats: int = 0
    batches: int = 0
    compactions: int = 0


class Batches:
    """Writes batches in their order. It keeps nothing that would have to survive."""

    def __init__(self, config: LakeConfig, decoder: Decoder) -> None:
        self._config = config
        self._decoder = decoder
        self._tables: Tables
        self._repeats: Repeats | None = None
        if config.format == DELTA:
            self._tables = DeltaTables(config.path)
            if config.drops_repeats:
                self._repeats = Repeats(self._tables, config.repeats_days)
        else:
            self._tables = ParquetTables(config.path)
        self.written = Written()

    def record_schema(self, messages: DataFrame) -> StructType:
        return self._records(self._decoder.rows(messages)).schema

    def write(self, messages: DataFrame, commit: Commit) -> None:
        # The query has a session of its own: whatever the program has set, days begin where the file says.
        messages.sparkSession.conf.set(_ZONE, self._config.zone)
        rows = self._decoder.rows(messages)
        if self._config.drops_repeats:
            rows = with_copies(rows)
        with _kept(rows) as rows:
            self._write(rows, commit)
        self.written.batches += 1
        compacts = self._config.compact_batches
        if (commit.batch + 1) % (compacts or FOLD_BATCHES) == 0:
            self._compact(messages.sparkSession, everything=compacts > 0)

    def _write(self, rows: DataFrame, commit: Commit) -> None:
        if not self._config.drops_repeats:
            rows = rows.withColumn(COPY, f.lit(1))
        left, new = _counted(rows), rows.where(f.col(COPY) == 1)
        came = left.rows + left.copies
        if not came:
            return
        unknown = new
        if self._repeats is not None:
            unknown = self._repeats.without(new, commit)
            self._repeats.note(new, commit)
        if unknown is new:
            self._append(new, left, commit)
        else:
            # The lake is searched once, and before anything of this batch is in it.
            with _kept(unknown) as new:
                left = _counted(new)
                self._append(new, left, commit)
        written = self.written
        written.rows += left.rows - left.bad
        written.quarantined += left.bad
        written.repeats += came - left.rows
        written.bytes += left.bytes

    def _append(self, rows: DataFrame, counted: Row, commit: Commit) -> None:
        if counted.bad:
            self._tables.append(QUARANTINE, self._quarantined(rows), commit)
        if counted.rows > counted.bad:
            self._tables.append(RECORDS, self._records(rows), commit)

    def _records(self, rows: DataFrame) -> DataFrame:
        good = rows.where(f.col(REASON).isNull())
        origin = [name for name in ORIGIN if name != "stored_at"]
        return good.select("date", "topic", "time", "stored_at", *self._decoder.content, *origin)

    def _quarantined(self, rows: DataFrame) -> DataFrame:
        """By the day of storing: the row's own may be what is wrong with it."""
        bad = rows.where(f.col(REASON).isNotNull()).withColumn("date", f.to_date("stored_at"))
        return bad.select("date", "topic", REASON, "body", *ORIGIN, "born_at", "properties")

    def _compact(self, spark: SparkSession, *, everything: bool) -> None:
        try:
            if self._repeats is not None:
                self._repeats.fold(spark)
            if everything:
                self._tables.compact(spark)
        except PySparkException as error:
            # Rows are safe, and the next time does what this one did not: somebody else may have done it.
            _log.warning("the lake is not compacted: %s", str(error).strip().partition("\n")[0])
        else:
            self.written.compactions += everything


@contextmanager
def _kept(rows: DataFrame) -> Iterator[DataFrame]:
    """Computed once, however often it is used."""
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield rows
    finally:
        rows.unpersist()


def _counted(rows: DataFrame) -> Row:
    is_first = f.col(COPY) == 1
    found = rows.agg(
        f.count_if(is_first).alias("rows"),
        f.count_if(~is_first).alias("copies"),
        f.count_if(is_first & f.col(REASON).isNotNull()).alias("bad"),
        f.coalesce(f.sum(f.when(is_first, f.octet_length("body"))), f.lit(0)).alias("bytes"),
    ).head()
    assert found is not None
    return found
