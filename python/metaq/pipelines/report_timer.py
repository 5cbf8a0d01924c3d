"""Decides when a pipeline reports its progress, and computes its speed since the last report."""

from __future__ import annotations

import time
from typing import Final

REPORT_INTERVAL_S: Final = 1.0


class ReportTimer:
    """Is due once a second."""

    def __init__(self, *, is_due_at_once: bool = False) -> None:
        self._reported_at = time.monotonic()
        self._due_at = self._reported_at + (0.0 if is_due_at_once else REPORT_INTERVAL_S)
        self._rows = 0

    def is_due(self) -> bool:
        return time.monotonic() >= self._due_at

    def rows_per_second(self, rows: int) -> float:
        """Returns the speed since the last call, and starts the next interval."""
        now = time.monotonic()
        rate = (rows - self._rows) / max(now - self._reported_at, 0.001)
        self._reported_at, self._rows = now, rows
        self._due_at = now + REPORT_INTERVAL_S
        return rate
