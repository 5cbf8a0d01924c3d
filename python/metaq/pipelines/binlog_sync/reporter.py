"""Reports the progress of a run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from metaq.pipelines import Progress, Report
from metaq.pipelines.binlog_sync.writing.outbox import Outbox
from metaq.pipelines.binlog_sync.writing.state import SyncState
from metaq.pipelines.report_timer import ReportTimer


class SyncReporter:
    """Reports about once a second."""

    def __init__(self, report: Report, outbox: Outbox, state: SyncState) -> None:
        self.progress = Progress()
        self.is_idle = False
        """Whether the source has nothing more to send."""
        self.committed_s = 0
        """The time of the newest event."""
        self._report = report
        self._outbox = outbox
        self._state = state
        self._timer = ReportTimer(is_due_at_once=True)

    def is_due(self) -> bool:
        return self._timer.is_due()

    def report(
        self,
        phase: str,
        *,
        tables: int,
        snapshots_left: int,
        rereading: Mapping[str, int],
        xa_open: int,
        left_out: Mapping[str, str],
    ) -> None:
        progress, outbox = self.progress, self._outbox
        progress.phase = phase
        progress.rows, progress.bytes = outbox.rows, outbox.bytes
        progress.rows_per_second = self._timer.rows_per_second(progress.rows)
        if self.is_idle:
            progress.lag_s = 0.0
        elif self.committed_s:
            progress.lag_s = max(time.time() - self.committed_s, 0.0)
        progress.details = {
            "position": str(self._state.coordinates),
            "gtid": self._state.gtid,
            "messages": outbox.messages,
            "retries": outbox.retries,
            "tables": tables,
            "snapshots_left": snapshots_left,
            "rereading": dict(rereading),
            "xa_open": xa_open,
        }
        progress.findings = tuple(
            f"{name} is left out: {reason}" for name, reason in sorted(left_out.items())
        )
        self._report(replace(progress))
