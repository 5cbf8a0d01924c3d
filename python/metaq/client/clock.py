"""The wall clock, in the unit of the protocol, and spans of time as callers give them."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

SECONDS_MAX: Final = 1e10


def now_ms() -> int:
    """Returns the time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def seconds_of(span: timedelta | float) -> float | None:
    """Returns a timedelta or a number as seconds, or None if it is neither, negative or far too large."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < SECONDS_MAX:
        return None
    return seconds
