"""Percentiles of latencies."""

from __future__ import annotations

import pytest

from metaq.cli.work.latencies import Latencies


def test_percentiles_are_within_a_percent() -> None:
    latencies = Latencies()
    assert latencies.record() == dict.fromkeys(("p50", "p90", "p99", "p999", "max"))
    for number in range(1, 1001):
        latencies.add(number / 10)
    found = latencies.record()
    for name, expected in (("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("max", 100.0)):
        assert found[name] == pytest.approx(expected, rel=0.011)
