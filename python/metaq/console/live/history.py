"""Past values of the cluster's figures, in memory, within a bound.

A figure that has never changed since it was first seen has no ring: an entry in a table holds its value and
the time since when it is known, `STILL_BYTES_MAX` together. So 10,000 quiet topics cost next to nothing. The
first change makes a ring of `SERIES_BYTES_MAX` bytes, which begins with the value that it had before. There
are at most `series_max` rings. If one more is needed, the ring that has not moved for the longest time goes,
and its past with it.

With 20,000 rings and 40,000 still figures the history takes at most 20,000 × 3,072 + 40,000 × 384 bytes:
73 MiB.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Final, Literal

from metaq.console.live.rings import COARSE, FINE, SCALES, Range, Ring, Scale, Series

Kind = Literal["cluster", "broker", "topic", "group"]

SERIES_BYTES_MAX: Final = 3_072
"""Memory of one ring, with its share of the tables."""
STILL_BYTES_MAX: Final = 384
"""Memory of one figure that does not move, with its name."""
KEPT_MS: Final = 600_000
"""A ring that moved within this time is not dropped."""
SEARCH_INTERVAL_MS: Final = 5_000
PEAKS: Final = frozenset({"lag", "lag_ms", "disk"})
"""Figures whose largest value counts. The others are rates, whose mean counts."""
CLUSTER: Final = ""
"""The name of the one object of kind `cluster`."""

_Still = tuple[float, int]
"""A value and the time since when it has been known and the same."""


class _Looks:
    """The steps in which a kind of objects was looked at with success."""

    __slots__ = ("_coarse", "_fine")

    def __init__(self) -> None:
        self._fine = array("q", [-1]) * FINE.steps
        self._coarse = array("q", [-1]) * COARSE.steps

    def add(self, from_ms: int, now_ms: int) -> None:
        last = FINE.slot(now_ms)
        for slot in range(min(max(FINE.slot(from_ms) + 1, last - FINE.steps + 1), last), last + 1):
            self._fine[slot % FINE.steps] = slot
            coarse = COARSE.slot(slot * FINE.step_ms)
            self._coarse[coarse % COARSE.steps] = coarse

    def steps(self, scale: Scale, value: float, from_ms: int, until_ms: int) -> array[float]:
        """Returns the steps of a ring that had this value in every look between two moments."""
        last = scale.slot(until_ms)
        first = max(scale.slot(from_ms), last - scale.steps + 1)
        cells = self._fine if scale is FINE else self._coarse
        return array("f", [value if first <= slot <= last else nan for slot in cells])

    def recent(self, from_ms: int, steps: int, until_ms: int) -> list[int]:
        """Returns the times of the newest looks, at most this number of fine steps back."""
        last = FINE.slot(until_ms)
        slots = range(max(FINE.slot(from_ms), last - steps + 1), last + 1)
        return [slot * FINE.step_ms for slot in slots if self._fine[slot % FINE.steps] == slot]


@dataclass(slots=True)
class _Figure:
    """One figure of all objects of a kind: by the name of the object."""

    keeps_peaks: bool
    rings: dict[str, Ring] = field(default_factory=dict)
    still: dict[str, _Still] = field(default_factory=dict)


class History:
    """The past of all figures. It belongs to one event loop."""

    def __init__(self, series_max: int, now_ms: Callable[[], int]) -> None:
        self._series_max = series_max
        self._now_ms = now_ms
        self._series = 0
        self._figures: dict[tuple[str, str], _Figure] = {}
        self._looks: dict[str, _Looks] = {}
        self._stillest: list[tuple[int, tuple[str, str], str]] = []
        """Rings that may be dropped: when each moved, and where it is, the first to go last."""
        self._searched_ms = 0

    @property
    def series_count(self) -> int:
        """The rings that are in memory."""
        return self._series

    def series(self, kind: Kind, name: str, figure: str, range: Range = "1h") -> Series:
        """Returns the past of one figure up to now. An object or figure that is not known has only gaps."""
        scale, now_ms = SCALES[range], self._now_ms()
        start_ms = (scale.slot(now_ms) - scale.steps + 1) * scale.step_ms
        of_kind = self._figures.get((kind, figure))
        values: list[float | None] = [None] * scale.steps
        if of_kind is not None and (ring := of_kind.rings.get(name)) is not None:
            values = ring.values(scale, now_ms)
        elif of_kind is not None and (still := of_kind.still.get(name)) is not None:
            steps = self._looks[kind].steps(scale, *still, now_ms)
            begin = (scale.slot(now_ms) + 1) % scale.steps
            values = [None if isnan(step) else step for step in steps[begin:] + steps[:begin]]
        return Series(start_ms, scale.step_ms, values)

    def recent(self, kind: Kind, name: str, figure: str, steps: int) -> list[tuple[int, float]]:
        """Returns the times and values of the newest steps of 10 seconds, without gaps."""
        of_kind, now_ms = self._figures.get((kind, figure)), self._now_ms()
        if of_kind is None:
            return []
        if (ring := of_kind.rings.get(name)) is not None:
            return ring.recent(steps, now_ms)
        if (still := of_kind.still.get(name)) is None:
            return []
        value, since_ms = still
        return [(ms, value) for ms in self._looks[kind].recent(since_ms, steps, now_ms)]

    # Writing

    def looked(self, kind: Kind, from_ms: int, now_ms: int) -> None:
        """Notes that all objects of a kind were looked at. Their values then stand for the time between."""
        self._looks.setdefault(kind, _Looks()).add(from_ms, now_ms)

    def record(
        self, kind: Kind, name: str, values: Mapping[str, float | None], from_ms: int, now_ms: int
    ) -> None:
        """Writes the figures of one object that `looked` has just announced. None is a gap."""
        for figure, value in values.items():
            of_kind = self._of_kind(kind, figure)
            if (ring := of_kind.rings.get(name)) is not None:
                if value is not None:
                    ring.write(value, from_ms, now_ms)
                continue
            still = of_kind.still.get(name)
            if value is None:
                if still is not None:
                    del of_kind.still[name]
            elif still is None:
                of_kind.still[name] = (value, now_ms)
            elif still[0] != value:
                if not self._make_room(now_ms):
                    of_kind.still[name] = (value, now_ms)
                    continue
                del of_kind.still[name]
                ring = self._ring_of(kind, still, from_ms, keeps_peaks=of_kind.keeps_peaks)
                ring.write(value, from_ms, now_ms)
                self._add_ring(of_kind, name, ring)

    def record_alone(self, kind: Kind, name: str, values: Mapping[str, float | None], now_ms: int) -> None:
        """Writes the figures of one object that was looked at by itself. Zeros and unknown values begin no
        ring."""
        for figure, value in values.items():
            if value is None:
                continue
            of_kind = self._of_kind(kind, figure)
            ring = of_kind.rings.get(name)
            if ring is None and value != 0 and self._make_room(now_ms):
                ring = Ring(keeps_peaks=of_kind.keeps_peaks)
                self._add_ring(of_kind, name, ring)
            if ring is not None:
                ring.write(value, now_ms, now_ms)

    def keep_only(self, kind: Kind, names: Collection[str]) -> None:
        """Forgets the objects of a kind that have other names."""
        for (of, _), figure in self._figures.items():
            if of != kind:
                continue
            for gone in figure.still.keys() - names:
                del figure.still[gone]
            for gone in figure.rings.keys() - names:
                del figure.rings[gone]
                self._series -= 1

    # Inside

    def _of_kind(self, kind: Kind, figure: str) -> _Figure:
        found = self._figures.get((kind, figure))
        if found is None:
            found = self._figures[kind, figure] = _Figure(figure in PEAKS)
        return found

    def _ring_of(self, kind: Kind, still: _Still, until_ms: int, *, keeps_peaks: bool) -> Ring:
        """Returns a ring with the past of a figure that has been still."""
        (value, since_ms), looks = still, self._looks[kind]
        fine = looks.steps(FINE, value, since_ms, until_ms)
        coarse = looks.steps(COARSE, value, since_ms, until_ms)
        return Ring(keeps_peaks=keeps_peaks).begun(value, FINE.slot(until_ms), fine, coarse)

    def _add_ring(self, figure: _Figure, name: str, ring: Ring) -> None:
        figure.rings[name] = ring
        self._series += 1

    def _make_room(self, now_ms: int) -> bool:
        """Drops the ring that has not moved for the longest time if there is no room for another one. Returns
        False if all of them have moved within `KEPT_MS`: to drop one of them for another would leave no
        figure with a past."""
        if self._series < self._series_max:
            return True
        if not self._stillest and now_ms >= self._searched_ms + SEARCH_INTERVAL_MS:
            self._searched_ms = now_ms
            found = [
                (ring.moved_ms, key, name)
                for key, figure in self._figures.items()
                for name, ring in figure.rings.items()
                if ring.moved_ms <= now_ms - KEPT_MS
            ]
            found.sort(reverse=True)
            self._stillest = found
        while self._stillest:
            moved_ms, key, name = self._stillest.pop()
            ring = self._figures[key].rings.get(name)
            if ring is not None and ring.moved_ms == moved_ms:
                del self._figures[key].rings[name]
                self._series -= 1
                return True
        return False
