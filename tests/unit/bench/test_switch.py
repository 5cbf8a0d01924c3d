"""How the benchmark computes pauses and percentiles."""

from __future__ import annotations

import pytest

from bench.switch import Event, Flow, figures, percentile


@pytest.mark.parametrize(
    ("begin", "end", "pause_s"),
    [(1.5, 9.0, 4.0), (5.5, 9.0, 2.0), (1.5, 3.5, 2.5)],
    ids=["began before the event", "after another one", "not over yet"],
)
def test_a_pause_lies_between_two_acknowledgements(begin: float, end: float, pause_s: float) -> None:
    assert Flow(acknowledged=[0.0, 1.0, 5.0, 6.0, 8.0]).pause_s(begin, end) == pause_s


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(200, 0, -1)]
    assert (percentile(values, 50), percentile(values, 99)) == (100.0, 198.0)
    assert percentile([7.0], 99) == 7.0


def test_the_figures_keep_kills_and_switches_apart() -> None:
    found = figures([Event(0.5, 1), Event(2.0, 0)], [Event(0.1, 0), Event(0.2, 3)])
    assert found == {
        "killed_p50_s": 0.5,
        "killed_p99_s": 2.0,
        "killed_errors": 1,
        "switched_p50_s": 0.1,
        "switched_max_s": 0.2,
        "switched_errors": 3,
    }
