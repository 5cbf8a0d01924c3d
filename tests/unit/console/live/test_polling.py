"""The time between polls."""

from __future__ import annotations

from metaq.console.live.polling import next_interval_s


def test_a_slow_cluster_is_asked_less_often() -> None:
    assert next_interval_s(10, 0.1, is_whole=True) == 10
    assert next_interval_s(10, 2, is_whole=True) == 40
    assert next_interval_s(10, 60, is_whole=True) == 300
    assert next_interval_s(600, 60, is_whole=True) == 600


def test_a_broker_that_hangs_slows_the_others_little() -> None:
    assert next_interval_s(10, 5, is_whole=False) == 15
    assert next_interval_s(10, 0.1, is_whole=False) == 10
