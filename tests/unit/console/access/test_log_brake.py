"""The limit on lines in the log that anybody can cause."""

from __future__ import annotations

import logging

from metaq.console.access.log_brake import LINES_PER_MINUTE, LogBrake


def test_a_few_lines_per_minute_and_then_a_count() -> None:
    now_s = 0.0
    brake = LogBrake(lambda: now_s)

    def line() -> str | None:
        record = logging.LogRecord("x", logging.WARNING, "x.py", 1, "somebody at %s", ("10.0.0.1",), None)
        return record.getMessage() if brake.filter(record) else None

    written = [line() for _ in range(LINES_PER_MINUTE + 7)]
    assert written == ["somebody at 10.0.0.1"] * LINES_PER_MINUTE + [None] * 7
    now_s = 60.0
    assert line() == "somebody at 10.0.0.1 (7 more lines like this were left out)"
    assert line() == "somebody at 10.0.0.1"
    now_s = 200.0
    assert line() == "somebody at 10.0.0.1"
