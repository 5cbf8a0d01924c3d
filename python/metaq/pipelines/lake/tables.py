"""The tables of a lake: Delta, where a batch is written once, or Parquet, where it replaces itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from metaq.errors import ConfigError
from metaq.pipelines.lake.config import DELTA, PARQUET, LakeConfig

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
        return f"{self.query[:8]}-{self.batch}"


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
        if not exists(spark, f"{self._path}/{name}"):
            return None
        found = spark.read.parquet(f"{self._path}/{name}")
        return found if commit is None else found.where(f.col(BATCH) != commit.name)

    def compact(self, spark: SparkSession) -> None:
        """Cannot be done without a moment in which readers see rows twice, or not at all."""


def _gathered(rows: DataFrame, *, is_partitioned: bool = True) -> DataFrame:
    """One file for a date and topic instead of one from each task, unless it is a large one."""
    return rows.hint("rebalance", *PARTITIONS) if is_partitioned else rows.coalesce(1)


def exists(spark: SparkSession, path: str) -> bool:
    """On whatever file system it is."""
    context: Any = spark.sparkContext
    place = context._jvm.org.apache.hadoop.fs.Path(path)
    return bool(place.getFileSystem(context._jsc.hadoopConfiguration()).exists(place))


def check_lake(spark: SparkSession, config: LakeConfig, wanted: StructType) -> None:
    """Whether the lake that is there can take these rows; raises ConfigError before anything is read."""
    where = config.file
    found = [name for name in (RECORDS, QUARANTINE) if exists(spark, f"{config.path}/{name}")]
    for name in found:
        kind = DELTA if exists(spark, f"{config.path}/{name}/_delta_log") else PARQUET
        if kind != config.format:
            raise ConfigError(
                f'{where}: lake.format = "{config.format}", and {config.path}/{name} is {kind}',
                hint="name another lake.path, or the format that is there",
            )
    if found and not exists(spark, f"{config.checkpoint}/metadata"):
        raise ConfigError(
            f"{where}: lake.checkpoint {config.checkpoint} is not there, and the lake at {config.path} is:"
            " its messages would be written again",
            hint="bring the checkpoint back, name the right one, or begin with an empty lake.path",
        )
    if config.format == DELTA and RECORDS in found:
        there = spark.read.format("delta").load(f"{config.path}/{RECORDS}").schema
        for clash in _clashes(there, wanted):
            raise ConfigError(
                f"{where}: records.schema does not fit the table: {clash}",
                hint="a field may be added; one of another type needs another name or another lake.path",
            )


def _clashes(there: StructType, wanted: StructType, prefix: str = "") -> list[str]:
    """Fields that both have, with different types."""
    found = []
    # As Delta does, which takes no two names that differ by case.
    known = {field.name.lower(): field.dataType for field in there}
    for field in wanted:
        other = known.get(field.name.lower())
        if isinstance(other, StructType) and isinstance(field.dataType, StructType):
            found += _clashes(other, field.dataType, f"{prefix}{field.name}.")
        elif other is not None and other.simpleString() != field.dataType.simpleString():
            found.append(
                f"{prefix}{field.name} is {field.dataType.simpleString()}, and was {other.simpleString()}"
            )
    return found
