"""Counts what a function does, and logs its failures now and then."""

from __future__ import annotations

import logging
import time

from metaq._core import FilterBatch

_log = logging.getLogger(__name__)

TELL_INTERVAL_S = 10.0
LINE_CHARACTERS_MAX = 300


class Tally:
    """Sums since the start. Failures are logged one line at a time, with the number of lines left out."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._told: dict[str, tuple[float, int]] = {}
        self.messages = 0
        self.wanted = 0
        self.failures = 0
        self.workers_lost = 0

    def looked_at(self, messages: int, wanted: int) -> None:
        self.messages += messages
        self.wanted += wanted

    def failed(self, error: str, count: int, batch: FilterBatch) -> None:
        self.failures += count
        self._tell("failed", f"failed for {count} messages, which are delivered: {error}", batch)

    def lost(self, error: str, batch: FilterBatch) -> None:
        self.failures += 1
        self.workers_lost += 1
        self._tell("lost", f"lost its worker over a message, which is delivered: {error}", batch)

    def printed(self, output: bytes) -> None:
        line = output.decode("utf-8", "replace").strip().partition("\n")[0]
        shown = "".join(c if c.isprintable() else " " for c in line[:LINE_CHARACTERS_MAX])
        self._tell("printed", f"printed: {shown}", None)

    def _tell(self, kind: str, what: str, batch: FilterBatch | None) -> None:
        now = time.monotonic()
        since, untold = self._told.get(kind, (now - TELL_INTERVAL_S, 0))
        if now - since < TELL_INTERVAL_S:
            self._told[kind] = (since, untold + 1)
            return
        self._told[kind] = (now, 0)
        where = f" (topic {batch.topic}, group {batch.group})" if batch is not None else ""
        more = f"; {untold} more since the last such line" if untold else ""
        _log.warning("filter function %s%s %s%s", self._function, where, what, more)
