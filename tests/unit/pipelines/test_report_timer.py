"""The times at which a pipeline reports, and the rates it reports."""

from __future__ import annotations

import pytest

from metaq.pipelines import report_timer
from metaq.pipelines.report_timer import ReportTimer


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_reports_are_due_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(report_timer, "time", clock)
    timer = ReportTimer()
    assert not timer.is_due()
    assert ReportTimer(is_due_at_once=True).is_due()
    clock.now += 1.5
    assert timer.is_due()
    assert timer.rows_per_second(30) == 20.0
    assert not timer.is_due()
    clock.now += 2
    assert timer.rows_per_second(40) == 5.0
