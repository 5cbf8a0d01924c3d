"""A page that is made once for all who wait for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedPage(Generic[T]):
    """Makes one page at a time, and rests after each for as long as it took.

    So however many ask, and however often, at most half of the time goes into pages. Everybody gets a page
    that was begun after they asked.
    """

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._turn = asyncio.Lock()
        self._rests_until_s = 0.0
        self._coming: asyncio.Task[T] | None = None
        """The next page, which is not begun yet."""
        self._tasks: set[asyncio.Task[T]] = set()

    async def next(self) -> T:
        """Returns the next page. The others get it also if this one leaves before."""
        if self._coming is None:
            self._coming = asyncio.create_task(self._make_next())
            self._tasks.add(self._coming)
            self._coming.add_done_callback(self._tasks.discard)
        return await asyncio.shield(self._coming)

    def stop(self) -> None:
        """Makes nothing more."""
        for task in list(self._tasks):
            task.cancel()

    async def _make_next(self) -> T:
        async with self._turn:
            await asyncio.sleep(max(self._rests_until_s - time.monotonic(), 0.0))
            self._coming = None
            began_s = time.monotonic()
            try:
                return await self._make()
            finally:
                ended_s = time.monotonic()
                self._rests_until_s = ended_s + (ended_s - began_s)
