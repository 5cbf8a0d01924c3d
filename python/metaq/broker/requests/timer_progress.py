"""How far messages with a time of their own were delivered, for Apache slaves.

A slave collects such messages from the log only as far as its master has read them, and as master it goes on
at the moment up to which its old master has delivered. Without these answers it would deliver them all again.
"""

from __future__ import annotations

import struct
from typing import Final

from metaq._core import BrokerPlane, Clock
from metaq.protocol.bodies import TimerMetrics
from metaq.protocol.commands.offsets import GetTimerCheckPoint, GetTimerMetrics
from metaq.protocol.dispatch import Request, Response, handles

_CHECK_POINT: Final = struct.Struct(">7q")
"""Delivered up to this time, flushed timer log, read queue offset, the same of the master, then a version."""
REPEATED_MS: Final = 1_000
"""Deliveries of the last second may not be confirmed yet. A repeated one is better than a lost one."""


class TimerProgress:
    """Answers for the timers of this master."""

    def __init__(self, plane: BrokerPlane, clock: Clock) -> None:
        self._plane = plane
        self._clock = clock

    @handles(GetTimerCheckPoint)
    def get_timer_check_point(self, command: GetTimerCheckPoint, request: Request) -> Response:
        figures = self._plane.figures()
        delivered_ms = self._clock.now_ms() - figures.timers_behind_ms - REPEATED_MS
        read = figures.timers_queue_offset
        return Response(body=_CHECK_POINT.pack(delivered_ms, 0, read, read, 0, 0, 0))

    @handles(GetTimerMetrics)
    def get_timer_metrics(self, command: GetTimerMetrics, request: Request) -> Response:
        """Counts nothing: the numbers are for people who look at the slave."""
        return Response(body=TimerMetrics().encode())
