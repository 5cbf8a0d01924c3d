"""The trend of a lag, and the time until it is gone."""

from __future__ import annotations

import pytest

from metaq.console.live.trends import UNKNOWN, trend_of


def past(*lags: float) -> list[tuple[int, float]]:
    return [(number * 10_000, lag) for number, lag in enumerate(lags)]


def test_a_falling_lag_has_a_time_to_clear() -> None:
    trend = trend_of(past(1_000, 900, 800, 700), 700)
    assert trend.direction == "falling"
    assert trend.falls_per_second == pytest.approx(10)
    assert trend.clear_ms == 70_000


def test_a_growing_or_steady_lag_has_none() -> None:
    growing = trend_of(past(100, 200, 300), 300)
    assert (growing.direction, growing.clear_ms) == ("growing", None)
    assert growing.falls_per_second == pytest.approx(-10)
    steady = trend_of(past(1_000, 1_001, 999, 1_000), 1_000)
    assert (steady.direction, steady.clear_ms) == ("steady", None)


@pytest.mark.parametrize("lags", [(3, 12, 2, 9, 1, 12), (12, 2, 11, 0, 9, 4)])
def test_a_small_lag_that_goes_up_and_down_is_steady(lags: tuple[float, ...]) -> None:
    assert trend_of(past(*lags), int(lags[-1])).direction == "steady"


def test_a_lag_that_grows_unevenly_still_grows() -> None:
    assert trend_of(past(100, 180, 290, 330, 520, 600), 600).direction == "growing"


def test_a_lag_that_is_gone_is_clear_now() -> None:
    assert trend_of(past(0, 0, 0), 0).clear_ms == 0
    assert trend_of(past(0, 0, 0), 0).direction == "steady"
    gone = trend_of(past(200, 100, 0), 0)
    assert (gone.direction, gone.clear_ms) == ("falling", 0)


def test_too_few_values_say_nothing() -> None:
    assert trend_of(past(5, 4), 4) == UNKNOWN
    assert trend_of(past(5, 4, 3), None) == UNKNOWN
    assert trend_of([], 7) == UNKNOWN


def test_gaps_do_not_bend_the_line() -> None:
    trend = trend_of([(0, 1_000), (10_000, 990), (100_000, 900)], 900)
    assert trend.falls_per_second == pytest.approx(1)
    assert trend.clear_ms == 900_000
