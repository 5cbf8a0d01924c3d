"""Threads for handlers that are no coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any, Final

_STOP: Final = None


class DaemonThreads:
    """Runs calls in threads that do not keep a process alive.

    Those of `concurrent.futures` are waited for when the interpreter ends, so that a handler which never
    returns would hold up a shutdown beyond its deadline.
    """

    def __init__(self, count: int, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._count = count
        self._name = name
        self._started = 0
        self._idle = threading.Semaphore(0)

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function returns or raises."""
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()  # The handler's span is the current one in its thread too.
        future: asyncio.Future[Any] = loop.create_future()

        def call() -> None:
            try:
                result = context.run(function, *arguments)
            except BaseException as error:
                tell(_fail, error)
            else:
                tell(_succeed, result)

        def tell(how: Callable[[asyncio.Future[Any], Any], None], outcome: Any) -> None:
            with contextlib.suppress(RuntimeError):  # The loop has ended: nobody waits any more.
                loop.call_soon_threadsafe(how, future, outcome)

        if not self._idle.acquire(blocking=False) and self._started < self._count:
            self._started += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()
        self._calls.put(call)
        return await future

    def stop(self) -> None:
        """Threads end after what they are at."""
        for _ in range(self._started):
            self._calls.put(_STOP)

    def _work(self) -> None:
        while (call := self._calls.get()) is not _STOP:
            call()
            self._idle.release()


def in_thread(
    function: Callable[[asyncio.AbstractEventLoop], None], loop: asyncio.AbstractEventLoop, *, name: str
) -> asyncio.Future[None]:
    """Runs it in a thread of its own that does not keep a process alive; done when it has ended."""
    ended: asyncio.Future[None] = loop.create_future()

    def run() -> None:
        try:
            function(loop)
        finally:
            with contextlib.suppress(RuntimeError):  # The loop has ended: nobody waits any more.
                loop.call_soon_threadsafe(_succeed, ended, None)

    threading.Thread(target=run, name=name, daemon=True).start()
    return ended


def _succeed(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if future.done():
        return
    future.set_exception(as_exception(error))


def as_exception(error: BaseException) -> Exception:
    """What a handler raised, as something that fails its message and nothing else."""
    if isinstance(error, StopIteration):  # A future does not take it.
        return RuntimeError("the handler raised StopIteration")
    if not isinstance(error, Exception):
        return RuntimeError(f"the handler ended with {type(error).__name__}: {error}")
    return error
