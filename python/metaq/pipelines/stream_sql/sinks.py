"""Writes the rows of the statement to a topic, a table or the console."""

from __future__ import annotations

from collections.abc import Mapping

from delta.tables import DeltaTable
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from metaq.errors import CommandError, ConfigError
from metaq.pipelines.spark_runtime import quoted
from metaq.pipelines.storage import exists, names
from metaq.pipelines.stream_sql.config import CONSOLE, DELTA, TOPIC, UPDATE, SinkConfig, SqlConfig

BODY = "body"


def outgoing(config: SqlConfig, rows: DataFrame) -> DataFrame:
    """Returns the rows in the form of the sink; raises ConfigError for missing columns."""
    sink = config.sink
    for key, listed in (("partition_by", sink.partition_by), ("keys", sink.keys)):
        for name in listed:
            if name not in rows.columns:
                raise ConfigError(
                    f"{config.file}: sink.{key} has {name!r}, which is not a column of the statement",
                    hint=f"its columns are: {', '.join(rows.columns)}",
                )
    if sink.format == TOPIC and BODY not in rows.columns:
        # NULL is written as null, so that readers see all fields.
        return rows.select(f.to_json(f.struct("*"), {"ignoreNullFields": "false"}).alias(BODY))
    return rows


def writer(config: SqlConfig, rows: DataFrame) -> DataStreamWriter:
    sink = config.sink
    into = rows.writeStream.outputMode(config.mode).option("checkpointLocation", config.checkpoint)
    if sink.format == TOPIC:
        assert sink.topic is not None
        return (
            into.format("metaq")
            .option("nameservers", sink.nameservers)
            .option("topic", sink.topic)
            .option("deliveryGuarantee", sink.delivery)
        )
    if sink.format == CONSOLE:
        return into.format("console").option("truncate", "false")
    if sink.format == DELTA and config.mode == UPDATE:
        return into.foreachBatch(lambda frame, batch: merge(sink, frame))
    assert sink.path is not None
    into = into.format(sink.format).option("path", sink.path)
    return into.partitionBy(*sink.partition_by) if sink.partition_by else into


def check_sink(config: SqlConfig, rows: DataFrame) -> None:
    """Raises ConfigError if an existing table belongs to another job or has other columns."""
    sink, spark = config.sink, rows.sparkSession
    if sink.path is None or not _is_there(spark, sink):
        return
    if not exists(spark, f"{config.checkpoint}/metadata"):
        raise ConfigError(
            f"{config.file}: query.checkpoint {config.checkpoint} does not exist, but sink.path {sink.path}"
            " does: rows would be left out or written again",
            hint="restore the checkpoint, or begin with a new checkpoint and a new sink.path",
        )
    if sink.format != DELTA or config.mode != UPDATE:
        return
    # A merge would drop columns that the table lacks.
    table, given = (
        _columns(schema) for schema in (DeltaTable.forPath(spark, sink.path).toDF().schema, rows.schema)
    )
    if table != given:
        raise ConfigError(
            f"{config.file}: the statement has other columns than the table at {sink.path}:"
            f" {_listed(given)} instead of {_listed(table)}",
            hint="change the statement or the table, or begin with a new checkpoint and a new sink.path",
        )


def _is_there(spark: SparkSession, sink: SinkConfig) -> bool:
    """Returns whether a table has rows: an empty one may have been created for this job."""
    assert sink.path is not None
    if sink.format != DELTA:
        return bool(names(spark, f"{sink.path}/*"))
    if not DeltaTable.isDeltaTable(spark, sink.path):
        return False
    return not DeltaTable.forPath(spark, sink.path).toDF().isEmpty()


def _columns(schema: StructType) -> dict[str, str]:
    return {field.name.lower(): field.dataType.simpleString() for field in schema}


def _listed(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def merge(sink: SinkConfig, rows: DataFrame) -> None:
    """Replaces existing rows with the same keys. Merging the same batch again changes nothing."""
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        _check_keys(sink, rows)
        _merge(sink, rows)
    finally:
        rows.unpersist()


def _check_keys(sink: SinkConfig, rows: DataFrame) -> None:
    """Raises CommandError if a batch has two rows with the same keys, because the result would be random."""
    keys = [f.col(quoted(name)) for name in sink.keys]
    twice = rows.groupBy(*keys).agg(f.count("*").alias("_rows")).where("_rows > 1").head()
    if twice is not None:
        named = ", ".join(f"{name} = {twice[name]}" for name in sink.keys)
        raise CommandError(
            f"sink.keys do not identify rows: a batch has {twice['_rows']} with {named};"
            " group by these columns, or list more of them"
        )


def _merge(sink: SinkConfig, rows: DataFrame) -> None:
    assert sink.path is not None
    spark = rows.sparkSession
    if not DeltaTable.isDeltaTable(spark, sink.path):
        table = DeltaTable.createIfNotExists(spark).location(sink.path).addColumns(rows.schema)
        (table.partitionedBy(*sink.partition_by) if sink.partition_by else table).execute()
    same = " AND ".join(f"t.{quoted(name)} <=> s.{quoted(name)}" for name in sink.keys)
    (
        DeltaTable.forPath(spark, sink.path)
        .alias("t")
        .merge(rows.alias("s"), same)
        .whenMatchedUpdateAll()
        .whenNotMatchedInsertAll()
        .execute()
    )
