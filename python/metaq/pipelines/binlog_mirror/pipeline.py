"""The pipeline that `metaq pipeline run binlog-mirror` plans, runs and verifies."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from pyspark.sql import DataFrame, SparkSession

from metaq.counts import counted
from metaq.errors import CommandError, MetaqError
from metaq.pipelines import ClusterUse, Plan, Progress, Report, Verification
from metaq.pipelines.binlog_mirror.apply import Applied, Applier
from metaq.pipelines.binlog_mirror.config import MirrorConfig, read_mirror_config
from metaq.pipelines.binlog_mirror.delta import DeltaTarget
from metaq.pipelines.binlog_mirror.errors import MirrorError
from metaq.pipelines.binlog_mirror.jdbc import JdbcTarget
from metaq.pipelines.binlog_mirror.target import Target
from metaq.pipelines.binlog_mirror.verify import Verifier
from metaq.pipelines.binlog_sync.config import SECTIONS, read_config
from metaq.pipelines.binlog_sync.writing.topic import find_queues, queues_without_head
from metaq.pipelines.quiet_failures import quiet_failures
from metaq.pipelines.spark_runtime import QueryStart, retried, run_query, spark_errors, spark_session
from metaq.pipelines.topic_check import check_topic
from metaq.pipelines.topic_lag import LagWatch, WatchedTopics, done_offsets, lag_update
from metaq.spark.source.options import Subscribed

NAME: Final = "binlog-mirror"


class BinlogMirror:
    """Applies the topic of binlog-sync to tables that equal those of its source."""

    def __init__(self, config: MirrorConfig, path: Path) -> None:
        self._config = config
        self._file = path

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Raises ConfigError."""
        return cls(read_mirror_config(path, SECTIONS), path)

    def on(self, master: str | None, environment: str | None = None) -> Self:
        spark = self._config.spark.on(master, environment)
        return type(self)(replace(self._config, spark=spark), self._file)

    def clusters(self) -> list[ClusterUse]:
        return [ClusterUse(self._config.nameservers, (self._config.topic,))]

    def plan(self) -> Plan:
        """Inspects the topic and the existing mirrors; raises MetaqError."""
        config = self._config
        topic = check_topic(config.nameservers, config.topic)
        warnings = [] if topic.queues else [f"there is no topic {config.topic} yet; binlog-sync creates it"]
        with spark_session(NAME, config.spark) as spark, spark_errors():
            target = self._target(spark)
            tables = [self._planned(target, name, warnings) for name in target.tables()]
            left_out = [
                f"{'.'.join(name)} is left out: {one.reason}" for name, one in target.left_out().items()
            ]
            warnings += shortened(left_out)
            master = spark.sparkContext.master
        facts: dict[str, object] = {
            "topic": f"{config.topic} at {config.nameservers}",
            "queues": topic.queues or 0,
            "mirror": config.path if config.jdbc is None else config.jdbc.address,
            "keeps": config.checkpoint,
            "changes": f"of definitions: {config.schema_changes}",
            "spark": master,
        }
        found = f"mirror {facts['mirror']}: {counted(len(tables), 'table')} found"
        return Plan(facts, tables, warnings, [str(topic), found])

    def _target(self, spark: SparkSession) -> Target:
        if self._config.jdbc is not None:
            return JdbcTarget(spark, self._config.jdbc)
        return DeltaTarget(spark, self._config.path)

    def _planned(self, target: Target, name: tuple[str, str], warnings: list[str]) -> dict[str, object]:
        table = target.open(name)
        assert table is not None
        count, _ = table.quarantined()
        if count:
            warnings.append(f"{table.notes.table} has {counted(count, 'row')} in quarantine")
        if table.notes.skipped:
            warnings.append(f"{table.notes.table} is skipped: {table.notes.skip_reason}")
        return {
            "table": ".".join(name),
            "columns": len(table.columns),
            "definitions": len(table.notes.definitions),
            "rows": table.rows().count(),
        }

    def run(self, report: Report, stop: threading.Event) -> Progress:
        """Runs until `stop` is set, or, with `once`, until everything is applied; raises MetaqError."""
        config = self._config
        if find_queues(config.nameservers, config.topic) is None:
            raise CommandError(
                f"there is no topic {config.topic} at {config.nameservers}", hint="binlog-sync creates it"
            )
        applier = Applier(config, self._target)
        watched = WatchedTopics(config.nameservers, Subscribed(topics=(config.topic,)))

        def update(progress: Progress) -> None:
            update_progress(progress, applier.applied)

        with (
            spark_session(NAME, config.spark) as spark,
            spark_errors(),
            quiet_failures(spark),
            LagWatch([watched], done_offsets(spark, config.checkpoint)) as watch,
        ):
            failures: list[MetaqError] = []

            def apply(frame: DataFrame, batch_id: int) -> None:
                try:
                    if batch_id == 0:
                        _require_head(config)
                    applier.apply(frame, batch_id, start.query.id)
                except MetaqError as error:
                    # Spark would return it as a text, without its hint.
                    failures.append(error)
                    raise

            writer = (
                retried(lambda: _stream(spark, config), stop)
                .writeStream.queryName(f"{NAME} {config.topic}")
                .option("checkpointLocation", config.checkpoint)
                .foreachBatch(apply)
            )
            start = QueryStart(writer, once=config.once, interval_s=config.interval_s)
            try:
                return run_query(start, update, report, stop, lag_update(watch))
            except CommandError as error:
                raise (failures[-1] if failures else error) from None

    def verify(self, limit: int, wait_s: float) -> Verification:
        """Compares every table of the source with its mirror; raises MetaqError."""
        source = read_config(self._file)
        with spark_session(NAME, self._config.spark) as spark, spark_errors():
            return Verifier(spark, self._target(spark), source, limit).verify(wait_s)


