"""A simulated disk: what was synced survives a power loss, what was only written may not."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from metaq.ha.conducting.node_files import NodeRecord
from metaq.ha.view import StateVersion

SEGMENT = 8
"""Records per file of the log."""

ZERO = 0
"""An empty place in a file of the log."""


@dataclass
class Disk:
    """The log of a node and its small file. A record is a positive number; a damaged one is negative."""

    places: list[int] = field(default_factory=list)
    """The log's files, with whatever stands behind the end of the log."""
    log_start: int = 0
    end: int = 0
    """The end of the log as the running process knows it."""
    synced: int = 0
    """Everything below survives a power loss."""
    mark: int = 0
    """An end that is known to be flushed; it survives a kill."""
    mark_synced: int = 0
    """An older mark, which survives a power loss."""
    node_file: bytes | None = None
    state: tuple[StateVersion, ...] = ()
    """The entries of the journal, all of them synced."""
    state_mark: StateVersion = (0, 0)
    """The newest entry that the journal is known to have had."""
    boot: int = 1
    hangs: bool = False
    is_full: bool = False
    """It takes no records, but still the file that a node must not lose."""
    has_room: bool = True
    """For the file that a node must not lose."""
    fails: bool = False
    slowness: float = 1.0
    stopped_cleanly: bool = False
    rotten: bool = False
    """Damage came while the store was open, so that recovery reads on behind it."""

    @property
    def state_version(self) -> StateVersion:
        """The newest entry of the journal."""
        return self.state[-1] if self.state else (0, 0)

    def append(self, records: list[int]) -> None:
        """Writes records at the end of the log, over whatever stands there."""
        end = self.end + len(records)
        self.places[self.end : end] = records
        self.end = end

    def record(self, place: int) -> int:
        return self.places[place]

    def log(self) -> list[int]:
        """Returns the records up to the end of the log."""
        return self.places[self.log_start : self.end]

    def sync(self, end: int) -> None:
        """Makes everything below an end survive a power loss."""
        self.synced = max(self.synced, end)

    def note_flushed(self, end: int) -> None:
        self.mark = max(self.mark, end)

    def cut_step(self, end: int) -> bool:
        """Does one step of a truncation: empties the rest of a file, then deletes later files in turn.

        Returns whether another step is left.
        """
        rest = (end // SEGMENT + 1) * SEGMENT
        first_file = self.places[end:rest]
        if any(first_file):
            self.places[end:rest] = [ZERO] * len(first_file)
            return True
        for start in range(rest, len(self.places), SEGMENT):
            if any(self.places[start : start + SEGMENT]):
                stop = min(start + SEGMENT, len(self.places))
                self.places[start:stop] = [ZERO] * (stop - start)
                return True
        del self.places[end:]
        self._cut_marks(end)
        return False

    def _cut_marks(self, end: int) -> None:
        self.end = min(self.end, end)
        self.synced = min(self.synced, end)
        self.mark = min(self.mark, end)
        self.mark_synced = min(self.mark_synced, end)

    def start_over(self, log_start: int) -> None:
        self.places = [ZERO] * log_start
        self.log_start = self.end = log_start
        self.synced = self.mark = self.mark_synced = log_start

    def recover(self) -> None:
        """Finds the end of the log, as a starting process does, and syncs what it found."""
        end = self.log_start
        while end < len(self.places) and (
            self.places[end] > ZERO or (self.rotten and any(place > ZERO for place in self.places[end + 1 :]))
        ):
            end += 1
        self.end = end

    def lose_power(self, rng: random.Random) -> None:
        """Forgets what was not synced, except for some that happened to be written."""
        written = rng.randint(self.synced, max(self.synced, self.end))
        lost = max(self.end - written, 0)
        self.places[written : self.end] = [ZERO] * lost
        self.end = min(self.end, written)
        self.mark = min(self.mark, self.mark_synced)
        self.boot += 1

    def wipe(self) -> None:
        boot = self.boot
        self.__init__()  # type: ignore[misc]
        self.boot = boot

    def flip_bit(self, rng: random.Random) -> bool:
        """Damages a record that was synced. Returns whether there was one."""
        if self.mark_synced <= self.log_start:
            return False
        place = rng.randrange(self.log_start, self.mark_synced)
        self.places[place] = -abs(self.places[place])
        return True

    def rot(self, rng: random.Random, start: int = 0) -> int | None:
        """Damages a record of an open store, of which nobody hears. Returns its place if there was one."""
        start = max(start, self.log_start)
        if self.mark_synced <= start + 1:
            return None
        place = rng.randrange(start, self.mark_synced - 1)
        self.places[place] = -abs(self.places[place])
        self.rotten = True
        return place

    def forget_state(self, rng: random.Random) -> None:
        """Brings an older journal back, or an empty one. The mark beside it stays."""
        self.state = self.state[: rng.randrange(len(self.state))] if self.state else ()

    def lose_state(self) -> None:
        """Loses the journal and its mark, and the node's file is of a time before the first change."""
        self.state, self.state_mark = (), (0, 0)
        if self.node_file is not None:
            self.node_file = NodeRecord.decode(self.node_file).change(state_version=(0, 0)).encode()

    def damaged(self) -> list[int]:
        """Returns the places of damaged records."""
        return [place for place in range(self.log_start, self.end) if self.places[place] < ZERO]
