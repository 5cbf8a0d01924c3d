"""The spans of a histogram of due times."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from metaq.admin.waiting.results import DueBucket

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS
STEPS_MS: Final = (
    *(minutes * _MINUTE_MS for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * _HOUR_MS for hours in (1, 2, 3, 6, 12)),
    *(days * _DAY_MS for days in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)),
)
"""Spans that people read easily. Brokers count by minutes."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of equal length, one after the other."""

    from_ms: int
    step_ms: int
    count: int

    @classmethod
    def covering(cls, first_ms: int, last_ms: int, count_max: int) -> Spans:
        """Returns the shortest spans that reach from the first time to the last one."""
        for step_ms in STEPS_MS:
            begin, end = first_ms // step_ms, last_ms // step_ms
            if end - begin < count_max:
                return cls(begin * step_ms, step_ms, end - begin + 1)
        step_ms = STEPS_MS[-1]
        return cls(first_ms // step_ms * step_ms, step_ms, count_max)

    def buckets(self, counts: list[list[int]]) -> tuple[DueBucket, ...]:
        """Adds up the counts of brokers."""
        edges = [self.from_ms + place * self.step_ms for place in range(self.count + 1)]
        totals = [
            sum(broker[place] for broker in counts if place < len(broker)) for place in range(self.count)
        ]
        return tuple(
            DueBucket(begin, end, total) for (begin, end), total in zip(pairwise(edges), totals, strict=True)
        )
