"""Where the rows of a statement go."""

from __future__ import annotations

from delta.tables import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from metaq.errors import ConfigError
from metaq.pipelines.sql.config import CONSOLE, DELTA, TOPIC, UPDATE, Sink, SqlConfig

BODY = "body"


def outgoing(config: SqlConfig, rows: DataFrame) -> DataFrame:
    """Rows as the sink takes them; raises ConfigError for columns that are not there."""
    sink = config.sink
    for key, names in (("partition_by", sink.partition_by), ("keys", sink.keys)):
        for name in names:
            if name not in rows.columns:
                raise ConfigError(
                    f"{config.file}: sink.{key} has {name!r}, which the statement does not give",
                    hint=f"it gives: {', '.join(rows.columns)}",
                )
    if sink.format == TOPIC and BODY not in rows.columns:
        # NULL is told as such: who reads sees which fields there are.
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


def merge(sink: Sink, rows: DataFrame) -> None:
    """Rows that are there are replaced by their keys. The same batch again changes nothing."""
    assert sink.path is not None
    spark = rows.sparkSession
    if not DeltaTable.isDeltaTable(spark, sink.path):
        table = DeltaTable.createIfNotExists(spark).location(sink.path).addColumns(rows.schema)
        (table.partitionedBy(*sink.partition_by) if sink.partition_by else table).execute()
    same = " AND ".join(f"t.{_quoted(name)} <=> s.{_quoted(name)}" for name in sink.keys)
    (
        DeltaTable.forPath(spark, sink.path)
        .alias("t")
        .merge(rows.alias("s"), same)
        .whenMatchedUpdateAll()
        .whenNotMatchedInsertAll()
        .execute()
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
