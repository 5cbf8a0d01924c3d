"""The clock of the servers, which a test can move."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from metaq._core import Clock
from metaq.testing.stored import moment

ADVANCE_MAX = timedelta(days=36_525)


def milliseconds(by: timedelta | float) -> int:
    """Converts a duration. Raises TypeError or ValueError if the clock cannot move by it."""
    if isinstance(by, bool) or not isinstance(by, timedelta | int | float):
        raise TypeError(f"by must be a timedelta or a number of seconds, not {type(by).__name__}")
    seconds = by.total_seconds() if isinstance(by, timedelta) else by
    # The comparison is also false for NaN.
    if not 0 <= seconds <= ADVANCE_MAX.total_seconds():
        raise ValueError(f"by is {by}: the clock only moves forwards, by at most a hundred years")
    return round(seconds * 1000)


class LocalClock:
    """The clock of name server and broker. It runs on its own unless it is frozen."""

    def __init__(self, clock: Clock, advance: Callable[[int, bool], None]) -> None:
        self._clock = clock
        self._advance = advance

    def now(self) -> datetime:
        """Returns the time in UTC. Once you moved the clock, compute delivery times from this."""
        return moment(self._clock.now_ms())

    def advance(self, by: timedelta | float, *, silent: bool = False) -> None:
        """Moves the clock forward, by a timedelta or by seconds.

        Returns when everything that is due has happened: delayed messages and retries are delivered,
        producers of open transactions are asked once, queue locks expire. Connected clients count as alive
        during that time. With `silent` they do not, and the broker forgets them after `client_expiry_s`.
        """
        self._advance(milliseconds(by), silent)


class AsyncLocalClock:
    """Does the same as `LocalClock` for coroutines."""

    def __init__(self, clock: Clock, advance: Callable[[int, bool], Awaitable[None]]) -> None:
        self._clock = clock
        self._advance = advance

    def now(self) -> datetime:
        """Returns the time in UTC. Once you moved the clock, compute delivery times from this."""
        return moment(self._clock.now_ms())

    async def advance(self, by: timedelta | float, *, silent: bool = False) -> None:
        """Moves the clock forward; see `LocalClock.advance`."""
        await self._advance(milliseconds(by), silent)
