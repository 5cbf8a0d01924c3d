"""The pipeline that `metaq pipeline run stream-sql` plans and runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from metaq.counts import counted
from metaq.errors import ConfigError
from metaq.pipelines import ClusterUse, Plan, Progress, Report
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
from metaq.pipelines.stream_sql.config import SqlConfig, read_sql_config
from metaq.pipelines.stream_sql.sinks import check_sink, outgoing, writer
from metaq.pipelines.stream_sql.sources import bad_messages, is_judged, metric, view
from metaq.pipelines.topic_check import check_topic, missing_topic
from metaq.pipelines.topic_lag import LagWatch, WatchedTopics, done_offsets, lag_update
from metaq.spark.source.listener import GroupOffsets
from metaq.spark.source.options import Subscribed

NAME: Final = "stream-sql"
_ZONE: Final = "spark.sql.session.timeZone"
_SUBSTITUTES: Final = "spark.sql.variable.substitute"
"""The setting that replaces ${…} in a statement by settings of Spark, which may be secret."""
_STATEFUL: Final = ("Aggregate", "Join", "Deduplicate")


class StreamSql:
    """Runs a statement over topics and tables, and writes its rows to a topic or a table."""

    def __init__(self, config: SqlConfig) -> None:
        self._config = config

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Raises ConfigError."""
        return cls(read_sql_config(path))

    def on(self, master: str | None, environment: str | None = None) -> Self:
        spark = self._config.spark.on(master, environment)
        return type(self)(replace(self._config, spark=spark))

    def clusters(self) -> list[ClusterUse]:
        """Returns the clusters of its sources and of its sink, each with its topics."""
        config, topics, groups = self._config, dict[str, list[str]](), dict[str, str]()
        for source in config.sources:
            if source.is_stream:
                named = source.topics if source.pattern is None else (f"/{source.pattern}/",)
                topics.setdefault(source.nameservers, []).extend(named)
                if source.group is not None:
                    groups.setdefault(source.nameservers, source.group)
        if config.sink.topic is not None:
            topics.setdefault(config.sink.nameservers, []).append(config.sink.topic)
        return [
            ClusterUse(nameservers, tuple(dict.fromkeys(found)), groups.get(nameservers))
            for nameservers, found in topics.items()
        ]

    def plan(self) -> Plan:
        """Checks sources and statement, and returns Spark's plan; raises MetaqError."""
        config = self._config
        queues = self._queues(asks_brokers=True)
        checks, warnings = self._checked(queues)
        with spark_session(NAME, config.spark) as spark, spark_errors(), self._rows(spark) as rows:
            check_sink(config, rows)
            columns = columns_text(rows.schema)
            steps = _steps(rows)
            master = spark.sparkContext.master
        facts: dict[str, object] = {
            **{f"source {source.name}": self._describe(source.name, queues) for source in config.sources},
            "sink": f"{config.sink.format} {config.sink.topic or config.sink.path or ''}".rstrip(),
            "mode": config.mode,
            "columns": columns,
            "keeps": config.checkpoint,
            "spark": master,
        }
        endless = [source.name for source in config.sources if source.is_stream and not source.watermark]
        if endless and any(word in step for word in _STATEFUL for step in steps):
            warnings.append(f"no watermark in {', '.join(endless)}: the state of the job grows without end")
        return Plan(facts, [{"plan": step} for step in steps], warnings, checks)

    def run(self, report: Report, stop: threading.Event) -> Progress:
        """Runs until `stop` is set, or, with `once`, until everything is read; raises MetaqError."""
        config = self._config
        self._queues()
        with spark_session(NAME, config.spark) as spark, spark_errors(), self._rows(spark) as rows:
            check_sink(config, rows)
            name = f"{NAME} {config.file.stem}"
            start = QueryStart(
                writer(config, rows).queryName(name), once=config.once, interval_s=config.interval_s
            )
            counters = _Counters(config)

            def update(progress: Progress) -> None:
                counters.update(start.query, progress)

            with (
                group_offsets(spark, self._listeners(name)) as commit,
                LagWatch(self._watched(rows), done_offsets(spark, config.checkpoint)) as watch,
            ):
                with bad_messages():
                    done = run_query(start, update, report, stop, lag_update(watch))
                commit(start.query)
                return done

    def _watched(self, rows: DataFrame) -> list[WatchedTopics]:
        """Returns the topics that the statement reads; a source that it does not use has no lag."""
        plan = "\n".join(_steps(rows))
        return [
            WatchedTopics(
                source.nameservers, Subscribed(topics=source.topics, pattern=source.pattern), source.start
            )
            for source in self._config.sources
            if source.is_stream and f"View (`{source.name}`," in plan
        ]

    def _listeners(self, query_name: str) -> list[GroupOffsets]:
        """Returns a listener for each source with a group, for the offsets of that source's topics."""
        return [
            GroupOffsets(source.group, source.nameservers, query_name=query_name, is_wanted=source.reads)
            for source in self._config.sources
            if source.group is not None
        ]

    def _describe(self, name: str, queues: dict[str, int]) -> str:
        (source,) = (source for source in self._config.sources if source.name == name)
        if source.path is not None:
            return f"{source.format} table {source.path}"
        topics = f"topics that match {source.pattern}" if source.pattern else ", ".join(source.topics)
        late = f", {source.time} up to {source.watermark} late" if source.watermark else ""
        return f"{source.format} of {topics} at {source.nameservers}, {counted(queues[name], 'queue')}{late}"

    def _checked(self, queues: dict[str, int]) -> tuple[list[str], list[str]]:
        """Returns the checks of sources and sink, and warnings; raises MetaqError."""
        config = self._config
        checks = [
            f"source {source.name}: {source.nameservers} and the brokers of "
            f"{counted(queues[source.name], 'queue')} answer"
            for source in config.sources
            if source.is_stream
        ]
        if config.sink.topic is None:
            return checks, []
        sink = check_topic(config.sink.nameservers, config.sink.topic)
        return [*checks, f"sink {sink}"], missing_topic(sink)

    def _queues(self, *, asks_brokers: bool = False) -> dict[str, int]:
        """Counts the queues of every stream before Spark is started; raises MetaqError."""
        return {
            source.name: count_queues(
                f"sources.{source.name}",
                source.nameservers,
                source.topics,
                source.pattern,
                asks_brokers=asks_brokers,
            )
            for source in self._config.sources
            if source.is_stream
        }

    @contextmanager
    def _rows(self, spark: SparkSession) -> Iterator[DataFrame]:
        """Yields the checked rows of the statement, whose views exist meanwhile; raises ConfigError."""
        config = self._config
        before = {name: spark.conf.get(name) for name in (_ZONE, _SUBSTITUTES)}
        try:
            spark.conf.set(_ZONE, config.zone)
        except PySparkException:
            raise ConfigError(
                f"{config.file}: query.zone = {config.zone!r}: it must be a time zone such as UTC"
            ) from None
        try:
            spark.conf.set(_SUBSTITUTES, "false")
            for source in config.sources:
                rows = retried(partial(view, spark, config, source))
                rows.createOrReplaceTempView(source.name)
            rows = outgoing(config, self._selected(spark))
            self._check_mode(spark, rows)
            yield rows
        finally:
            for source in config.sources:
                spark.catalog.dropTempView(source.name)
            for name, value in before.items():
                if value is not None:
                    spark.conf.set(name, value)

    def _selected(self, spark: SparkSession) -> DataFrame:
        config = self._config
        try:
            # In parentheses only a query is valid: `spark.sql` would execute any other statement at once.
            rows = spark.sql(f"SELECT * FROM (\n{config.sql}\n)")
        except PySparkException as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise ConfigError(f"{config.file}: query.sql: {' '.join(lines[:2])}") from None
        if not rows.isStreaming:
            streams = ", ".join(source.name for source in config.sources if source.is_stream)
            raise ConfigError(f"{config.file}: query.sql reads no topic", hint=f"there are: {streams}")
        return rows

    def _check_mode(self, spark: SparkSession, rows: DataFrame) -> None:
        """Raises ConfigError if Spark cannot run the statement as a stream."""
        java: Any = spark._jvm
        modes = java.org.apache.spark.sql.streaming.OutputMode
        mode = getattr(modes, self._config.mode.capitalize())()
        plan: Any = rows._jdf.queryExecution().analyzed()
        try:
            java.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(
                plan, mode
            )
        except PySparkException as error:
            reason, config = str(error).strip().splitlines()[0], self._config
            raise ConfigError(
                f'{config.file}: query.sql cannot be done with query.mode = "{config.mode}": {reason}',
                hint="append needs a watermark if rows are grouped; update writes rows that have changed",
            ) from None


