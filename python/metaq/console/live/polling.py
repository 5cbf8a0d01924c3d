"""How long to wait between polls: a cluster that answers slowly is asked less often."""

from __future__ import annotations

from typing import Final

DURATION_FACTOR: Final = 20
"""Polls take at most a twentieth of the time."""
INTERVAL_S_MAX: Final = 300.0
SPACING_S: Final = 0.5
"""Least time between the end of a poll and the next one."""
WANTED_SPACING_S: Final = 1.0
"""The same after a change of the cluster; if the poll took longer, the cluster rests for as long."""
FAILING_INTERVAL_S_MAX: Final = 15.0
"""A broker that hangs makes a poll last until its timeout. The others are not to be asked less for long."""


def next_interval_s(poll_interval_s: float, duration_s: float, *, is_whole: bool) -> float:
    """Returns the time from the beginning of one poll to the next; `is_whole` if every broker answered."""
    longest_s = INTERVAL_S_MAX if is_whole else FAILING_INTERVAL_S_MAX
    return max(poll_interval_s, min(duration_s * DURATION_FACTOR, longest_s))
