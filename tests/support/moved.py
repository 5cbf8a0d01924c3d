"""`metaq` as a process whose clock a test moves: `python -m tests.support.moved broker …`.

A file says how far the clock is ahead. Every process of a cluster watches it, and a restarted one reads it
again. Beside it each process notes how far it and its housekeeping have followed. The
command itself has no such option: this module replaces its clock before it starts.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

HAND = "METAQ_TEST_CLOCK"
LOOK_INTERVAL_S = 0.005
FOLLOW_TIMEOUT_S = 60
HOUSEKEEPING_INTERVAL_S = 0.1
STEP_MS = 4_000
"""Less than the broker takes for a clock that was set."""


class MovedClock:
    """The test's side: moves the clock of every process that was started with it."""

    def __init__(self, hand: Path) -> None:
        self._hand = hand
        self._ahead_ms = 0
        _write(hand, str(self._ahead_ms))

    @property
    def environment(self) -> dict[str, str]:
        return {HAND: str(self._hand)}

    def now_ms(self) -> int:
        return int(time.time() * 1000) + self._ahead_ms

    def jump(self, by_ms: int) -> None:
        """Sets the clock: messages become due, but no client counts as silent for that time.

        Returns when every running process has seen it: messages sent from then on are stored after the
        jump.
        """
        self._ahead_ms += by_ms
        _write(self._hand, str(self._ahead_ms))
        self._wait_for(Followed.seen_ms)

    def pass_by(self, by_ms: int) -> None:
        """Lets time pass faster: leases end, and silent clients expire."""
        while by_ms > 0:
            step_ms = min(by_ms, STEP_MS)
            by_ms -= step_ms
            self.jump(step_ms)
            # Two steps between two rounds of housekeeping would count as one jump.
            self._wait_for(Followed.kept_ms)

    def _wait_for(self, part: Callable[[str], int]) -> None:
        deadline = time.monotonic() + FOLLOW_TIMEOUT_S
        while behind := [note.name for note in self._notes() if not self._has_followed(note, part)]:
            assert time.monotonic() < deadline, f"the clock was moved and these did not see it: {behind}"
            time.sleep(LOOK_INTERVAL_S)

    def _notes(self) -> list[Path]:
        return [note for note in self._hand.parent.glob(f"{self._hand.name}.*") if note.suffix[1:].isdigit()]

    def _has_followed(self, note: Path, part: Callable[[str], int]) -> bool:
        text = note.read_text()
        return part(text) == self._ahead_ms or Followed.started(text) != _started(note.suffix[1:])


class Followed:
    """A process's side: notes beside the hand, under its process id, how far it has followed."""

    def __init__(self, hand: Path, ahead_ms: int) -> None:
        self._note = hand.with_name(f"{hand.name}.{os.getpid()}")
        self._lock = threading.Lock()
        self._told: list[int] = []
        self._started = _started(str(os.getpid()))
        self.tell(ahead_ms, ahead_ms)

    @staticmethod
    def seen_ms(note: str) -> int:
        return int(note.split()[0])

    @staticmethod
    def kept_ms(note: str) -> int:
        return int(note.split()[1])

    @staticmethod
    def started(note: str) -> str:
        return note.split()[2]

    def tell(self, seen_ms: int | None = None, kept_ms: int | None = None) -> None:
        with self._lock:
            before = self._told or [0, 0]
            told = [before[0] if seen_ms is None else seen_ms, before[1] if kept_ms is None else kept_ms]
            if told != self._told:
                self._told = told
                _write(self._note, f"{told[0]} {told[1]} {self._started}")


def _write(path: Path, text: str) -> None:
    fresh = path.with_name(f"{path.name}-{os.getpid()}.new")
    fresh.write_text(text)
    fresh.replace(path)


def _started(pid: str) -> str | None:
    """Returns when the process started; None if it has ended. Another process may get its id later."""
    try:
        fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Fields 3 and 22 of proc(5). A zombie has ended.
    return None if fields[0] == "Z" else fields[19]


def main() -> None:
    """Runs the command with another clock and more frequent housekeeping."""
    import metaq.serve
    from metaq._core import Clock
    from metaq.broker.background import housekeeping
    from metaq.cli import main as command

    hand = Path(os.environ[HAND])
    ahead_ms = int(hand.read_text())
    clock, followed = Clock.ahead(ahead_ms), Followed(hand, ahead_ms)
    look = housekeeping.Housekeeping.look

    def follow() -> None:
        nonlocal ahead_ms
        while True:
            time.sleep(LOOK_INTERVAL_S)
            shown_ms = int(hand.read_text())
            clock.advance_ms(shown_ms - ahead_ms)
            ahead_ms = shown_ms
            followed.tell(seen_ms=shown_ms)

    async def look_and_tell(master: housekeeping.Housekeeping) -> None:
        seen_ms = ahead_ms
        await look(master)
        followed.tell(kept_ms=seen_ms)

    threading.Thread(target=follow, daemon=True).start()
    metaq.serve.Clock = lambda: clock  # type: ignore[assignment, misc]
    housekeeping.INTERVAL_S = HOUSEKEEPING_INTERVAL_S
    housekeeping.Housekeeping.look = look_and_tell  # type: ignore[method-assign]
    command()


if __name__ == "__main__":
    main()
