"""How fast a scrub reads, and when it begins."""

from __future__ import annotations

import pytest

from metaq.broker.scrubbing.pace import RATE_MIN, ScrubSettings, due_ms, rate
from metaq.settings import GIB, MIB

DAY = ScrubSettings(interval_s=86_400, bytes_per_second=8 * MIB)
DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("log_bytes", "expected"),
    [(0, RATE_MIN), (MIB, RATE_MIN), (100 * GIB, 2 * 100 * GIB / 86_400), (10_000 * GIB, 8 * MIB)],
)
def test_the_rate_follows_the_log_within_bounds(log_bytes: int, expected: float) -> None:
    assert rate(DAY, log_bytes) == expected


def test_the_limit_counts_more_than_the_least_rate() -> None:
    assert rate(ScrubSettings(1, 1_000), 0) == 1_000


@pytest.mark.parametrize(
    ("began_ms", "completed_ms", "expected"),
    [
        (None, None, 5_000),
        (1_000, 2_000, 1_000 + DAY_MS),
        # A pass that took longer than its interval is followed by the next one.
        (1_000 - DAY_MS, 4_000, 4_000),
        # The clock went back.
        (9_000, 9_500, 5_000 + DAY_MS),
    ],
)
def test_a_pass_begins_one_interval_after_the_one_before(
    began_ms: int | None, completed_ms: int | None, expected: int
) -> None:
    assert due_ms(DAY, began_ms, completed_ms, 5_000) == expected


def test_zero_switches_it_off() -> None:
    assert not ScrubSettings(interval_s=0).is_on and DAY.is_on
