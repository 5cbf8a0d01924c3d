"""The tables of a lake: Delta, where a batch is written once, or Parquet, where it replaces itself."""

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
class Commit:
    """Which batch of which query is written. A query keeps its id as long as its checkpoint."""

    query: str
    batch: int

    @property
    def name(self) -> str:
        return f"{commit_name(self.query)}-{self.batch}"


def commit_name(query: str) -> str:
    """Of a query, in names of directories."""
    return query[:8]


class Tables(Protocol):
    """What both kinds can."""

    def append(self, name: str, rows: DataFrame, commit: Commit) -> None:
        """By date and topic. The same batch again changes nothing."""

    def read(self, spark: SparkSession, name: str, commit: Commit | None = None) -> DataFrame | None:
        """Without the rows of that batch, where they can be told; None where there is no table yet."""

    def compact(self, spark: SparkSession) -> None:
        """Makes few files of many."""


class DeltaTables:
    """A commit holds the batch it came from, and Delta refuses one that a table has."""

    def __init__(self, path: str) -> None:
        self._path = path

    def append(self, name: str, rows: DataFrame, commit: Commit, *, is_partitioned: bool = True) -> None:
        writer = _gathered(rows, is_partitioned=is_partitioned).write.format("delta").mode("append")
        if is_partitioned:
            writer = writer.partitionBy(*PARTITIONS)
        writer = writer.option("txnAppId", commit.query).option("txnVersion", str(commit.batch))
        # A schema may have got new fields since.
        writer.option("mergeSchema", "true").save(self.place(name))

    def read(self, spark: SparkSession, name: str, commit: Commit | None = None) -> DataFrame | None:
        if not DeltaTable.isDeltaTable(spark, self.place(name)):
            return None
        return spark.read.format("delta").load(self.place(name))

    def compact(self, spark: SparkSession) -> None:
        for name in (RECORDS, QUARANTINE):
            if DeltaTable.isDeltaTable(spark, self.place(name)):
                DeltaTable.forPath(spark, self.place(name)).optimize().executeCompaction()

    def place(self, name: str) -> str:
        return f"{self._path}/{name}"


class ParquetTables:
    """Each batch has directories of its own: `date=…/topic=…/batch=…`. What a crash has left there goes when
    the batch is done again."""

    def __init__(self, path: str) -> None:
        self._path = path

    def append(self, name: str, rows: DataFrame, commit: Commit) -> None:
        named = _gathered(rows).withColumn(BATCH, f.lit(commit.name))
        writer = named.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        writer.partitionBy(*PARTITIONS, BATCH).parquet(f"{self._path}/{name}")

    def read(self, spark: SparkSession, name: str, commit: Commit | None = None) -> DataFrame | None:
        if not has_files(spark, f"{self._path}/{name}"):
            return None
        found = spark.read.parquet(f"{self._path}/{name}")
        return found if commit is None else found.where(f.col(BATCH) != commit.name)

    def compact(self, spark: SparkSession) -> None:
        """Cannot be done without a moment in which readers see rows twice, or not at all."""


def has_files(spark: SparkSession, path: str) -> bool:
    """Whether a Parquet table by date, topic and batch has a row: what was killed leaves directories only."""
    return bool(names(spark, f"{path}/date=*/topic=*/batch=*/*.parquet"))


def _gathered(rows: DataFrame, *, is_partitioned: bool = True) -> DataFrame:
    """One file for a date and topic instead of one from each task, unless it is a large one."""
    return rows.hint("rebalance", *PARTITIONS) if is_partitioned else rows.coalesce(1)
