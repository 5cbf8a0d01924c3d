"""Sends reports about runs from a thread of its own. A report that cannot be sent hurts nobody."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from metaq.admin.pipelines.reports import REPORT_INTERVAL_S, PipelineReport
from metaq.admin.sync import Admin
from metaq.errors import MetaqError

_log = logging.getLogger(__name__)

SEND_TIMEOUT_S: Final = 3.0
CLOSE_TIMEOUT_S: Final = 5.0
RUNS_MAX: Final = 1_000
"""Runs of one process that are reported. Those beyond are not."""
LAST_REPORTS_MAX: Final = 100
"""Last reports of runs that wait for a broker. The oldest are dropped."""

Snapshot = Callable[[], PipelineReport]


class ReportSender:
    """Reports every run of this process at an interval. A context manager; any thread may use it.

    Nothing waits but the newest state of each run and a bounded number of last reports. A report that fails
    is not sent again before the next interval, and the first failure in a row is logged.
    """

    def __init__(self, nameservers: str, interval_s: float = REPORT_INTERVAL_S) -> None:
        self._nameservers = nameservers
        self._interval_s = interval_s
        self._changed = threading.Condition()
        self._running: dict[str, Snapshot] = {}
        self._begun: set[str] = set()
        """Runs whose first report was not sent yet."""
        self._last: deque[PipelineReport] = deque(maxlen=LAST_REPORTS_MAX)
        self._is_closing = False
        self._is_failing = False
        self._thread = threading.Thread(target=self._work, name="pipeline reports", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Sends the last reports of runs that are over, for a short while. Safe to call twice."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def begin(self, run: str, snapshot: Snapshot) -> None:
        """Reports a run at once and then at the interval. The thread of the sender calls `snapshot`."""
        with self._changed:
            if run in self._running or len(self._running) >= RUNS_MAX:
                return
            self._running[run] = snapshot
            self._begun.add(run)
            self._changed.notify()

    def end(self, last: PipelineReport) -> None:
        """Reports at once that a run is over."""
        with self._changed:
            self._running.pop(last.run, None)
            self._begun.discard(last.run)
            self._last.append(last)
            self._changed.notify()

    # Inside

    def _work(self) -> None:
        try:
            with Admin(self._nameservers, timeout=SEND_TIMEOUT_S) as admin:
                self._send_all(admin)
        except Exception:
            # The pipeline must go on, whatever is wrong with its reports.
            _log.exception("reports about pipelines end")

    def _send_all(self, admin: Admin) -> None:
        due_s = time.monotonic() + self._interval_s
        while True:
            with self._changed:
                while not self._has_work(due_s):
                    self._changed.wait(max(due_s - time.monotonic(), 0.0))
                is_closing = self._is_closing
                is_due = time.monotonic() >= due_s
                wanted = [] if is_closing else list(self._running if is_due else self._begun)
                self._begun.clear()
            # After a failure, the rest waits for the next interval as well.
            is_sent = self._send_last(admin) and self._send_running(admin, wanted)
            if is_closing:
                return
            if is_due or not is_sent:
                due_s = time.monotonic() + self._interval_s

    def _has_work(self, due_s: float) -> bool:
        has_news = bool(self._begun or self._last) and not self._is_failing
        return self._is_closing or has_news or time.monotonic() >= due_s

    def _send_last(self, admin: Admin) -> bool:
        while self._last:
            last = self._last[0]
            if not self._send(admin, last):
                return False
            with self._changed:
                if self._last and self._last[0] is last:
                    self._last.popleft()
        return True

    def _send_running(self, admin: Admin, runs: list[str]) -> bool:
        for run in runs:
            snapshot = self._running.get(run)
            # The run may have ended meanwhile, and its last report must stay the last.
            if snapshot is not None and not self._send(admin, snapshot()):
                return False
        return True

    def _send(self, admin: Admin, report: PipelineReport) -> bool:
        try:
            admin.pipelines.send(report)
        except MetaqError as error:
            if not self._is_failing:
                _log.warning(
                    "reports about %s cannot be sent to %s: %s; the work goes on",
                    report.name,
                    self._nameservers,
                    error,
                )
            self._is_failing = True
            return False
        self._is_failing = False
        return True
