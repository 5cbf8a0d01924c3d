"""A delay that lasts is warned about at its beginning, and then rarely."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from metaq.pipelines.log_transport import delay_warnings
from metaq.pipelines.log_transport.delay_warnings import (
    CALM_S,
    FIRST_INTERVAL_S,
    INTERVAL_S_MAX,
    DelayWarnings,
)


class Clock:
    """The only part of `time` that the module uses."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(delay_warnings, "time", clock)
    yield clock


def warned_after(clock: Clock, warnings: DelayWarnings, seconds: int, *, is_sending: bool) -> list[float]:
    """Fails once a second; returns the seconds after which it warned."""
    begun_s, found = clock.now_s, []
    for _ in range(seconds):
        if warnings.is_due():
            found.append(clock.now_s - begun_s)
        if is_sending:
            warnings.sent()
        clock.now_s += 1
    return found


@pytest.mark.parametrize("is_sending", [False, True])
def test_warnings_of_one_delay_become_rare(clock: Clock, is_sending: bool) -> None:
    found = warned_after(clock, DelayWarnings(), 3600, is_sending=is_sending)
    first = [0, FIRST_INTERVAL_S, 3 * FIRST_INTERVAL_S, 7 * FIRST_INTERVAL_S]
    assert found[:4] == first
    assert found[-1] - found[-2] == INTERVAL_S_MAX
    assert len(found) < 13


def test_a_new_delay_is_warned_about_at_once(clock: Clock) -> None:
    warnings = DelayWarnings()
    assert warned_after(clock, warnings, 5, is_sending=False) == [0]
    warnings.sent()
    clock.now_s += CALM_S
    assert warned_after(clock, warnings, 5, is_sending=False) == [0]


def test_a_long_pause_without_an_acknowledgement_is_the_same_delay(clock: Clock) -> None:
    warnings = DelayWarnings()
    found = []
    for _ in range(20):
        found.append(warnings.is_due())
        clock.now_s += FIRST_INTERVAL_S + 1
    assert found[:3] == [True, True, False]
    assert sum(found) < 6
