"""`metaq` as a process whose clock a test moves: `python -m tests.support.moved broker …`.

How far the clock is ahead stands in a file, which every process of a cluster watches and a restarted one
reads again. The command itself has no such option: here its clock is exchanged before it starts.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

HAND = "METAQ_TEST_CLOCK"
LOOK_INTERVAL_S = 0.005
SETTLE_S = 0.05
"""After so long every process has seen that the hand moved."""
HOUSEKEEPING_INTERVAL_S = 0.1
STEP_MS = 4_000
"""Below what a broker takes for a clock that was set rather than for time that passed."""


class MovedClock:
    """The test's end: moves the clock of every process that was started with it."""

    def __init__(self, hand: Path) -> None:
        self._hand = hand
        self._ahead_ms = 0
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        return {HAND: str(self._hand)}

    def now_ms(self) -> int:
        return int(time.time() * 1000) + self._ahead_ms

    def jump(self, by_ms: int) -> None:
        """The clock is set: what waits for a time becomes due, but nobody was silent for so long."""
        self._ahead_ms += by_ms
        self._write()
        time.sleep(SETTLE_S)

    def pass_by(self, by_ms: int) -> None:
        """Time passes, only faster: leases end and who was not heard is forgotten."""
        while by_ms > 0:
            step_ms = min(by_ms, STEP_MS)
            by_ms -= step_ms
            self.jump(step_ms)
            time.sleep(HOUSEKEEPING_INTERVAL_S)

    def _write(self) -> None:
        fresh = self._hand.with_suffix(".new")
        fresh.write_text(str(self._ahead_ms))
        fresh.replace(self._hand)


def main() -> None:
    """The command with its clock exchanged and its housekeeping done more often."""
    import metaq.broker.broker
    import metaq.serve
    from metaq._core import Clock
    from metaq.cli import main as command

    hand = Path(os.environ[HAND])
    seen_ms = int(hand.read_text())
    clock = Clock.ahead(seen_ms)

    def follow(seen_ms: int) -> None:
        while True:
            time.sleep(LOOK_INTERVAL_S)
            ahead_ms = int(hand.read_text())
            clock.advance_ms(ahead_ms - seen_ms)
            seen_ms = ahead_ms

    threading.Thread(target=follow, args=(seen_ms,), daemon=True).start()
    metaq.serve.Clock = lambda: clock  # type: ignore[assignment, misc]
    metaq.broker.broker.HOUSEKEEPING_INTERVAL_S = HOUSEKEEPING_INTERVAL_S
    command()


if __name__ == "__main__":
    main()
