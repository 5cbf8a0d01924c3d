"""Which epoch wrote which part of a log, and where two logs part.

A log's history is a list of epochs with the physical offset at which each began. Each epoch has one master.
So two logs that hold bytes of the same epoch, begun at the same place, agree up to its shorter end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

EPOCHS_MAX = 100_000


class HistoryInvalid(ValueError):
    """A list of epochs is not in order."""


@dataclass(frozen=True, slots=True)
class EpochStart:
    """An epoch and the physical offset at which its master began to write."""

    epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class History:
    """The epochs of a log, oldest first. Epochs rise strictly, and so do their starts."""

    starts: tuple[EpochStart, ...] = ()

    @staticmethod
    def of(pairs: Iterable[tuple[int, int]]) -> History:
        """Builds a history from (epoch, start) pairs. Raises HistoryInvalid."""
        starts: list[EpochStart] = []
        for epoch, start in pairs:
            if len(starts) == EPOCHS_MAX:
                raise HistoryInvalid(f"a list of epochs has more than {EPOCHS_MAX} entries")
            if epoch < 1 or start < 0:
                raise HistoryInvalid(f"epoch {epoch} at {start} is out of range")
            if starts and (epoch <= starts[-1].epoch or start <= starts[-1].start):
                raise HistoryInvalid(
                    f"epoch {epoch} at {start} does not follow epoch {starts[-1].epoch} at {starts[-1].start}"
                )
            starts.append(EpochStart(epoch, start))
        return History(tuple(starts))

    def pairs(self) -> list[tuple[int, int]]:
        """Returns the (epoch, start) pairs, oldest first."""
        return [(entry.epoch, entry.start) for entry in self.starts]

    def __iter__(self) -> Iterator[EpochStart]:
        return iter(self.starts)

    @property
    def last_epoch(self) -> int:
        """The newest epoch, 0 if there is none."""
        return self.starts[-1].epoch if self.starts else 0

    def begin(self, epoch: int, start: int) -> History:
        """Adds an epoch, and drops one that wrote nothing. Raises HistoryInvalid for an older epoch."""
        if epoch <= self.last_epoch:
            raise HistoryInvalid(f"epoch {epoch} cannot follow epoch {self.last_epoch}")
        return History((*self.truncate(start).starts, EpochStart(epoch, start)))

    def truncate(self, end: int) -> History:
        """Drops every epoch that has no byte below `end`."""
        kept = len(self.starts)
        while kept and self.starts[kept - 1].start >= end:
            kept -= 1
        return self if kept == len(self.starts) else History(self.starts[:kept])

    def log_epoch(self, end: int) -> int:
        """Returns the epoch of the last byte of a log that ends at `end`, 0 if that is unknown."""
        return self.truncate(end).last_epoch

    def continue_with(self, other: History, common_end: int) -> History:
        """Returns this history up to `common_end`, continued with the epochs of the log that it copies from.

        Some of them may start beyond what was copied so far; `truncate` drops those.
        """
        mine = self.truncate(common_end)
        return History((*mine.starts, *(entry for entry in other.starts if entry.epoch > mine.last_epoch)))


def common_end(mine: History, my_end: int, theirs: History, their_end: int) -> int:
    """Returns the physical offset up to which two logs agree, by comparing their epochs from the newest back.

    The newest epoch that both have, with the same start, ends where the shorter of the two ends (KIP-279).
    Epochs without bytes say nothing and are skipped.
    """
    mine, theirs = mine.truncate(my_end), theirs.truncate(their_end)
    their_ends = {
        (entry.epoch, entry.start): end for entry, end in zip(theirs, _ends(theirs, their_end), strict=True)
    }
    for entry, end in reversed(list(zip(mine, _ends(mine, my_end), strict=True))):
        their_epoch_end = their_ends.get((entry.epoch, entry.start))
        if their_epoch_end is not None:
            return min(end, their_epoch_end)
    return 0


def _ends(history: History, end: int) -> list[int]:
    """The end of each epoch: the start of the next one, or the end of the log."""
    return [*(entry.start for entry in history.starts[1:]), end][: len(history.starts)]
