"""Past values: steps, gaps, figures that do not move, and the bound of memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from metaq.console.live.history import KEPT_MS, SERIES_BYTES_MAX, STILL_BYTES_MAX, History
from metaq.console.live.rings import COARSE, FINE

STEP_MS = FINE.step_ms
BEGIN_MS = 1_800_000_000_000 // COARSE.step_ms * COARSE.step_ms


class Past:
    """A history whose polls a test makes, one step after the other."""

    def __init__(self, series_max: int = 100) -> None:
        self.now_ms = BEGIN_MS
        self.looked_ms = BEGIN_MS - STEP_MS
        self.history = History(series_max, lambda: self.now_ms)

    def poll(self, *, steps: int = 1, from_ms: int | None = None, **values: float | None) -> None:
        """Records the rate in of these topics, a number of steps later."""
        self.now_ms += steps * STEP_MS
        begin_ms = self.looked_ms if from_ms is None else from_ms
        self.history.looked("topic", begin_ms, self.now_ms)
        for name, value in values.items():
            self.history.record("topic", name, {"in": value}, begin_ms, self.now_ms)
        self.looked_ms = self.now_ms

    def skip(self, steps: int = 1) -> None:
        """Lets polls fail."""
        self.now_ms += steps * STEP_MS
        self.looked_ms = self.now_ms

    def last(self, count: int, name: str = "a") -> list[float | None]:
        return self.history.series("topic", name, "in").values[-count:]

    def last_coarse(self, count: int, name: str = "a") -> list[float | None]:
        return self.history.series("topic", name, "in", "24h").values[-count:]


def test_a_series_has_a_step_of_ten_seconds_for_an_hour_and_of_five_minutes_for_a_day() -> None:
    past = Past()
    past.poll(a=1)
    fine, coarse = past.history.series("topic", "a", "in"), past.history.series("topic", "a", "in", "24h")
    assert (fine.step_ms, len(fine.values)) == (10_000, 360)
    assert (coarse.step_ms, len(coarse.values)) == (300_000, 288)
    assert fine.start_ms + 359 * 10_000 <= past.now_ms < fine.start_ms + 360 * 10_000
    assert fine.values[-1] == 1 and fine.values[:-1] == [None] * 359
    assert coarse.values[-1] == 1 and coarse.values[:-1] == [None] * 287


def test_failed_polls_are_gaps_in_moving_and_in_still_figures() -> None:
    past = Past()
    past.poll(a=1, b=5)
    past.poll(a=2, b=5)
    past.skip(2)
    past.poll(a=3, b=5)
    assert past.last(6) == [None, 1, 2, None, None, 3]
    assert past.last(6, "b") == [None, 5, 5, None, None, 5]


def test_an_unknown_value_is_a_gap_and_never_zero() -> None:
    past = Past()
    past.poll(a=None)
    assert past.last(3) == [None] * 3
    past.poll(a=4)
    past.poll(a=5)
    past.poll(a=None)
    past.poll(a=0)
    assert past.last(5) == [None, 4, 5, None, 0]
    assert past.history.series("topic", "never seen", "in").values == [None] * 360


def test_a_figure_that_never_moves_has_no_ring_and_is_a_line() -> None:
    past = Past()
    for _ in range(3):
        past.poll(a=0)
    assert past.history.series_count == 0
    assert past.last(4) == [None, 0, 0, 0]
    past.poll(a=7)
    assert past.history.series_count == 1
    assert past.last(5) == [None, 0, 0, 0, 7]
    assert past.last_coarse(2) == [None, 7 / 4]


def test_slow_polls_fill_the_steps_between_them() -> None:
    past = Past()
    past.poll(a=1)
    past.poll(a=2, steps=4)
    past.poll(a=3, steps=3)
    assert past.last(9) == [None, 1, 2, 2, 2, 2, 3, 3, 3]
    past.poll(a=4, steps=3, from_ms=past.now_ms + 3 * STEP_MS)
    assert past.last(4) == [3, None, None, 4], "a look that came too late stands for itself alone"


def test_a_long_silence_empties_the_ring() -> None:
    past = Past()
    for value in range(5):
        past.poll(a=value)
    past.skip(1_000)
    assert past.last(360) == [None] * 360
    past.poll(a=9)
    assert past.last(360) == [None] * 359 + [9]
    coarse = past.last_coarse(288)
    assert [value for value in coarse if value is not None] == [2, 9], "the day remembers the mean"


def test_a_ring_turns_over() -> None:
    past = Past()
    for value in range(1_000):
        past.poll(a=value)
    assert past.last(360) == list(range(640, 1_000))
    coarse = [value for value in past.last_coarse(288) if value is not None]
    assert len(coarse) == 34
    assert coarse[1] == pytest.approx(29 + 14.5), (
        "each step of five minutes has the mean of its thirty values"
    )


def test_lags_keep_their_peaks_and_rates_their_mean() -> None:
    past = Past()
    for value in (0, 900, 0):
        past.now_ms += STEP_MS
        past.history.looked("group", past.now_ms - STEP_MS, past.now_ms)
        figures = {"lag": value, "out": value}
        past.history.record("group", "g", figures, past.now_ms - STEP_MS, past.now_ms)
    assert past.history.series("group", "g", "lag", "24h").values[-1] == 900
    assert past.history.series("group", "g", "out", "24h").values[-1] == 300


def test_several_polls_within_a_step_leave_the_newest_value() -> None:
    past = Past()
    past.poll(a=1)
    for value in (2, 3, 4):
        past.history.record("topic", "a", {"in": value}, past.now_ms, past.now_ms + 1)
    assert past.last(2) == [None, 4]
    assert past.last_coarse(1) == [4]


def test_a_clock_that_goes_back_harms_nothing() -> None:
    past = Past()
    past.poll(a=1)
    past.poll(a=2)
    past.now_ms -= 2 * STEP_MS
    past.poll(a=3)
    past.now_ms += STEP_MS
    assert past.last(3) == [None, 1, 2]


def test_deleted_objects_are_forgotten() -> None:
    past = Past()
    for value in (1, 2):
        past.poll(a=value, b=value, c=1, d=1)
    past.history.keep_only("topic", {"a", "c"})
    assert past.history.series_count == 1
    assert past.last(1, "b") == past.last(1, "d") == [None]
    assert past.last(1, "a") == [2] and past.last(1, "c") == [1]


def test_the_ring_that_moved_least_recently_goes_first() -> None:
    past = Past(series_max=2)
    past.poll(a=1, b=1, c=1)
    past.poll(a=2, b=1, c=1)
    past.poll(a=2, b=2, c=1)
    past.poll(a=2, b=2, c=2)
    assert past.history.series_count == 2
    assert past.last(3, "c") == [None, None, 2], "there is no room: all others moved a moment ago"
    past.poll(steps=KEPT_MS // STEP_MS - 1, a=2, b=2, c=2)
    past.poll(a=2, b=2, c=3)
    assert past.history.series_count == 2
    assert past.last(2, "c") == [2, 3]
    assert past.last(1, "a") == [None], "a moved before b"
    assert past.last(1, "b") == [2]


def test_a_figure_that_is_looked_at_alone_has_gaps_between_the_looks() -> None:
    past = Past()
    for value in (3.0, 4.0):
        past.now_ms += 2 * STEP_MS
        past.history.record_alone("topic", "a", {"in": value, "out": None, "size": 0}, past.now_ms)
    assert past.last(4) == [None, 3, None, 4]
    assert past.history.series_count == 1


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
def test_memory_stays_within_the_stated_bound() -> None:
    past, rings, objects = Past(series_max=500), 500, 2_000
    before, _ = tracemalloc.get_traced_memory()
    for value in (1.0, 2.0, 3.0):
        # Each poll decodes its names anew.
        past.poll(**{f"topic-with-a-name-of-usual-length-{number}": value for number in range(rings)})
        past.poll(**{f"topic-with-a-name-of-usual-length-{number}": 0.0 for number in range(rings, objects)})
    after, _ = tracemalloc.get_traced_memory()
    assert past.history.series_count == rings
    used = after - before
    assert used <= rings * SERIES_BYTES_MAX + (objects - rings) * STILL_BYTES_MAX, f"{used} bytes"
    assert used >= rings * (FINE.steps + COARSE.steps) * 4, "the measurement sees the rings"


@pytest.mark.usefixtures("traced")
def test_more_moving_figures_than_rings_stay_within_the_bound() -> None:
    past, objects = Past(series_max=100), 1_000
    before, _ = tracemalloc.get_traced_memory()
    for value in (1.0, 2.0, 3.0):
        past.poll(**{f"name-{number}": value for number in range(objects)})
    after, _ = tracemalloc.get_traced_memory()
    assert past.history.series_count == 100
    assert after - before <= 100 * SERIES_BYTES_MAX + objects * STILL_BYTES_MAX
