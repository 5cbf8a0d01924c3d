"""Gives memory that a server has freed back to the system.

The data plane bounds what clients make a listener hold (`crates/server/src/net/memory.rs`). The allocator
keeps what is freed after a peak for the next one: without this, a broker stays as large as it ever was.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from metaq._core import Listener

_log = logging.getLogger(__name__)

TRIM_BYTES: Final = 32 * 1024 * 1024
"""The allocator may keep this much. Less is not worth the system calls."""


class MemoryTrim:
    """Looks at an interval whether the process has much more memory than after the last trim, and than its
    clients use, and trims it once if so."""

    def __init__(
        self,
        listener: Listener,
        interval_s: float,
        *,
        own_bytes: Callable[[], int] | None = None,
        trim: Callable[[], object] | None = None,
    ) -> None:
        """With an interval of 0 it does nothing. Tests replace the two functions."""
        self._listener = listener
        self._interval_s = interval_s
        self._own_bytes = own_bytes or own_memory_bytes
        self._trim = trim or allocator_trim()
        self._floor = self._own_bytes()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Safe to call again."""
        if self._task is None and self._trim is not None and self._interval_s > 0:
            self._task = asyncio.create_task(self._run(), name="give memory back")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def look(self) -> bool:
        """Trims if it is worth it, and returns whether it did."""
        own = self._own_bytes()
        self._floor = min(self._floor, own)
        in_use = self._listener.figures().memory_bytes
        if self._trim is None or own - self._floor - in_use < TRIM_BYTES:
            return False
        # In a thread: it takes a while for each gigabyte, and the event loop goes on.
        await asyncio.to_thread(self._trim)
        self._floor = self._own_bytes()
        _log.debug("gave %d bytes back to the system", own - self._floor)
        return True

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.look()
            except OSError:
                _log.exception("the memory of this process cannot be read")
                return


def own_memory_bytes() -> int:
    """Returns the resident memory of this process, without the pages of mapped files."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def allocator_trim() -> Callable[[], object] | None:
    """Returns the allocator's function that gives free memory back; None if it has none, as on musl."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return lambda: trim(0)