TABLES_LISTED_MAX: Final = 100


def shortened(lines: list[str]) -> list[str]:
    """Returns the first lines and how many more there are. Strangers can invent tables."""
    more = len(lines) - TABLES_LISTED_MAX
    return [*lines[:TABLES_LISTED_MAX], *([f"{more:,} more"] if more > 0 else [])]


def update_progress(progress: Progress, applied: Applied) -> None:
    """Fills in the progress, also within a batch."""
    progress.rows, progress.bytes = applied.rows, applied.bytes
    details = progress.details
    details |= {
        "messages": applied.messages,
        "batches": applied.batches,
        "tables": len(applied.tables),
        "quarantined": applied.quarantined,
        "foreign": applied.foreign,
        "skipped": ", ".join(shortened(sorted(applied.skipped))) or None,
        "newest_commit": _moment(applied.committed_s) if applied.committed_s else None,
    }
    progress.findings = tuple(f"{name} is left out of the mirror" for name in sorted(applied.skipped))
    batch, now_s = applied.batch, time.monotonic()
    details |= {
        "batch_rows": None if batch is None else batch.rows,
        "batch_rows_done": None if batch is None else batch.rows_done,
        "batch_s": None if batch is None else round(now_s - batch.begun_s, 1),
        "step": "waiting" if batch is None else batch.step,
        "step_s": None if batch is None else round(now_s - batch.step_begun_s, 1),
    }


SECONDS_MAX: Final = 253_402_300_799
"""The end of the year 9999, and of Python's dates."""


def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(min(seconds, SECONDS_MAX), UTC).isoformat().replace("+00:00", "Z")


def _stream(spark: SparkSession, config: MirrorConfig) -> DataFrame:
    return (
        spark.readStream.format("metaq")
        .option("nameservers", config.nameservers)
        .option("subscribe", config.topic)
        .option("startingOffsets", "earliest")
        .option("columns", "queueId,queueOffset,body")
        .option("failOnUnreadableBody", "false")
        .option("maxBytesPerTrigger", str(config.batch_bytes))
        .load()
    )


def _require_head(config: MirrorConfig) -> None:
    """Raises MirrorError if the topic has lost its first messages: the mirror would lack rows unnoticed."""
    if lost := queues_without_head(config.nameservers, config.topic):
        broker, number = lost[0]
        raise MirrorError(
            f"the first messages of {config.topic} have been deleted, in queue {number} of {broker}"
            + (f" and {len(lost) - 1} more" if lost[1:] else ""),
            hint="a mirror needs a complete topic: move the state file of binlog-sync away and let it fill"
            " another topic, which begins with a new snapshot",
        )
