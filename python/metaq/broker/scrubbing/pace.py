"""How fast a scrub reads: as slowly as its interval allows, and never faster than a limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from metaq.settings import KIB, MIB

RATE_MIN: Final = 256 * KIB
"""A small log is read at this rate, in bytes per second; slower would only keep it busy for longer."""
HASTE: Final = 2
"""A pass reads this much faster than its interval asks for, so that a pause does not delay the next one."""


@dataclass(frozen=True, slots=True)
class ScrubSettings:
    """How often the log is read, and how fast at most."""

    interval_s: float = 172_800.0
    """The whole log is read once in this time; 0 switches that off."""
    bytes_per_second: int = 8 * MIB

    @property
    def is_on(self) -> bool:
        return self.interval_s > 0


def rate(settings: ScrubSettings, log_bytes: int) -> float:
    """Returns the bytes per second of a pass over a log of this size."""
    wanted = max(HASTE * log_bytes / settings.interval_s, RATE_MIN)
    return min(wanted, settings.bytes_per_second)


def due_ms(settings: ScrubSettings, began_ms: int | None, completed_ms: int | None, now_ms: int) -> int:
    """Returns when the next pass begins, if none is under way. A clock that went back delays none."""
    if began_ms is None or completed_ms is None:
        return now_ms
    return max(min(began_ms, now_ms) + int(settings.interval_s * 1000), min(completed_ms, now_ms))
