"""The clock of the master switch: it never jumps, and it counts while the machine sleeps."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress


class BootClock:
    """CLOCK_BOOTTIME; implements `metaq.ha.node.Clock`."""

    def now(self) -> float:
        """Returns the seconds since the machine was started."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def wait(self, event: asyncio.Event, until: float) -> None:
        """Returns when the event is set or the time has come."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(until - self.now(), 0)):
                await event.wait()
