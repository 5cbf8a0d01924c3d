"""The metrics of a pipeline over HTTP."""

from __future__ import annotations

import http.client
import logging
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from metaq.pipelines import Progress, metrics_page
from metaq.pipelines.metrics_page import PipelineMetrics, served


def get(address: str, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=10)
    connection.request("GET", path)
    response = connection.getresponse()
    answer = response.status, response.read().decode()
    connection.close()
    return answer


def samples(address: str) -> dict[str, float]:
    status, text = get(address, "/metrics")
    assert status == 200
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert (sample.labels.pop("pipeline"), sample.labels.pop("config")) == ("log-lake", "logs")
            found[" ".join([sample.name, *sample.labels.values()])] = sample.value
    return found


def test_the_last_report_is_shown_and_unknown_values_are_left_out() -> None:
    metrics = PipelineMetrics("log-lake", Path("conf/logs.toml"))
    with served(metrics, "127.0.0.1", 0) as address:
        assert get(address, "/livez") == (200, "ok\n")
        assert get(address, "/readyz") == (503, "reports: the pipeline starts\nlast error: none\n")
        started = samples(address)
        assert "metaq_pipeline_lag_seconds" not in started
        assert "metaq_pipeline_reported_timestamp_seconds" not in started
        metrics.report(
            Progress(
                "running",
                rows=7,
                bytes=70,
                lag_s=0.5,
                batch_s=1.25,
                restarts=1,
                details={"messages_left": 3, "batches": 2, "quarantined": 0, "step": "waiting"},
            )
        )
        shown = samples(address)
        assert get(address, "/readyz")[0] == 200
    assert (
        shown.items()
        >= {
            "metaq_pipeline_phase running": 1,
            "metaq_pipeline_rows_total": 7,
            "metaq_pipeline_bytes_total": 70,
            "metaq_pipeline_lag_seconds": 0.5,
            "metaq_pipeline_lag_messages": 3,
            "metaq_pipeline_batch_duration_seconds": 1.25,
            "metaq_pipeline_batches_total": 2,
            "metaq_pipeline_quarantined_total": 0,
            "metaq_pipeline_restarts_total": 1,
            "metaq_pipeline_last_error_timestamp_seconds": 0,
        }.items()
    )
    assert (
        shown["metaq_pipeline_reported_timestamp_seconds"]
        >= (shown["metaq_pipeline_started_timestamp_seconds"])
    )


def test_warnings_and_errors_in_the_log_are_counted() -> None:
    metrics = PipelineMetrics("log-lake", Path("logs.toml"))
    with served(metrics, "127.0.0.1", 0) as address:
        logging.getLogger("metaq.test").warning("slow")
        logging.getLogger("metaq.test").error("broken %s", "pipe")
        shown = samples(address)
        assert "last error: broken pipe\n" in get(address, "/readyz")[1]
    logging.getLogger("metaq.test").error("after the end")
    assert shown["metaq_pipeline_log_lines_total warning"] == 1
    assert shown["metaq_pipeline_log_lines_total error"] == 1
    assert shown["metaq_pipeline_last_error_timestamp_seconds"] > 0
    assert metrics not in logging.getLogger().handlers


def test_a_silent_pipeline_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = PipelineMetrics("log-lake", Path("logs.toml"))
    metrics.report(Progress("running"))
    assert metrics.readiness()[0]
    monkeypatch.setattr(metrics_page, "SILENCE_MAX_S", -1.0)
    is_ready, text = metrics.readiness()
    assert not is_ready and text.startswith("reports: no report for 0 s\n")