class _Counters:
    """Adds up Spark's counters of each batch."""

    def __init__(self, config: SqlConfig) -> None:
        self._names = [metric(source) for source in config.sources if is_judged(source)]
        self._seen = -1
        self._bad = 0
        self._late = 0
        self._batches = 0

    def update(self, query: StreamingQuery, progress: Progress) -> None:
        for batch in query.recentProgress:
            # While nothing arrives, Spark reports the next batch before it exists.
            if batch.batchId <= self._seen or "addBatch" not in batch.durationMs:
                continue
            self._seen = batch.batchId
            self._batches += 1
            progress.rows += batch.numInputRows
            for name in self._names:
                counted = batch.observedMetrics.get(name)
                if counted is not None:
                    progress.bytes += counted["bytes"]
                    self._bad += counted["bad"]
            self._late += sum(state.numRowsDroppedByWatermark for state in batch.stateOperators)
            progress.details["state_rows"] = sum(state.numRowsTotal for state in batch.stateOperators)
        progress.details |= {"skipped": self._bad, "late": self._late, "batches": self._batches}


def _steps(rows: DataFrame) -> list[str]:
    """Returns the lines of Spark's analyzed plan. Spark plans a stream further only when it runs."""
    plan: Any = rows._jdf.queryExecution().analyzed()
    return [line.rstrip() for line in str(plan.toString()).splitlines() if line.strip()]
