"""Log lines that peers cause. A peer must not be able to fill the disk with them, so each peer gets a few
lines for one reason in a span of time; the next line after that says how many were left out."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from metaq.protocol.handling.local_peers import source_of

INTERVAL_S = 10.0
LINES_MAX = 10
"""Lines for one peer and reason within the interval."""
REASONS_MAX = 10_000
"""Peers and reasons that are remembered; the oldest are forgotten."""


@dataclass(slots=True)
class _Lines:
    since_s: float
    count: int = 0
    left_out: int = 0


class PeerLog:
    """Counts lines by peer and reason."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic, reasons_max: int = REASONS_MAX) -> None:
        self._clock_s = clock_s
        self._reasons_max = reasons_max
        self._lines: OrderedDict[tuple[str, object], _Lines] = OrderedDict()

    def write(
        self,
        log: logging.Logger,
        level: int,
        peer: str,
        text: str,
        *arguments: object,
        reason: object = None,
        exc_info: BaseException | None = None,
    ) -> None:
        """Writes a line that this peer (`host:port`) causes, unless it caused too many for the same reason.
        Without a `reason`, the text is it."""
        if not log.isEnabledFor(level):
            return
        left_out = self._count(peer, text if reason is None else reason)
        if left_out is None:
            return
        if left_out:
            text, arguments = f"{text} (%d lines like this one were left out)", (*arguments, left_out)
        log.log(level, text, *arguments, exc_info=exc_info)

    def _count(self, peer: str, reason: object) -> int | None:
        """None if the line is one too many; otherwise, how many were left out since the last one."""
        # A peer that connects again has another port.
        key = (source_of(peer), reason)
        now_s = self._clock_s()
        lines = self._lines.get(key)
        left_out = 0
        if lines is None or now_s - lines.since_s >= INTERVAL_S:
            left_out = lines.left_out if lines is not None else 0
            self._lines.pop(key, None)
            lines = self._lines[key] = _Lines(now_s)
            if len(self._lines) > self._reasons_max:
                self._lines.popitem(last=False)
        if lines.count >= LINES_MAX:
            lines.left_out += 1
            return None
        lines.count += 1
        return left_out


peer_log = PeerLog()
"""The one of this process."""
