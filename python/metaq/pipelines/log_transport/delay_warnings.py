"""Decides when to warn that lines of a file are delayed: at the beginning, then at rising intervals."""

from __future__ import annotations

import time
from typing import Final

FIRST_INTERVAL_S: Final = 10.0
INTERVAL_S_MAX: Final = 600.0
CALM_S: Final = 10.0
"""A failure that comes later than this after the last one begins a new delay, if lines were sent in between.
A slow broker takes some lines between two failures, which does not end the delay."""


class DelayWarnings:
    """The delays of one file."""

    def __init__(self) -> None:
        self._failed_at: float | None = None
        self._has_sent = False
        self._interval_s = FIRST_INTERVAL_S
        self._due_at = 0.0

    def sent(self) -> None:
        """Lines were acknowledged."""
        self._has_sent = True

    def is_due(self) -> bool:
        """Notes a failure; returns whether to warn about it."""
        now = time.monotonic()
        before, self._failed_at = self._failed_at, now
        is_new = before is None or (self._has_sent and now - before > CALM_S)
        self._has_sent = False
        if is_new:
            self._interval_s = FIRST_INTERVAL_S
        elif now < self._due_at:
            return False
        else:
            self._interval_s = min(2 * self._interval_s, INTERVAL_S_MAX)
        self._due_at = now + self._interval_s
        return True
