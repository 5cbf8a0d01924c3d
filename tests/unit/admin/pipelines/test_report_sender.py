"""The thread that sends reports: a cluster that is away hurts nobody."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest

from metaq.admin import PipelineReport
from metaq.admin.pipelines import report_sender
from metaq.admin.pipelines.report_sender import LAST_REPORTS_MAX, RUNS_MAX, ReportSender
from tests.support.waiting import wait_until

AWAY = "127.0.0.1:1"
REPORT = PipelineReport(
    name="shop", kind="binlog-sync", run="r1", host="here", pid=7, started_ms=1, state="running"
)


class Counted:
    """A snapshot that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> PipelineReport:
        self.calls += 1
        return REPORT


def test_a_cluster_that_is_away_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    snapshot = Counted()
    with caplog.at_level(logging.INFO, report_sender.__name__), ReportSender(AWAY, 0.02) as sender:
        sender.begin("r1", snapshot)
        wait_until(lambda: snapshot.calls >= 5)
        sender.end(replace(REPORT, state="ended"))
    [record] = caplog.records
    assert record.getMessage().startswith(f"reports about shop cannot be sent to {AWAY}: ")
    assert record.getMessage().endswith("; the work goes on")


def test_a_failure_is_not_repeated_before_the_next_interval() -> None:
    snapshot, other = Counted(), Counted()
    with ReportSender(AWAY, 3_600) as sender:
        sender.begin("r1", snapshot)
        wait_until(lambda: snapshot.calls == 1 and sender._is_failing)
        # News do not start another try while reports fail.
        sender.begin("r2", other)
        sender.end(replace(REPORT, run="r3", state="ended"))
    assert (snapshot.calls, other.calls) == (1, 0)


def test_a_snapshot_that_fails_ends_reports_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> PipelineReport:
        raise RuntimeError("a bug")

    with ReportSender(AWAY, 0.02) as sender:
        sender.begin("r1", broken)
        wait_until(lambda: not sender._thread.is_alive())
        sender.end(REPORT)
    assert "reports about pipelines end" in caplog.text


def test_what_waits_is_bounded() -> None:
    sender = ReportSender(AWAY)
    for number in range(RUNS_MAX + 10):
        sender.begin(f"r{number}", Counted())
        sender.end(replace(REPORT, run=f"ended {number}"))
    assert (len(sender._running), len(sender._last)) == (RUNS_MAX, LAST_REPORTS_MAX)
    sender.close()
    assert threading.current_thread().is_alive(), "a sender that never started can be closed"
