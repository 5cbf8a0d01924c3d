"""Samples the memory and files of processes, and decides whether they have grown."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.process_figures import memory_bytes

_MB = 1e6
_PARTS = 5
"""Parts of a run: the first is ignored, the medians of the second and of the last are compared."""
SAMPLES_MIN = 10


@dataclass(frozen=True)
class Bounds:
    """The growth that is allowed between the beginning and the end of a run."""

    own_bytes: float = 32e6
    """Allowed growth of anonymous memory; allocators keep some of the memory that is freed."""
    descriptors: int = 16


@dataclass(frozen=True)
class Sample:
    at: float
    own_bytes: int
    descriptors: int


@dataclass
class Watched:
    """One process and its samples."""

    name: str
    pid: int
    store: Path | None = None
    """Any number of files in this folder may be open, but no deleted ones."""
    samples: list[Sample] = field(default_factory=list)

    def look(self) -> None:
        own_bytes = memory_bytes(self.pid)["own"]
        self.samples.append(Sample(time.monotonic(), own_bytes, open_descriptors(self.pid, self.store)))

    def verdict(self, bounds: Bounds) -> Verdict:
        count = len(self.samples)
        if count < SAMPLES_MIN:
            raise ValueError(f"{self.name}: {count} samples say nothing about growth")
        early = self.samples[count // _PARTS : 2 * count // _PARTS]
        late = self.samples[-(count // _PARTS) :]
        return Verdict(
            name=self.name,
            own_bytes=statistics.median(sample.own_bytes for sample in late),
            own_growth_bytes=statistics.median(sample.own_bytes for sample in late)
            - statistics.median(sample.own_bytes for sample in early),
            descriptors=statistics.median(sample.descriptors for sample in late),
            descriptors_growth=statistics.median(sample.descriptors for sample in late)
            - statistics.median(sample.descriptors for sample in early),
            bounds=bounds,
        )


def open_descriptors(pid: int, store: Path | None) -> int:
    """Counts the open descriptors, except those of files that are in the store now."""
    count = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = descriptor.readlink()
        except FileNotFoundError:
            continue  # Closed since.
        # A deleted file still has a name in /proc, but no file has it.
        count += not (store is not None and target.is_relative_to(store) and target.exists())
    return count


@dataclass(frozen=True)
class Verdict:
    """The resources of a process at the end, and their growth."""

    name: str
    own_bytes: float
    own_growth_bytes: float
    descriptors: float
    descriptors_growth: float
    bounds: Bounds

    @property
    def is_flat(self) -> bool:
        return (
            self.own_growth_bytes <= self.bounds.own_bytes
            and self.descriptors_growth <= self.bounds.descriptors
        )

    def line(self) -> str:
        return (
            f"{self.name:<10} own memory {self.own_bytes / _MB:8.1f} MB "
            f"({self.own_growth_bytes / _MB:+.1f}), "
            f"descriptors {self.descriptors:4.0f} ({self.descriptors_growth:+.0f}): "
            f"{'flat' if self.is_flat else 'GROWS'}"
        )

    def figures(self) -> dict[str, float | bool]:
        return {
            "own_bytes": self.own_bytes,
            "own_growth_bytes": self.own_growth_bytes,
            "descriptors": self.descriptors,
            "descriptors_growth": self.descriptors_growth,
            "flat": self.is_flat,
        }
