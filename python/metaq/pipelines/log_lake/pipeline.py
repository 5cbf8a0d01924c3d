"""The pipeline that `metaq pipeline run log-lake` plans and runs."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from metaq.counts import counted
from metaq.pipelines import ClusterUse, Plan, Progress, Report
from metaq.pipelines.log_lake.batch import Batches
from metaq.pipelines.log_lake.check import check_lake, is_table
from metaq.pipelines.log_lake.config import DELTA, LakeConfig, read_lake_config
from metaq.pipelines.log_lake.decode import SOURCE_COLUMNS, Decoder
from metaq.pipelines.log_lake.tables import QUARANTINE, RECORDS, BatchId
from metaq.pipelines.spark_runtime import (
    QueryStart,
    columns_text,
    count_queues,
    group_offsets,
    retried,
    run_query,
    spark_errors,
    spark_session,
)
from metaq.pipelines.storage import exists
from metaq.pipelines.topic_lag import LagWatch, WatchedTopics, done_offsets, lag_update
from metaq.spark.schema import spark_schema
from metaq.spark.source.listener import GroupOffsets
from metaq.spark.source.options import Subscribed

NAME: Final = "log-lake"


class LogLake:
    """Writes topics to a Delta or Parquet table by date and topic."""

    def __init__(self, config: LakeConfig) -> None:
        self._config = config

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Raises ConfigError."""
        return cls(read_lake_config(path))

    def on(self, master: str | None, environment: str | None = None) -> Self:
        spark = self._config.spark.on(master, environment)
        return type(self)(replace(self._config, spark=spark))

    def clusters(self) -> list[ClusterUse]:
        config = self._config
        topics = config.topics if config.pattern is None else (f"/{config.pattern}/",)
        return [ClusterUse(config.nameservers, topics, config.group)]

    def plan(self) -> Plan:
        """Inspects topics and tables; raises MetaqError."""
        config = self._config
        queues = self._queues(asks_brokers=True)
        with spark_session(NAME, config.spark) as spark, spark_errors():
            columns = self._checked(spark)[1]
            tables = [
                _described(spark, config, name)
                for name in (RECORDS, QUARANTINE)
                if is_table(spark, config, name)
            ]
            is_begun = exists(spark, f"{config.checkpoint}/metadata")
            master = spark.sparkContext.master
        begins = "at its checkpoint" if is_begun else f"at the {config.start} offsets"
        every = "every batch" if config.compact_batches == 1 else f"every {config.compact_batches} batches"
        compacts = every if config.compact_batches else "never"
        facts: dict[str, object] = {
            "topics": f"{config.subscribed} at {config.nameservers}",
            "queues": queues,
            "begins": begins,
            "lake": f"{config.path} ({config.format}, by date in {config.zone} and topic)",
            "columns": columns,
            "keeps": config.checkpoint,
            "repeats": "dropped" if config.drops_repeats else "kept",
            "compacts": compacts if config.format == DELTA else "never: Parquet",
            "spark": master,
        }
        checks = [
            f"topics {config.subscribed}: {config.nameservers} and the brokers of "
            f"{counted(queues, 'queue')} answer",
            f"lake {config.path}: {counted(len(tables), 'table')} found",
        ]
        return Plan(facts, tables, checks=checks)

    def run(self, report: Report, stop: threading.Event) -> Progress:
        """Runs until `stop` is set, or, with `once`, until everything is written; raises MetaqError."""
        config = self._config
        self._queues()
        with (
            spark_session(NAME, config.spark) as spark,
            spark_errors(),
            group_offsets(spark, self._listeners()) as commit,
            LagWatch([self._watched()], done_offsets(spark, config.checkpoint)) as watch,
        ):
            batches, _ = self._checked(spark)

            def write(frame: DataFrame, batch: int) -> None:
                batches.write(frame, BatchId(str(start.query.id), batch))

            def update(progress: Progress) -> None:
                written = batches.written
                progress.rows, progress.bytes = written.rows, written.bytes
                progress.details |= {
                    "quarantined": written.quarantined,
                    "repeats": written.repeats,
                    "batches": written.batches,
                    "compactions": written.compactions,
                }

            writer = retried(lambda: self._writer(spark), stop).foreachBatch(write)
            start = QueryStart(writer, once=config.once, interval_s=config.interval_s)
            progress = run_query(start, update, report, stop, lag_update(watch))
            commit(start.query)
            return progress

    def _watched(self) -> WatchedTopics:
        config = self._config
        subscribed = Subscribed(topics=config.topics, pattern=config.pattern)
        return WatchedTopics(config.nameservers, subscribed, config.start)

    def _queues(self, *, asks_brokers: bool = False) -> int:
        config = self._config
        return count_queues(
            "no topic to read", config.nameservers, config.topics, config.pattern, asks_brokers=asks_brokers
        )

    def _checked(self, spark: SparkSession) -> tuple[Batches, str]:
        """Returns the writer of batches and the columns of its records; raises ConfigError."""
        batches = Batches(self._config, Decoder(spark, self._config))
        empty = spark.createDataFrame([], spark_schema(SOURCE_COLUMNS.split(",")))
        schema = batches.record_schema(empty)
        check_lake(spark, self._config, schema)
        return batches, columns_text(schema)

    def _writer(self, spark: SparkSession) -> DataStreamWriter:
        config = self._config
        reader = (
            spark.readStream.format("metaq")
            .option("nameservers", config.nameservers)
            .option("startingOffsets", config.start)
            .option("columns", SOURCE_COLUMNS)
            .option("includeProperties", "true")
            .option("maxBytesPerTrigger", str(config.batch_bytes))
            .option("failOnDataLoss", "false" if config.skips_lost else "true")
            .option("failOnUnreadableBody", "false")
        )
        if config.pattern is not None:
            reader = reader.option("subscribePattern", config.pattern)
        else:
            reader = reader.option("subscribe", ",".join(config.topics))
        if config.group is not None:
            reader = reader.option("group", config.group)
        writer = reader.load().writeStream.queryName(_query_name(config))
        return writer.option("checkpointLocation", config.checkpoint)

    def _listeners(self) -> list[GroupOffsets]:
        config = self._config
        if config.group is None:
            return []
        return [GroupOffsets(config.group, config.nameservers, query_name=_query_name(config))]


def _query_name(config: LakeConfig) -> str:
    return f"{NAME} {config.path}"


def _described(spark: SparkSession, config: LakeConfig, name: str) -> dict[str, object]:
    path = f"{config.path}/{name}"
    row: dict[str, object] = {"table": name}
    if config.format == DELTA:
        detail = DeltaTable.forPath(spark, path).detail().select("numFiles", "sizeInBytes").head()
        assert detail is not None
        return {**row, "files": detail[0], "bytes": detail[1], "rows": _rows(spark, path, "delta")}
    return {**row, "rows": _rows(spark, path, "parquet")}


def _rows(spark: SparkSession, path: str, kind: str) -> int:
    return spark.read.format(kind).load(path).count()
