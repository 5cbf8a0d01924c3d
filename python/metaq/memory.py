"""Gives memory that a server has freed back to the system.

The data plane bounds what clients make a listener hold (`crates/server/src/net/memory.rs`). Its allocator
gives what was freed back by itself, from a thread of its own. Python uses the allocator of the system, which
keeps what is freed after a peak for the next one: without a trim, a broker stays as large as it ever was. A
trim stops only threads that use the same allocator, so it costs the data plane nothing.
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

from metaq._core import Listener, give_back_freed_memory

_log = logging.getLogger(__name__)

TRIM_BYTES: Final = 32 * 1024 * 1024
"""The allocator may keep this much. Less is not worth the system calls."""
WORTH_BYTES: Final = 4 * 1024 * 1024
"""A trim that gives less back is not repeated soon."""
LOOKS_MAX: Final = 4
"""After this many looks a trim is tried in any case, if the process has grown. With the default interval,
freed memory goes back within a minute, however often a trim was in vain while it was in use."""
ARENA_TOP_BYTES_MAX: Final = 2 * 1024 * 1024
OWN_PAGES_BYTES_MIN: Final = 4 * 1024 * 1024
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


class MemoryTrim:
    """Looks at an interval whether the process has much more memory than its clients use, and trims it if so.

    It compares with the memory after the last trim, and with the least that the process ever had: what was in
    use at the last trim may be free by now. If a trim gives little back, the next one waits twice as long, up
    to `LOOKS_MAX` looks.
    """

    def __init__(
        self,
        listener: Listener,
        interval_s: float,
        freed_memory_ms: int = 1_000,
        *,
        own_bytes: Callable[[], int] | None = None,
        trim: Callable[[], object] | None = None,
    ) -> None:
        """With an interval of 0 it never trims. The data plane gives memory back that was not used for
        `freed_memory_ms`. Tests replace the two functions."""
        self._listener = listener
        self._freed_memory_ms = freed_memory_ms
        self._interval_s = interval_s
        self._own_bytes = own_bytes or own_memory_bytes
        self._trim = trim or allocator_trim()
        self._floor = self._least = self._own_bytes()
        self._looks = 0
        """Since the last trim."""
        self._looks_wanted = 1
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Safe to call again."""
        give_back_freed_memory(self._freed_memory_ms)
        if self._task is None and self._trim is not None and self._interval_s > 0:
            bound_allocator()
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
        self._floor, self._least = min(self._floor, own), min(self._least, own)
        unused = own - self._listener.figures().memory_bytes - TRIM_BYTES
        has_grown = unused >= self._floor
        self._looks += 1
        may_repeat = unused >= self._least and self._looks >= self._looks_wanted
        if self._trim is None or not (has_grown or may_repeat):
            return False
        # In a thread: it takes a while for each gigabyte, and the event loop goes on.
        await asyncio.to_thread(self._trim)
        self._floor = self._own_bytes()
        self._looks = 0
        is_worth_it = has_grown or own - self._floor >= WORTH_BYTES
        self._looks_wanted = 1 if is_worth_it else min(2 * self._looks_wanted, LOOKS_MAX)
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


def bound_allocator() -> bool:
    """Makes the GNU allocator keep little at the end of each arena, and map large blocks for themselves.

    Once a block of 16 MiB was freed, it would keep up to 32 MiB at the end of the arena of each thread, where
    no trim reaches it. Returns False if there is another allocator.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    options = {_M_TRIM_THRESHOLD: ARENA_TOP_BYTES_MAX, _M_MMAP_THRESHOLD: OWN_PAGES_BYTES_MIN}
    return all(set_option(option, value) == 1 for option, value in options.items())


def allocator_trim() -> Callable[[], object] | None:
    """Returns the allocator's function that gives free memory back; None if it has none, as on musl."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return lambda: trim(0)
