"""The tables of a lake: Delta, which refuses a repeated batch, or Parquet, where it replaces itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from metaq.pipelines.storage import names

RECORDS, QUARANTINE, FILES = "records", "quarantine", "files"
PARTITIONS: Final = ("date", "topic")
BATCH: Final = "batch"


@dataclass(frozen=True, slots=True)
class BatchId:
    """A batch of a query. A query keeps its id as long as its checkpoint."""

    query: str
    batch: int

    @property
    def name(self) -> str:
        return f"{query_name(self.query)}-{self.batch}"


def query_name(query: str) -> str:
    """Returns the short form of a query's id in names of directories."""
    return query[:8]


class LakeTables(Protocol):
    """The interface of both kinds of tables."""

    def append(self, name: str, rows: DataFrame, batch_id: BatchId) -> None:
        """Writes rows by date and topic. Writing the same batch again changes nothing."""

    def read(self, spark: SparkSession, name: str, batch_id: BatchId | None = None) -> DataFrame | None:
        """Reads a table; returns None if it does not exist.

        Parquet leaves out the rows of the given batch.
        """

    def compact(self, spark: SparkSession) -> None:
        """Merges small files."""


class DeltaTables:
    """Tables in Delta, whose commits record their batch. Delta refuses a batch that a table has."""

    def __init__(self, root: str) -> None:
        self._root = root

    def append(self, name: str, rows: DataFrame, batch_id: BatchId, *, is_partitioned: bool = True) -> None:
        writer = _gathered(rows, is_partitioned=is_partitioned).write.format("delta").mode("append")
        if is_partitioned:
            writer = writer.partitionBy(*PARTITIONS)
        writer = writer.option("txnAppId", batch_id.query).option("txnVersion", str(batch_id.batch))
        # The schema may have new fields.
        writer.option("mergeSchema", "true").save(self.path(name))

    def read(self, spark: SparkSession, name: str, batch_id: BatchId | None = None) -> DataFrame | None:
        if not DeltaTable.isDeltaTable(spark, self.path(name)):
            return None
        return spark.read.format("delta").load(self.path(name))

    def compact(self, spark: SparkSession) -> None:
        for name in (RECORDS, QUARANTINE):
            if DeltaTable.isDeltaTable(spark, self.path(name)):
                DeltaTable.forPath(spark, self.path(name)).optimize().executeCompaction()

    def path(self, name: str) -> str:
        return f"{self._root}/{name}"


class ParquetTables:
    """Tables in Parquet, where each batch has its own directories: `date=…/topic=…/batch=…`.

    Repeating the batch after a crash replaces them.
    """

    def __init__(self, root: str) -> None:
        self._root = root

    def append(self, name: str, rows: DataFrame, batch_id: BatchId) -> None:
        named = _gathered(rows).withColumn(BATCH, f.lit(batch_id.name))
        writer = named.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        writer.partitionBy(*PARTITIONS, BATCH).parquet(f"{self._root}/{name}")

    def read(self, spark: SparkSession, name: str, batch_id: BatchId | None = None) -> DataFrame | None:
        if not has_files(spark, f"{self._root}/{name}"):
            return None
        found = spark.read.parquet(f"{self._root}/{name}")
        return found if batch_id is None else found.where(f.col(BATCH) != batch_id.name)

    def compact(self, spark: SparkSession) -> None:
        """Does nothing: for a moment, readers would see rows twice or not at all."""


def has_files(spark: SparkSession, path: str) -> bool:
    """Returns whether a Parquet table has rows. A write that was killed leaves only directories."""
    return bool(names(spark, f"{path}/date=*/topic=*/batch=*/*.parquet"))


def _gathered(rows: DataFrame, *, is_partitioned: bool = True) -> DataFrame:
    """Gathers the rows of a date and topic into one file, unless they are many."""
    return rows.hint("rebalance", *PARTITIONS) if is_partitioned else rows.coalesce(1)
