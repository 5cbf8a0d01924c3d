"""Reports a run of a pipeline to the clusters that it uses. `metaq pipeline status` shows it."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from metaq.admin import PipelineReport
from metaq.admin.pipelines import report_sender
from metaq.admin.pipelines.report_sender import ReportSender
from metaq.pipelines import PIPELINES, ClusterUse, Pipeline, Progress, Report, Reportable
from metaq.pipelines.metrics_page import SILENCE_MAX_S
from metaq.pipelines.remarks import is_remark
from metaq.pipelines.settings import read_report_settings

RATE_WINDOW_S: Final = 10.0
FAILING_S: Final = 30.0
"""A pipeline that still reports counts as failing for this time after a warning, unless rows get through."""


class RunRecord(logging.Handler):
    """The state of one run: its newest progress, and the newest error and the newest remark in its log.

    Warnings count as errors, unless they are marked as remarks.
    """

    def __init__(self, kind: str, name: str, interval_s: float, metrics: str | None) -> None:
        super().__init__(logging.WARNING)
        self._first = PipelineReport(
            name=name,
            kind=kind,
            run=uuid.uuid4().hex,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_ms=_milliseconds(time.time()),
            state="running",
            interval_s=interval_s,
            phase="starting",
            metrics=metrics,
        )
        self._progress: Progress | None = None
        self._progress_s = 0.0
        self._samples: deque[tuple[float, int]] = deque(maxlen=128)
        """Times and numbers of rows, for the rate."""
        self._error: str | None = None
        self._error_s = 0.0
        self._rows_at_error = 0
        self._remark: str | None = None
        self._remark_s = 0.0
        self._spark_ui: str | None = None

    @property
    def run(self) -> str:
        return self._first.run

    def update(self, progress: Progress) -> None:
        """Takes the progress. The thread of the pipeline calls it, about once a second."""
        now_s = time.time()
        if self._spark_ui is None and "pyspark" in sys.modules:
            from metaq.pipelines.spark_runtime import spark_ui

            self._spark_ui = spark_ui()
        self._samples.append((now_s, progress.rows))
        self._progress, self._progress_s = replace(progress, details=dict(progress.details)), now_s

    def emit(self, record: logging.LogRecord) -> None:
        if is_remark(record):
            self._remark, self._remark_s = record.getMessage(), time.time()
        elif record.name != report_sender.__name__:
            self._set_error(record.getMessage())

    def report(self, use: ClusterUse) -> PipelineReport:
        """Returns the report for one of the clusters."""
        now_s, progress = time.time(), self._progress
        report = replace(
            self._first,
            state="failing" if self._is_failing(now_s) else "running",
            topics=use.topics,
            group=use.group,
            last_error=self._error,
            last_error_ms=_milliseconds(self._error_s) if self._error is not None else None,
            last_remark=self._remark,
            last_remark_ms=_milliseconds(self._remark_s) if self._remark is not None else None,
            findings=() if progress is None else progress.findings,
            spark_ui=self._spark_ui,
        )
        if progress is None:
            return report
        counts = PIPELINES[report.kind].counts if report.kind in PIPELINES else "both"
        rate = self._rate(now_s, progress)
        messages, size_bytes = progress.details.get("messages_left"), progress.details.get("bytes behind")
        return replace(
            report,
            phase=progress.phase,
            rows=progress.rows,
            rows_in_per_second=progress.rows_in_per_second if counts == "out" else rate,
            rows_out_per_second=None if counts == "in" else rate,
            lag_messages=messages if isinstance(messages, int) else None,
            lag_bytes=size_bytes if isinstance(size_bytes, int) else None,
            lag_ms=None if progress.lag_s is None else _milliseconds(progress.lag_s),
        )

    def last_report(self, use: ClusterUse, error: BaseException | None) -> PipelineReport:
        """Returns the report of a run that is over, with the error that ended it."""
        if error is not None:
            self._set_error(str(error) or type(error).__name__)
        return replace(
            self.report(use),
            state="ended" if error is None else "failed",
            rows_in_per_second=None,
            rows_out_per_second=None,
        )

    # Inside

    def _set_error(self, text: str) -> None:
        self._error, self._error_s = text, time.time()
        self._rows_at_error = 0 if self._progress is None else self._progress.rows

    def _is_failing(self, now_s: float) -> bool:
        progress = self._progress
        if progress is not None and now_s - self._progress_s > SILENCE_MAX_S:
            return True
        rows = 0 if progress is None else progress.rows
        if self._error is None or rows != self._rows_at_error:
            return False
        return self._progress_s < self._error_s or now_s - self._error_s < FAILING_S

    def _rate(self, now_s: float, progress: Progress) -> float | None:
        """Returns the rows per second of the last seconds; None without a recent progress."""
        window_s = max(RATE_WINDOW_S, self._first.interval_s)
        recent = [sample for sample in list(self._samples) if now_s - sample[0] <= window_s]
        if not recent:
            return None
        if len(recent) == 1:
            return progress.rows_per_second
        (first_s, first_rows), (last_s, last_rows) = recent[0], recent[-1]
        return max(last_rows - first_rows, 0) / max(last_s - first_s, 0.001)


@contextmanager
def reported(
    kind: str, pipeline: Pipeline, config: Path, report: Report, metrics: str | None = None
) -> Iterator[Report]:
    """Yields a report that is also sent to the clusters of the pipeline; raises ConfigError.

    `metrics` is the address of the pipeline's metrics.
    """
    if not isinstance(pipeline, Reportable):
        yield report
        return
    settings = read_report_settings(config)
    if not settings.interval_s:
        yield report
        return
    record = RunRecord(kind, settings.name or config.stem, settings.interval_s, metrics)

    def report_twice(progress: Progress) -> None:
        record.update(progress)
        report(progress)

    failure: BaseException | None = None
    with ExitStack() as stack:
        senders = [
            (use, stack.enter_context(ReportSender(use.nameservers, settings.interval_s)))
            for use in pipeline.clusters()
        ]
        logging.getLogger().addHandler(record)
        try:
            for use, sender in senders:
                sender.begin(record.run, partial(record.report, use))
            yield report_twice
        except Exception as error:
            failure = error
            raise
        finally:
            logging.getLogger().removeHandler(record)
            for use, sender in senders:
                sender.end(record.last_report(use, failure))


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
