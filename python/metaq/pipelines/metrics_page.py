"""Serves the progress of a pipeline over HTTP: `/metrics` for Prometheus, `/livez` and `/readyz`."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Final

from metaq.errors import CommandError
from metaq.monitoring.text import CONTENT_TYPE, Page
from metaq.monitoring.web_server import Response, WebServer
from metaq.pipelines import Progress
from metaq.pipelines.remarks import is_remark

SILENCE_MAX_S: Final = 60.0
"""A pipeline reports about once a second. After this time without a report it is not ready."""
_DETAILS: Final = {
    "messages_left": ("metaq_pipeline_lag_messages", "gauge"),
    "bytes behind": ("metaq_pipeline_lag_bytes", "gauge"),
    "batches": ("metaq_pipeline_batches_total", "counter"),
    "quarantined": ("metaq_pipeline_quarantined_total", "counter"),
    "foreign": ("metaq_pipeline_foreign_total", "counter"),
    "retries": ("metaq_pipeline_retries_total", "counter"),
}
"""Details of some pipelines that are metrics."""


class PipelineMetrics(logging.Handler):
    """Keeps the last report of a pipeline, and counts the warnings and errors in its log."""

    def __init__(self, name: str, config: Path) -> None:
        super().__init__(logging.WARNING)
        self._labels = {"pipeline": name, "config": config.stem}
        self._started_at = time.time()
        self._reported_at: float | None = None
        self._progress = Progress()
        self._lines: Counter[str] = Counter({"warning": 0, "error": 0})
        self._error_at = 0.0
        self._error = ""

    def report(self, progress: Progress) -> None:
        self._progress, self._reported_at = replace(progress), time.time()

    def emit(self, record: logging.LogRecord) -> None:
        self._lines["error" if record.levelno >= logging.ERROR else "warning"] += 1
        if not is_remark(record):
            self._error, self._error_at = record.getMessage(), time.time()

    def page(self) -> bytes:
        """Returns all metrics as text. A value that is unknown is left out."""
        page, progress = Page(self._labels), self._progress
        page.gauge("metaq_pipeline_started_timestamp_seconds", self._started_at)
        page.gauge("metaq_pipeline_phase", 1, {"phase": progress.phase})
        if self._reported_at is not None:
            page.gauge("metaq_pipeline_reported_timestamp_seconds", self._reported_at)
        page.counter("metaq_pipeline_rows_total", progress.rows)
        page.counter("metaq_pipeline_bytes_total", progress.bytes)
        page.counter("metaq_pipeline_restarts_total", progress.restarts)
        if progress.lag_s is not None:
            page.gauge("metaq_pipeline_lag_seconds", progress.lag_s)
        if progress.batch_s is not None:
            page.gauge("metaq_pipeline_batch_duration_seconds", progress.batch_s)
        for detail, (name, kind) in _DETAILS.items():
            value = progress.details.get(detail)
            if isinstance(value, int):
                (page.counter if kind == "counter" else page.gauge)(name, value)
        page.family(
            "metaq_pipeline_log_lines_total",
            "counter",
            [({"level": level}, count) for level, count in self._lines.items()],
        )
        page.gauge("metaq_pipeline_last_error_timestamp_seconds", self._error_at)
        return page.text()

    def readiness(self) -> tuple[bool, str]:
        """Returns whether reports arrive, and a text with the last error."""
        silent_s = None if self._reported_at is None else time.time() - self._reported_at
        if silent_s is None:
            fault: str | None = "the pipeline starts"
        else:
            fault = f"no report for {silent_s:.0f} s" if silent_s > SILENCE_MAX_S else None
        return fault is None, f"reports: {fault or 'ok'}\nlast error: {self._error or 'none'}\n"


def metrics_server(metrics: PipelineMetrics) -> WebServer:
    """Returns a server, not yet started, of the pages of a pipeline."""

    async def show_metrics() -> Response:
        return Response(HTTPStatus.OK, metrics.page(), CONTENT_TYPE)

    async def show_readiness() -> Response:
        is_ready, text = metrics.readiness()
        return Response(HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE, text.encode())

    async def show_life() -> Response:
        return Response(HTTPStatus.OK, b"ok\n")

    return WebServer({"/metrics": show_metrics}, {"/readyz": show_readiness, "/livez": show_life})


@contextmanager
def served(metrics: PipelineMetrics, host: str, port: int) -> Iterator[str]:
    """Serves the pages from a thread of its own and yields their address; raises CommandError."""
    server, loop = metrics_server(metrics), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="metrics", daemon=True)
    thread.start()
    try:
        try:
            asyncio.run_coroutine_threadsafe(server.start(host, port), loop).result()
        except OSError as error:
            raise CommandError(f"--metrics-listen: {error.strerror or error}") from None
        logging.getLogger().addHandler(metrics)
        try:
            yield server.address
        finally:
            logging.getLogger().removeHandler(metrics)
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
