"""A retry policy: how long a failed message waits before it comes again, and how often it does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from metaq.client.clock import seconds_of
from metaq.client.consumer.subscription import DELAY_LEVELS_S
from metaq.errors import UsageError
from metaq.retry import Backoff

LEVEL_MAX_S: Final = float(DELAY_LEVELS_S[-1])
EXACT_MAX_S: Final = 40 * 86_400.0
"""The longest delay that a broker of MetaQ accepts by default (`timer_max_delay_s`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Retries with growing delays: `consumer(…, retry=RetryPolicy(first=5, factor=3))`.

    The first retry waits for `first` seconds (or a timedelta), each later one `factor` times as long, at most
    `maximum`. Up to the share `jitter` of each delay is taken off at random, so that messages which failed
    together do not come back together. After `retries_max` retries the message becomes a dead letter; None
    leaves the number to the group's setting at the broker. `Retry(60)` in a handler overrides one delay.

    A broker knows only certain delays for retries, from 1 s to 2 h, and uses the next one that is not
    shorter. With `exact=True` the consumer sends the message again instead, as a delayed message, which
    arrives at the right time; it needs `retries_max`. Brokers before 5.0 cannot do that. Raises UsageError.
    """

    first: float | timedelta = 10.0
    factor: float = 2.0
    maximum: float | timedelta = LEVEL_MAX_S
    jitter: float = 0.2
    retries_max: int | None = None
    exact: bool = False

    def __post_init__(self) -> None:
        first_s, max_s = seconds_of(self.first), seconds_of(self.maximum)
        if not first_s:
            raise UsageError(f"first is {self.first!r}: it must be a timedelta or seconds above 0")
        if max_s is None or max_s < first_s:
            raise UsageError(
                f"maximum is {self.maximum!r}: it must be a timedelta or seconds, not less than first"
            )
        if not self.exact and max_s > LEVEL_MAX_S:
            raise UsageError(
                f"maximum is {self.maximum!r}: the longest delay level of a broker has {LEVEL_MAX_S:g} s",
                hint="exact=True allows longer delays",
            )
        if max_s > EXACT_MAX_S:
            raise UsageError(f"maximum is {self.maximum!r}: brokers delay at most {EXACT_MAX_S:.0f} s")
        if not _is_number(self.factor) or not 1 <= self.factor < math.inf:
            raise UsageError(f"factor is {self.factor!r}: it must be a number, at least 1")
        if not _is_number(self.jitter) or not 0 <= self.jitter <= 1:
            raise UsageError(f"jitter is {self.jitter!r}: it must be a number from 0 to 1")
        if self.exact and self.retries_max is None:
            raise UsageError(
                "exact=True needs retries_max",
                hint="a message that the consumer sends again is not counted by the group's setting",
            )
        number = self.retries_max
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
            raise UsageError(f"retries_max is {number!r}: it must be None or a whole number, at least 0")

    def delay_s(self, retry: int) -> float:
        """Returns how many seconds the given retry waits; the first one has the number 1."""
        first_s, max_s = seconds_of(self.first) or 0.0, seconds_of(self.maximum) or 0.0
        return Backoff(first_s, max_s, self.factor, self.jitter).pause_s(retry)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
