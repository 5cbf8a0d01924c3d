"""Reports the streaming queries of a session to a cluster. `metaq pipeline status` shows them."""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from metaq.admin import PipelineReport
from metaq.admin.pipelines.report_sender import ReportSender
from metaq.admin.pipelines.reports import REPORT_INTERVAL_S, SPARK_QUERY
from metaq.errors import UsageError
from metaq.spark.errors import WrongCheckpoint, error_summary
from metaq.spark.source import stream_offset
from metaq.spark.source.lag import lags
from metaq.spark.source.options import DEFAULT_NAMESERVERS

PROGRESS_VALID_S: Final = 60.0
"""How long rates and lag of a progress count. In a batch that takes longer they are unknown."""


def report_queries(
    spark: SparkSession,
    nameservers: str = DEFAULT_NAMESERVERS,
    *,
    name: str | None = None,
    interval: float = REPORT_INTERVAL_S,
) -> QueryReports:
    """Reports all streaming queries of a session from now on: at their start, every `interval` seconds, and
    at their end, with the error that ended them.

    A report is named `NAME/QUERY`: `name`, or else the name of the application, and the name of the query, or
    else the begin of its id. `close` of the result ends it. Raises UsageError.
    """
    if not interval > 0:
        raise UsageError(f"interval is {interval}", hint="it is a number of seconds above 0")
    application = name
    web_pages: str | None = None
    # A session of Spark Connect has no context here.
    with suppress(PySparkException):
        application = application or spark.sparkContext.appName
        web_pages = spark.sparkContext.uiWebUrl
    reports = QueryReports(spark, nameservers, application or "spark", interval, web_pages)
    reports.start()
    return reports


class _QueryRun:
    """The state of one run of a query."""

    def __init__(self, first: PipelineReport) -> None:
        self._report = first
        self._progress_s = time.monotonic()

    def report(self) -> PipelineReport:
        if time.monotonic() - self._progress_s <= PROGRESS_VALID_S:
            return self._report
        return replace(
            self._report,
            rows_in_per_second=None,
            rows_out_per_second=None,
            lag_messages=None,
            lag_bytes=None,
            lag_ms=None,
        )

    def advance(self, progress: StreamingQueryProgress) -> None:
        rate_in, rate_out = _rates(progress)
        found = _lags(progress)
        delays = [lag.seconds for lag in found if lag.seconds is not None]
        has_delay = bool(found) and len(delays) == len(found)
        self._progress_s = time.monotonic()
        self._report = replace(
            self._report,
            phase="running",
            rows=(self._report.rows or 0) + progress.numInputRows,
            rows_in_per_second=rate_in,
            rows_out_per_second=rate_out,
            lag_messages=sum(lag.messages for lag in found) if found else None,
            lag_bytes=sum(lag.bytes for lag in found) if found else None,
            lag_ms=int(max(delays) * 1000) if has_delay else None,
            topics=_topics(progress) or self._report.topics,
        )

    def rest(self) -> None:
        """Notes that there is nothing to read."""
        last = self._report
        self._progress_s = time.monotonic()
        self._report = replace(
            last,
            rows_in_per_second=0.0,
            rows_out_per_second=None if last.rows_out_per_second is None else 0.0,
            lag_messages=None if last.lag_messages is None else 0,
            lag_bytes=None if last.lag_bytes is None else 0,
            lag_ms=None if last.lag_ms is None else 0,
        )

    def end(self, error: str | None) -> PipelineReport:
        last = replace(self.report(), rows_in_per_second=None, rows_out_per_second=None, phase="stopped")
        if error is None:
            return replace(last, state="ended")
        return replace(
            last, state="failed", last_error=error_summary(error), last_error_ms=int(time.time() * 1000)
        )


class QueryReports(StreamingQueryListener):
    """The listener that `report_queries` adds to a session. A context manager."""

    def __init__(
        self,
        spark: SparkSession,
        nameservers: str,
        application: str,
        interval_s: float,
        web_pages: str | None,
    ) -> None:
        self._spark = spark
        self._application = application
        self._interval_s = interval_s
        self._web_pages = web_pages
        self._sender = ReportSender(nameservers, interval_s)
        self._lock = threading.Lock()
        self._runs: dict[str, _QueryRun] = {}
        self._is_closed = False

    def start(self) -> None:
        self._sender.start()
        self._spark.streams.addListener(self)

    def close(self) -> None:
        """Stops reporting. Safe to call twice."""
        if self._is_closed:
            return
        self._is_closed = True
        # The session may have ended before.
        with suppress(Exception):
            self._spark.streams.removeListener(self)
        self._sender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._run(str(event.id), str(event.runId), event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        # A query that was started before the listener is new here.
        self._run(str(progress.id), str(progress.runId), progress.name).advance(progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        with self._lock:
            run = self._runs.get(str(event.runId))
        if run is not None:
            run.rest()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        with self._lock:
            run = self._runs.pop(str(event.runId), None)
        if run is not None:
            self._sender.end(run.end(event.exception))

    def _run(self, query_id: str, run_id: str, query_name: str | None) -> _QueryRun:
        with self._lock:
            run = self._runs.get(run_id)
            if run is not None:
                return run
            run = self._runs[run_id] = _QueryRun(
                PipelineReport(
                    name=f"{self._application}/{query_name or query_id[:8]}",
                    kind=SPARK_QUERY,
                    run=run_id,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    started_ms=int(time.time() * 1000),
                    state="running",
                    interval_s=self._interval_s,
                    phase="starting",
                    spark_ui=self._web_pages,
                )
            )
        self._sender.begin(run_id, run.report)
        return run


def _rates(progress: StreamingQueryProgress) -> tuple[float | None, float | None]:
    """Returns the rows per second that a query reads and writes; None if Spark does not know."""
    rate, rows_out = progress.inputRowsPerSecond, progress.sink.numOutputRows
    if not math.isfinite(rate):
        # Spark knows no time between two triggers yet.
        rate = progress.processedRowsPerSecond
    if not math.isfinite(rate):
        return None, None
    # Spark writes -1 for a sink that does not count.
    if rows_out < 0 or (rows_out and not progress.numInputRows):
        return rate, None
    return rate, rate * rows_out / progress.numInputRows if rows_out else 0.0


def _lags(progress: StreamingQueryProgress) -> list[Any]:
    # Other sources may write anything as their latest offset.
    with suppress(ValueError, KeyError, TypeError):
        return list(lags(progress))
    return []


def _topics(progress: StreamingQueryProgress) -> tuple[str, ...]:
    """Returns the topics that the query reads with our source."""
    found: set[str] = set()
    for source in progress.sources:
        with suppress(ValueError, KeyError, TypeError, AttributeError, WrongCheckpoint):
            found |= {queue.topic for queue in stream_offset.load(json.loads(source.endOffset))}
    return tuple(sorted(found))
