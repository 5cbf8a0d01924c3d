"""Whether the lag of a group falls or grows, and when it will be gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import pstdev
from typing import Final, Literal

Direction = Literal["falling", "steady", "growing"]

LOOKED_AT_STEPS: Final = 30
"""Steps of 10 seconds that make a trend: five minutes."""
STEPS_MIN: Final = 3
STEADY_RATIO: Final = 0.02
"""A change over the whole time of less than this part of the lag is steady."""
NOISE_FACTOR: Final = 2.5
"""So is a change of less than this multiple of the spread around the line: a lag that goes up and down."""


@dataclass(frozen=True, slots=True)
class Trend:
    """The course of a lag. Everything is None while too few values are known."""

    direction: Direction | None = None
    falls_per_second: float | None = None
    """Messages per second by which the lag falls; negative if it grows."""
    clear_ms: int | None = None
    """The time until no message waits; None if the lag does not fall."""


UNKNOWN: Final = Trend()


def trend_of(points: Sequence[tuple[int, float]], lag: int | None) -> Trend:
    """Returns the trend of a lag from its past, as times and values, and from its value now."""
    if lag is None or len(points) < STEPS_MIN:
        return UNKNOWN
    if lag == 0:
        return Trend("steady", 0.0, 0) if points[0][1] == 0 else Trend("falling", _fall(points), 0)
    falls = _fall(points)
    span_s = (points[-1][0] - points[0][0]) / 1000
    if abs(falls) * span_s < max(STEADY_RATIO * lag, NOISE_FACTOR * _spread(points, falls), 1):
        return Trend("steady", falls)
    if falls < 0:
        return Trend("growing", falls)
    return Trend("falling", falls, round(lag / falls * 1000))


def _fall(points: Sequence[tuple[int, float]]) -> float:
    """The slope of the line through the points that fits best, downwards, per second."""
    begin_ms = points[0][0]
    times = [(ms - begin_ms) / 1000 for ms, _ in points]
    mean_s = sum(times) / len(times)
    mean = sum(value for _, value in points) / len(points)
    above = sum((s - mean_s) * (value - mean) for s, (_, value) in zip(times, points, strict=True))
    below = sum((s - mean_s) ** 2 for s in times)
    return -above / below if below else 0.0


def _spread(points: Sequence[tuple[int, float]], falls: float) -> float:
    """The standard deviation of the points from the line that falls so fast."""
    begin_ms = points[0][0]
    levelled = [value + falls * (ms - begin_ms) / 1000 for ms, value in points]
    return pstdev(levelled)
