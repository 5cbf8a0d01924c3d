"""Limits how fast rows are read again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

BURST_S: Final = 1.0
"""An allowance of this time may be used at once, because tables are read only a few times a second."""


class Pace:
    """An allowance of rows that grows with time."""

    def __init__(self, rows_per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Without a limit, `rows_per_second` is 0."""
        self._rows_per_second = rows_per_second
        self._clock = clock
        self._left = 0.0
        self._counted_at = clock() - BURST_S

    def allows(self) -> bool:
        """Returns whether more rows may be read now."""
        if not self._rows_per_second:
            return True
        now = self._clock()
        grown = self._left + (now - self._counted_at) * self._rows_per_second
        self._left = min(grown, self._rows_per_second * BURST_S)
        self._counted_at = now
        return self._left > 0

    def spend(self, rows: int) -> None:
        """Counts rows that were read. The allowance may become negative: chunks are read as a whole."""
        self._left -= rows
