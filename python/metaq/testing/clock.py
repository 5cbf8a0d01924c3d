"""The servers' clock, as a test moves it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from metaq._core import Clock
from metaq.testing.stored import moment

ADVANCE_MAX = timedelta(days=36_525)


def milliseconds(by: timedelta | float) -> int:
    """Raises TypeError or ValueError for what is no time that can pass."""
    if isinstance(by, bool) or not isinstance(by, timedelta | int | float):
        raise TypeError(f"by must be a timedelta or a number of seconds, not {type(by).__name__}")
    seconds = by.total_seconds() if isinstance(by, timedelta) else by
    # The comparison is also false for a number that is none.
    if not 0 <= seconds <= ADVANCE_MAX.total_seconds():
        raise ValueError(f"the clock goes forwards, by a hundred years at most, and not by {by}")
    return round(seconds * 1000)


class LocalClock:
    """The clock of name server and broker. It goes by itself unless it was frozen."""

    def __init__(self, clock: Clock, advance: Callable[[int, bool], None]) -> None:
        self._clock = clock
        self._advance = advance

    def now(self) -> datetime:
        """In UTC; what a delivery time has to be reckoned from once the clock was moved."""
        return moment(self._clock.now_ms())

    def advance(self, by: timedelta | float, *, silent: bool = False) -> None:
        """Lets time pass: a timedelta, or seconds.

        Returns when what is due by then has happened: delayed messages and retries are delivered, producers
        of open transactions are asked once, leases of queues end. Connected clients count as heard in the
        meantime; with `silent` they were not, and are forgotten after `client_expiry_s`.
        """
        self._advance(milliseconds(by), silent)


class AsyncLocalClock:
    """The same for coroutines."""

    def __init__(self, clock: Clock, advance: Callable[[int, bool], Awaitable[None]]) -> None:
        self._clock = clock
        self._advance = advance

    def now(self) -> datetime:
        """In UTC; what a delivery time has to be reckoned from once the clock was moved."""
        return moment(self._clock.now_ms())

    async def advance(self, by: timedelta | float, *, silent: bool = False) -> None:
        """As `LocalClock.advance`."""
        await self._advance(milliseconds(by), silent)
