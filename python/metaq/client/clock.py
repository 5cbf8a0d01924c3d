"""The wall clock, in the unit of the protocol."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Returns the time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
