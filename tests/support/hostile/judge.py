"""Watches the memory of a broker beside its healthy client, and judges one attack after the other."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from bench.process_figures import memory_bytes
from tests.support.hostile.healthy import Window

MIB = 1024 * 1024
_SAMPLE_EVERY_S = 0.02


@dataclass
class MemoryWatch:
    """Samples the anonymous memory of a process, and keeps the peak since it was last asked."""

    pid: int
    peak: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> MemoryWatch:
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def now(self) -> int:
        return memory_bytes(self.pid)["own"]

    def take_peak(self) -> int:
        peak, self.peak = max(self.peak, self.now()), 0
        return peak

    def falls_below(self, wanted: int, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while self.now() >= wanted:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def _watch(self) -> None:
        while not self._ended.wait(_SAMPLE_EVERY_S):
            # A process that has ended has no memory.
            with suppress(OSError, KeyError):
                self.peak = max(self.peak, self.now())


@dataclass(frozen=True)
class Row:
    """One period: the experience of the healthy client, and the memory of the broker."""

    name: str
    window: Window
    before: int
    peak: int
    after: int

    def cells(self) -> list[str]:
        worst = max(
            ((timing.worst_s(), kind) for kind, timing in self.window.timings.items()), default=(0.0, "")
        )
        return [
            self.name,
            f"{worst[0] * 1000:.0f}",
            worst[1],
            *(f"{size / MIB:.0f}" for size in (self.before, self.peak, self.after)),
            str(self.window.failure_count),
        ]


HEADINGS = ["attack", "worst ms", "of", "MiB before", "during", "after", "failures"]


def table(rows: list[Row]) -> str:
    return "\n".join(aligned([HEADINGS, *(row.cells() for row in rows)]))


def aligned(cells: list[list[str]]) -> list[str]:
    """Lines with columns of one width; the first column is on the left."""
    widths = [max(len(row[place]) for row in cells) for place in range(len(cells[0]))]
    return [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
