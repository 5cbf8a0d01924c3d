"""A limit on lines in the log that anybody can cause, also without a session."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

LINES_PER_MINUTE: Final = 10
_PERIOD_S: Final = 60.0


class LogBrake(logging.Filter):
    """Lets a few lines of a logger through in each minute. The next line after that counts the others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._began_s = clock()
        self._lines = 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        left_out = 0
        if now - self._began_s >= _PERIOD_S:
            left_out = max(self._lines - LINES_PER_MINUTE, 0)
            self._began_s, self._lines = now, 0
        self._lines += 1
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out} more lines like this were left out)"
            record.args = ()
        return self._lines <= LINES_PER_MINUTE
