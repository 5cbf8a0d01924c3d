"""Values for people."""

from __future__ import annotations

import pytest

from metaq.cli.formats import plain, rate, share, size, span
from metaq.cli.latencies import Latencies


def test_unknown_is_never_zero() -> None:
    assert {show(None) for show in (plain, rate, share, size, span)} == {"–"}


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (7, "7 ms"),
        (1500, "1.5 s"),
        (61_000, "1 min 1 s"),
        (7_260_000, "2 h 1 min"),
        (259_200_000, "3.0 days"),
    ],
)
def test_spans(milliseconds: float, text: str) -> None:
    assert span(milliseconds) == text


def test_percentiles_are_within_a_percent() -> None:
    latencies = Latencies()
    assert latencies.record() == dict.fromkeys(("p50", "p90", "p99", "p999", "max"))
    for number in range(1, 1001):
        latencies.add(number / 10)
    found = latencies.record()
    for name, expected in (("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("max", 100.0)):
        assert found[name] == pytest.approx(expected, rel=0.011)
