"""Writes one micro-batch: decodes it, drops repeats and appends it to the two tables."""

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
from metaq.pipelines.log_lake.tables import (
    QUARANTINE,
    RECORDS,
    BatchId,
    DeltaTables,
    LakeTables,
    ParquetTables,
)

_log = logging.getLogger(__name__)
_ZONE: Final = "spark.sql.session.timeZone"
FOLD_BATCHES: Final = 60
"""Each batch records how far files are known. These records are folded even if nothing is compacted."""


@dataclass(slots=True)
class Written:
    """Counters of a run."""

    rows: int = 0
    bytes: int = 0
    quarantined: int = 0
    repeats: int = 0
    batches: int = 0
    compactions: int = 0


class Batches:
    """Writes batches in order. Nothing that it keeps needs to survive."""

    def __init__(self, config: LakeConfig, decoder: Decoder) -> None:
        self._config = config
        self._decoder = decoder
        self._tables: LakeTables
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

    def write(self, messages: DataFrame, batch_id: BatchId) -> None:
        # The query has its own session, which needs the configured time zone.
        messages.sparkSession.conf.set(_ZONE, self._config.zone)
        rows = self._decoder.rows(messages)
        if self._config.drops_repeats:
            rows = with_copies(rows)
        with _kept(rows) as rows:
            self._write(rows, batch_id)
        self.written.batches += 1
        compacts = self._config.compact_batches
        if (batch_id.batch + 1) % (compacts or FOLD_BATCHES) == 0:
            self._compact(messages.sparkSession, everything=compacts > 0)

    def _write(self, rows: DataFrame, batch_id: BatchId) -> None:
        if not self._config.drops_repeats:
            rows = rows.withColumn(COPY, f.lit(1))
        left, new = _counted(rows), rows.where(f.col(COPY) == 1)
        came = left.rows + left.copies
        if not came:
            return
        unknown = new
        if self._repeats is not None:
            unknown = self._repeats.without(new, batch_id)
            self._repeats.note(new, batch_id)
        if unknown is new:
            self._append(new, left, batch_id)
        else:
            # The lake must be searched before anything of this batch is written to it.
            with _kept(unknown) as new:
                left = _counted(new)
                self._append(new, left, batch_id)
        written = self.written
        written.rows += left.rows - left.bad
        written.quarantined += left.bad
        written.repeats += came - left.rows
        written.bytes += left.bytes

    def _append(self, rows: DataFrame, counted: Row, batch_id: BatchId) -> None:
        if counted.bad:
            self._tables.append(QUARANTINE, self._quarantined(rows), batch_id)
        if counted.rows > counted.bad:
            self._tables.append(RECORDS, self._records(rows), batch_id)

    def _records(self, rows: DataFrame) -> DataFrame:
        good = rows.where(f.col(REASON).isNull())
        origin = [name for name in ORIGIN if name != "stored_at"]
        return good.select("date", "topic", "time", "stored_at", *self._decoder.content, *origin)

    def _quarantined(self, rows: DataFrame) -> DataFrame:
        """Returns the bad rows, by the day of storing, because their own time may be wrong."""
        bad = rows.where(f.col(REASON).isNotNull()).withColumn("date", f.to_date("stored_at"))
        return bad.select("date", "topic", REASON, "body", *ORIGIN, "born_at", "properties")

    def _compact(self, spark: SparkSession, *, everything: bool) -> None:
        try:
            if self._repeats is not None:
                self._repeats.fold(spark)
            if everything:
                self._tables.compact(spark)
        except PySparkException as error:
            # The rows are safe, and the next batch tries again. Another writer may have interfered.
            _log.warning("the lake could not be compacted: %s", str(error).strip().partition("\n")[0])
        else:
            self.written.compactions += everything


@contextmanager
def _kept(rows: DataFrame) -> Iterator[DataFrame]:
    """Computes a frame only once."""
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
