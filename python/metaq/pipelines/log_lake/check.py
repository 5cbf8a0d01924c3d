"""Whether the lake that is there can take what a run would write, asked before anything is read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from metaq.errors import ConfigError
from metaq.pipelines.log_lake.config import DELTA, PARQUET, LakeConfig
from metaq.pipelines.log_lake.tables import QUARANTINE, RECORDS, commit_name, has_files
from metaq.pipelines.storage import exists, names, text


def is_table(spark: SparkSession, config: LakeConfig, name: str) -> bool:
    """Whether it can be read: a first write that was killed leaves a directory that cannot."""
    path = f"{config.path}/{name}"
    return DeltaTable.isDeltaTable(spark, path) if config.format == DELTA else has_files(spark, path)


def check_lake(spark: SparkSession, config: LakeConfig, wanted: StructType) -> None:
    """Raises ConfigError."""
    where = config.file
    found = [name for name in (RECORDS, QUARANTINE) if exists(spark, f"{config.path}/{name}")]
    for name in found:
        kind = DELTA if exists(spark, f"{config.path}/{name}/_delta_log") else PARQUET
        if kind != config.format:
            raise ConfigError(
                f'{where}: lake.format = "{config.format}", and {config.path}/{name} is {kind}',
                hint="name another lake.path, or the format that is there",
            )
    tables = [name for name in found if is_table(spark, config, name)]
    if found and not exists(spark, f"{config.checkpoint}/metadata"):
        raise ConfigError(
            f"{where}: lake.checkpoint {config.checkpoint} is not there, and the lake at {config.path} is:"
            " its messages would be written again",
            hint="bring the checkpoint back, name the right one, or begin with an empty lake.path",
        )
    if tables:
        _check_progress(spark, config, tables)
    if config.format == DELTA and RECORDS in tables:
        there = spark.read.format("delta").load(f"{config.path}/{RECORDS}").schema
        for clash in _clashes(there, wanted):
            raise ConfigError(
                f"{where}: records.schema does not fit the table: {clash}",
                hint="a field may be added; one of another type needs another name or another lake.path",
            )


def _check_progress(spark: SparkSession, config: LakeConfig, tables: Iterable[str]) -> None:
    """A checkpoint that is older than the lake, or not its own, would have batches left out or doubled."""
    query = json.loads(text(spark, f"{config.checkpoint}/metadata"))["id"]
    numbers = (name for name in names(spark, f"{config.checkpoint}/offsets/*") if name.isdecimal())
    begun = max(map(int, numbers), default=-1)
    written: dict[str, int] = {}
    for name in tables:
        of = _delta_batches if config.format == DELTA else _parquet_batches
        for who, batch in of(spark, f"{config.path}/{name}").items():
            written[who] = max(batch, written.get(who, -1))
    ours = query if config.format == DELTA else commit_name(query)
    if written and ours not in written:
        raise ConfigError(
            f"{config.file}: the lake at {config.path} was written with another checkpoint than"
            f" {config.checkpoint}: its messages would be written again",
            hint="name the checkpoint that belongs to the lake, or begin with an empty lake.path",
        )
    if written.get(ours, -1) > begun:
        raise ConfigError(
            f"{config.file}: lake.checkpoint {config.checkpoint} is older than the lake: it knows of batch"
            f" {begun}, and the lake has batch {written[ours]}; what is read again would be left out",
            hint="bring back the checkpoint that the lake was written with last",
        )


def _delta_batches(spark: SparkSession, path: str) -> dict[str, int]:
    """The last batch of each query that has written, as Delta keeps it."""
    context: Any = spark.sparkContext
    log = context._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
    # Another process may have written since this one looked.
    now = log.update(*(getattr(log, f"update$default${number}")() for number in (1, 2, 3)))
    found = now.transactions().iterator()
    batches = {}
    while found.hasNext():
        one = found.next()
        batches[str(one._1())] = int(one._2())
    return batches


def _parquet_batches(spark: SparkSession, path: str) -> dict[str, int]:
    batches: dict[str, int] = {}
    for name in names(spark, f"{path}/date=*/topic=*/batch=*"):
        who, _, number = name.removeprefix("batch=").rpartition("-")
        if number.isdecimal():
            batches[who] = max(int(number), batches.get(who, -1))
    return batches


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
