"""One series of values: an hour in steps of 10 seconds and a day in steps of 5 minutes, in fixed memory.

A step without a value is a gap. Gaps are NaN in memory and None for readers. The values are 32-bit floats:
seven digits are enough for a chart.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from math import isnan, nan
from typing import Final, Literal, Self

Range = Literal["1h", "24h"]


@dataclass(frozen=True, slots=True)
class Series:
    """Past values of one figure, the oldest first, at equal steps. None is a gap."""

    start_ms: int
    step_ms: int
    values: list[float | None]


@dataclass(frozen=True, slots=True)
class Scale:
    """The steps of a range."""

    step_ms: int
    steps: int

    def slot(self, ms: int) -> int:
        return ms // self.step_ms


FINE: Final = Scale(10_000, 360)
COARSE: Final = Scale(300_000, 288)
SCALES: Final[dict[str, Scale]] = {"1h": FINE, "24h": COARSE}
_FINE_GAPS: Final = array("f", [nan]) * FINE.steps
_COARSE_GAPS: Final = array("f", [nan]) * COARSE.steps


class Ring:
    """The values of one figure."""

    __slots__ = ("_coarse", "_coarse_count", "_fine", "_keeps_peaks", "_slot", "moved_ms", "value")

    def __init__(self, *, keeps_peaks: bool) -> None:
        """With `keeps_peaks`, a step of 5 minutes has the largest value of its time, otherwise the mean."""
        self.value = nan
        """The last one that was written."""
        self.moved_ms = 0
        """When the value last changed."""
        self._keeps_peaks = keeps_peaks
        self._slot = -1
        """The fine slot that was written last."""
        self._coarse_count = 0
        """Values that the newest coarse step is made of."""
        self._fine = _FINE_GAPS[:]
        self._coarse = _COARSE_GAPS[:]

    def begun(self, value: float, slot: int, fine: array[float], coarse: array[float]) -> Self:
        """Takes over the steps of a figure that had one value up to a fine slot."""
        self.value, self._slot, self._fine, self._coarse = value, slot, fine, coarse
        first = COARSE.slot(slot * FINE.step_ms) * (COARSE.step_ms // FINE.step_ms)
        self._coarse_count = sum(not isnan(fine[step % FINE.steps]) for step in range(first, slot + 1))
        return self

    def write(self, value: float, from_ms: int, now_ms: int) -> None:
        """Writes the value into all steps after the one of `from_ms`, up to now. Steps between the last write
        and these are gaps."""
        last = FINE.slot(now_ms)
        first = min(max(FINE.slot(from_ms) + 1, self._slot, last - FINE.steps + 1), last)
        self.fill(value, range(first, last + 1))
        if value != self.value:
            self.value, self.moved_ms = value, now_ms

    def fill(self, value: float, slots: Iterable[int]) -> None:
        """Writes the value into these fine slots, which ascend. Slots before the last write are skipped: if
        the clock goes back, the values that are there stay."""
        for slot in slots:
            if slot >= self._slot:
                self._advance(slot)
                self._put(slot, value)

    def values(self, scale: Scale, now_ms: int) -> list[float | None]:
        """Returns the steps up to now, the oldest first."""
        cells = self._fine if scale is FINE else self._coarse
        last, newest = scale.slot(now_ms), scale.slot(self._slot * FINE.step_ms)
        oldest = newest - scale.steps + 1
        found: list[float | None] = []
        for slot in range(last - scale.steps + 1, last + 1):
            number = cells[slot % scale.steps] if oldest <= slot <= newest else nan
            found.append(None if isnan(number) else number)
        return found

    def recent(self, steps: int, now_ms: int) -> list[tuple[int, float]]:
        """Returns those of the newest fine steps that have values, each with its time, the oldest first."""
        last = FINE.slot(now_ms)
        found: list[tuple[int, float]] = []
        for slot in range(max(last - steps + 1, self._slot - FINE.steps + 1), min(last, self._slot) + 1):
            number = self._fine[slot % FINE.steps]
            if not isnan(number):
                found.append((slot * FINE.step_ms, number))
        return found

    def _advance(self, slot: int) -> None:
        """Makes a slot the newest one, and those that were passed over gaps."""
        if self._slot >= 0:
            for passed in range(max(self._slot + 1, slot - FINE.steps + 1), slot + 1):
                self._fine[passed % FINE.steps] = nan
            coarse, before = COARSE.slot(slot * FINE.step_ms), COARSE.slot(self._slot * FINE.step_ms)
            for passed in range(max(before + 1, coarse - COARSE.steps + 1), coarse + 1):
                self._coarse[passed % COARSE.steps] = nan
                self._coarse_count = 0
        self._slot = slot

    def _put(self, slot: int, number: float) -> None:
        before = self._fine[slot % FINE.steps]
        self._fine[slot % FINE.steps] = number
        position = COARSE.slot(slot * FINE.step_ms) % COARSE.steps
        coarse = self._coarse[position]
        if isnan(before):
            self._coarse_count += 1
        if isnan(coarse):
            self._coarse[position] = number
        elif self._keeps_peaks:
            self._coarse[position] = max(coarse, number)
        else:
            replaced = coarse if isnan(before) else before
            self._coarse[position] = coarse + (number - replaced) / self._coarse_count
