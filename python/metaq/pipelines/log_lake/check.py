"""Checks that an existing lake can take the rows of a run, before anything is read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from metaq.errors import ConfigError
from metaq.pipelines.log_lake.config import DELTA, PARQUET, LakeConfig
from metaq.pipelines.log_lake.tables import QUARANTINE, RECORDS, has_files, query_name
from metaq.pipelines.storage import exists, names, text


def is_table(spark: SparkSession, config: LakeConfig, name: str) -> bool:
    """Returns whether a table can be read: a first write that was killed leaves a useless directory."""
    path = f"{config.path}/{name}"
    return DeltaTable.isDeltaTable(spark, path) if config.format == DELTA else has_files(spark, path)


def check_lake(spark: SparkSession, config: LakeConfig, wanted: StructType) -> None:
    """Checks format, checkpoint and schema; raises ConfigError."""
    where = config.file
    found = [name for name in (RECORDS, QUARANTINE) if exists(spark, f"{config.path}/{name}")]
    for name in found:
        kind = DELTA if exists(spark, f"{config.path}/{name}/_delta_log") else PARQUET
        if kind != config.format:
            raise ConfigError(
                f'{where}: lake.format = "{config.format}", but {config.path}/{name} is {kind}',
                hint="set another lake.path, or the format of the existing table",
            )
    tables = [name for name in found if is_table(spark, config, name)]
    if found and not exists(spark, f"{config.checkpoint}/metadata"):
        raise ConfigError(
            f"{where}: lake.checkpoint {config.checkpoint} does not exist, but the lake at {config.path}"
            " does: its messages would be written again",
            hint="restore the checkpoint, name the right one, or begin with an empty lake.path",
        )
    if tables:
        _check_progress(spark, config, tables)
    if config.format == DELTA and RECORDS in tables:
        there = spark.read.format("delta").load(f"{config.path}/{RECORDS}").schema
        for clash in _clashes(there, wanted):
            raise ConfigError(
                f"{where}: records.schema does not fit the table: {clash}",
                hint="you may add fields; a field of another type needs another name or another lake.path",
            )


def _check_progress(spark: SparkSession, config: LakeConfig, tables: Iterable[str]) -> None:
    """Raises ConfigError for a checkpoint that is older than the lake, or belongs to another one.

    Batches would be left out or written twice.
    """
    query = json.loads(text(spark, f"{config.checkpoint}/metadata"))["id"]
    numbers = (name for name in names(spark, f"{config.checkpoint}/offsets/*") if name.isdecimal())
    begun = max(map(int, numbers), default=-1)
    written: dict[str, int] = {}
    for name in tables:
        of = _delta_batches if config.format == DELTA else _parquet_batches
        for who, batch in of(spark, f"{config.path}/{name}").items():
            written[who] = max(batch, written.get(who, -1))
    ours = query if config.format == DELTA else query_name(query)
    if written and ours not in written:
        raise ConfigError(
            f"{config.file}: the lake at {config.path} was written with another checkpoint than"
            f" {config.checkpoint}: its messages would be written again",
            hint="name the checkpoint that belongs to the lake, or begin with an empty lake.path",
        )
    if written.get(ours, -1) > begun:
        raise ConfigError(
            f"{config.file}: lake.checkpoint {config.checkpoint} is older than the lake: it ends with batch"
            f" {begun}, the lake with batch {written[ours]}; messages would be left out",
            hint="restore the checkpoint that the lake was written with last",
        )


def _delta_batches(spark: SparkSession, path: str) -> dict[str, int]:
    """Returns the last batch of each query, as Delta records it."""
    context: Any = spark.sparkContext
    delta_log = context._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
    # Another process may have written meanwhile.
    now = delta_log.update(*(getattr(delta_log, f"update$default${number}")() for number in (1, 2, 3)))
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
    """Describes the fields that have different types in the two schemas."""
    found = []
    # Names are compared without case, as Delta does.
    known = {field.name.lower(): field.dataType for field in there}
    for field in wanted:
        other = known.get(field.name.lower())
        if isinstance(other, StructType) and isinstance(field.dataType, StructType):
            found += _clashes(other, field.dataType, f"{prefix}{field.name}.")
        elif other is not None and other.simpleString() != field.dataType.simpleString():
            found.append(
                f"{prefix}{field.name} is {field.dataType.simpleString()}, but was {other.simpleString()}"
            )
    return found
