"""Reports of Spark queries, from the progress that Spark reports."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress

from metaq.admin import PipelineReport
from metaq.spark import query_reports
from metaq.spark.query_reports import _QueryRun

FIRST = PipelineReport(
    name="shop/counts", kind="spark-query", run="r1", host="here", pid=7, started_ms=1, state="running"
)


def progress(
    rows: int, *, rate: float = 100.0, rows_out: int = -1, latest: Any = None, end: Any = None
) -> StreamingQueryProgress:
    source = {
        "description": "metaq",
        "startOffset": None,
        "endOffset": json.dumps(end),
        "latestOffset": json.dumps(latest),
        "numInputRows": rows,
        "inputRowsPerSecond": rate,
        "processedRowsPerSecond": 50.0,
        "metrics": {},
    }
    return StreamingQueryProgress.fromJson(
        {
            "id": "6f9c6e3c-98a4-4bff-9d2a-2f5d2a5e1c11",
            "runId": "6f9c6e3c-98a4-4bff-9d2a-2f5d2a5e1c12",
            "name": "counts",
            "timestamp": "2026-01-01T00:00:00.000Z",
            "batchId": 0,
            "batchDuration": 10,
            "durationMs": {},
            "eventTime": {},
            "stateOperators": [],
            "sources": [source],
            "sink": {"description": "noop", "numOutputRows": rows_out, "metrics": {}},
            "numInputRows": rows,
            "inputRowsPerSecond": rate,
            "processedRowsPerSecond": 50.0,
            "observedMetrics": {},
        }
    )


def behind(messages: int, seconds: float | None) -> dict[str, Any]:
    counts = {"messages": messages, "messagesMin": 0, "messagesMax": messages, "messagesAvg": 1.0}
    return {"queues": {}, "lag": {**counts, "bytes": 10 * messages, "seconds": seconds}}


def test_rates_lag_and_rows_come_from_the_progress() -> None:
    run = _QueryRun(FIRST)
    assert run.report() == FIRST
    run.advance(progress(200, rows_out=20, latest=behind(7, 1.5)))
    report = run.report()
    assert (report.rows, report.rows_in_per_second, report.rows_out_per_second) == (200, 100.0, 10.0)
    assert (report.lag_messages, report.lag_bytes, report.lag_ms) == (7, 70, 1_500)
    run.advance(progress(5, latest=behind(3, None)))
    report = run.report()
    assert (report.rows, report.rows_out_per_second, report.lag_ms) == (205, None, None)
    run.rest()
    report = run.report()
    assert (report.rows_in_per_second, report.rows_out_per_second, report.lag_messages) == (0.0, None, 0)


@pytest.mark.parametrize("latest", [None, 5, "text", [1], {"lag": {}}])
def test_other_sources_have_no_lag(latest: object) -> None:
    run = _QueryRun(FIRST)
    run.advance(progress(1, rate=float("nan"), latest=latest, end={"a": {"0": 1}}))
    report = run.report()
    assert (report.lag_messages, report.topics) == (None, ())
    assert report.rows_in_per_second == 50.0, "Spark does not know the time since the last trigger"
    run.rest()
    assert run.report().lag_messages is None, "nobody knows it, so it is not 0"


def test_old_values_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    run = _QueryRun(FIRST)
    run.advance(progress(1, latest=behind(7, 1.5)))
    monkeypatch.setattr(query_reports, "PROGRESS_VALID_S", -1.0)
    report = run.report()
    assert report.rows == 1
    assert report.rows_in_per_second is report.lag_messages is report.lag_bytes is report.lag_ms is None


def test_the_end_has_the_error() -> None:
    ended = _QueryRun(FIRST).end(None)
    assert (ended.state, ended.last_error) == ("ended", None)
    failed = _QueryRun(FIRST).end("[STREAM_FAILED] Query failed\n\tat org.apache\nValueError: no apples\n")
    assert (failed.state, failed.last_error) == ("failed", "ValueError: no apples")
