"""The durations by which a test may move the clock."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from metaq.testing.clock import milliseconds


@pytest.mark.parametrize(
    ("by", "expected_ms"),
    [
        (0, 0),
        (30, 30_000),
        (0.25, 250),
        (timedelta(hours=2), 7_200_000),
        (timedelta(days=36_525), 3_155_760_000_000),
    ],
)
def test_time_that_can_pass(by: timedelta | float, expected_ms: int) -> None:
    assert milliseconds(by) == expected_ms


@pytest.mark.parametrize("by", [-1, timedelta(microseconds=-1), math.nan, math.inf, 10**30])
def test_time_that_cannot_pass(by: timedelta | float) -> None:
    with pytest.raises(ValueError, match="forwards"):
        milliseconds(by)


@pytest.mark.parametrize("by", ["2h", None, True])
def test_values_that_are_not_durations(by: object) -> None:
    with pytest.raises(TypeError, match="timedelta or a number of seconds"):
        milliseconds(by)  # type: ignore[arg-type]
