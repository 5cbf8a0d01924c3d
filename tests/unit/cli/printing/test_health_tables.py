"""The scrub of a broker as a cell of a table."""

from __future__ import annotations

import time

import pytest

from metaq.admin.health.results import ScrubHealth
from metaq.cli.printing.health_tables import scrub_text

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("scrub", "expected"),
    [
        (None, "–"),
        (ScrubHealth(None, None, 0, 0, 0), "–"),
        (ScrubHealth(None, None, 0, 0, 0, is_on=False), "off"),
        (ScrubHealth(42, None, 0, 0, 0), "42 %"),
        (ScrubHealth(42, 1, 3, 2, 1), "42 %, 1 damaged, 2 repaired"),
    ],
)
def test_a_scrub_in_a_few_words(scrub: ScrubHealth | None, expected: str) -> None:
    assert scrub_text(scrub) == expected


def test_a_pass_that_ended_says_when() -> None:
    ended_ms = int(time.time() * 1000) - 2 * HOUR_MS
    assert scrub_text(ScrubHealth(None, ended_ms, 1, 1, 0)) == "2 h 0 min ago, 1 repaired"
