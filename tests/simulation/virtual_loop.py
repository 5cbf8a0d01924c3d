"""An event loop whose clock jumps to the next event: no waiting, and the same order in every run."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any


class VirtualLoop(asyncio.AbstractEventLoop):
    """The part of an event loop that tasks, futures and events need."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._ready: deque[events.Handle] = deque()
        self._timers: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0
        self.failures: list[BaseException] = []

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coroutine: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        return asyncio.Task(coroutine, loop=self, **options)

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> events.Handle:
        handle = events.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def after(self, delay_s: float, callback: Callable[..., object], *args: Any) -> None:
        """Calls the function at a later virtual time."""
        self._count += 1
        heapq.heappush(self._timers, (self._now + delay_s, self._count, callback, args))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(context.get("exception") or RuntimeError(str(context)))

    def run_until(self, end: float) -> None:
        """Runs everything that happens before a virtual time."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            self._run_until(end)
        finally:
            events._set_running_loop(before)

    def _run_until(self, end: float) -> None:
        ready, timers = self._ready, self._timers
        while True:
            while ready:
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
            if not timers or timers[0][0] > end:
                self._now = end
                return
            at, _, callback, args = heapq.heappop(timers)
            self._now = at
            callback(*args)
