"""Threads that run plain handlers, and the one place where a user's handler is called."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final

from metaq.client.consumer.handler_signature import is_coroutine_function

_STOP: Final = None
REPLACED_FACTOR: Final = 4
"""Calls that nobody waits for any more keep their threads. At most this many times as many threads exist."""


class DaemonThreads:
    """Runs calls in threads that do not keep a process alive.

    The interpreter waits for the threads of `concurrent.futures` when it exits. A handler that never returns
    would then hold up a shutdown beyond its deadline.
    """

    def __init__(self, count: int, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._count = count
        self._count_max = count * REPLACED_FACTOR
        self._name = name
        self._started = 0
        self._idle = threading.Semaphore(0)

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls the function in a thread and returns or raises its outcome."""
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()  # The handler's span is also current in its thread.
        future: asyncio.Future[Any] = loop.create_future()

        def call() -> None:
            if future.cancelled():  # Nobody waits for it any more, and it has not begun.
                return
            try:
                result = context.run(function, *arguments)
            except BaseException as error:
                finish(_fail, error)
            else:
                finish(_succeed, result)

        def finish(how: Callable[[asyncio.Future[Any], Any], None], outcome: Any) -> None:
            with contextlib.suppress(RuntimeError):  # The loop has ended, so nobody waits on it.
                loop.call_soon_threadsafe(how, future, outcome)

        if not self._idle.acquire(blocking=False) and self._started < self._count:
            self._started += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()
        self._calls.put(call)
        try:
            return await future
        except asyncio.CancelledError:
            # The call goes on in its thread, which cannot be stopped: another one may take its place.
            self._count = min(self._count + 1, self._count_max)
            raise

    def stop(self) -> None:
        """Ends each thread after its current call."""
        for _ in range(self._started):
            self._calls.put(_STOP)

    def _work(self) -> None:
        while (call := self._calls.get()) is not _STOP:
            call()
            self._idle.release()


class HandlerCaller:
    """Calls a handler: a coroutine function in the worker's task, a plain function in a thread.

    A plain function never runs on the event loop, which a slow one would block.
    """

    def __init__(self, handler: Callable[[Any], Awaitable[object] | object], group: str) -> None:
        self._handler = handler
        self.is_plain = not is_coroutine_function(handler)
        # For local retries and for messages that a broker asks to be tried.
        self._threads = DaemonThreads(2, f"metaq {group}") if self.is_plain else None

    async def call(self, argument: Any) -> None:
        """Calls the handler with a message or a list of messages."""
        outcome = (
            self._handler(argument)
            if self._threads is None
            else await self._threads.run(self._handler, argument)
        )
        if inspect.isawaitable(outcome):
            await outcome

    def call_here(self, argument: Any, loop: asyncio.AbstractEventLoop) -> None:
        """Does the same for a plain handler, in the calling thread, which is not the loop's."""
        outcome = self._handler(argument)
        if outcome is not None and inspect.isawaitable(outcome):
            asyncio.run_coroutine_threadsafe(_awaited(outcome), loop).result()

    def close(self) -> None:
        """Ends the threads. No further calls may follow."""
        if self._threads is not None:
            self._threads.stop()


def run_in_thread(
    function: Callable[[asyncio.AbstractEventLoop], None], loop: asyncio.AbstractEventLoop, *, name: str
) -> asyncio.Future[None]:
    """Runs a function in a daemon thread of its own. The future is done when it has returned."""
    ended: asyncio.Future[None] = loop.create_future()

    def run() -> None:
        try:
            function(loop)
        finally:
            with contextlib.suppress(RuntimeError):  # The loop has ended, so nobody waits on it.
                loop.call_soon_threadsafe(_succeed, ended, None)

    threading.Thread(target=run, name=name, daemon=True).start()
    return ended


async def _awaited(outcome: Awaitable[Any]) -> Any:
    return await outcome


def _succeed(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(as_exception(error))


def as_exception(error: BaseException) -> Exception:
    """Turns whatever a handler raised into an error that fails only its message."""
    if isinstance(error, StopIteration):  # A future does not accept it.
        return _because_of(error, "the handler raised StopIteration")
    if not isinstance(error, Exception):
        return _because_of(error, f"the handler ended with {type(error).__name__}: {error}")
    return error


def _because_of(error: BaseException, text: str) -> Exception:
    """Returns an error whose traceback shows the first one."""
    failure = RuntimeError(text)
    failure.__cause__ = error
    return failure
