"""The way from any thread to the event loop on which a `metaq.Client` works."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from metaq.client.consumer.handler_signature import is_coroutine_function, name_of
from metaq.client.lifecycle import require_process
from metaq.errors import ClientClosed, UsageError

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Portal:
    """One thread with an event loop. No user code runs there, so user code cannot block it."""

    def __init__(self) -> None:
        self._opened: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._serve, name="metaq client", daemon=True)
        self._pid = os.getpid()
        self._closed = False

    def start(self) -> None:
        """Starts the thread. Safe to call twice."""
        if not self._thread.is_alive() and not self._closed:
            self._opened = asyncio.new_event_loop()
            self._thread.start()

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        assert self._opened is not None, "the thread is not started"
        return self._opened

    def run(
        self, function: Callable[_P, Coroutine[Any, Any, _T]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Runs a coroutine function on the loop, and returns or raises its outcome."""
        future = self.submit(function, *args, **kwargs)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C while waiting also cancels the call. Cancelling a finished one does nothing.
            future.cancel()
            raise

    def call(self, function: Callable[[], _T]) -> _T:
        """Calls a plain function on the loop, which owns the state that the function uses."""

        async def call() -> _T:
            return function()

        return self.run(call)

    def submit(
        self, function: Callable[_P, Coroutine[Any, Any, _T]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> concurrent.futures.Future[_T]:
        """Runs a coroutine function on the loop without waiting for it."""
        self.require_usable()
        return asyncio.run_coroutine_threadsafe(function(*args, **kwargs), self._loop)

    @property
    def usable(self) -> bool:
        return not self._closed and os.getpid() == self._pid and self._thread.is_alive()

    def require_usable(self) -> None:
        """Raises if a call could not return: closed, not started, forked, or called from the loop itself."""
        self.require_own_process()
        if self._closed:
            raise ClientClosed("this client is closed", hint="make another one")
        if not self._thread.is_alive():
            raise ClientClosed(
                "this client is not started", hint="use it as a context manager, or call start"
            )
        if threading.current_thread() is self._thread:
            raise UsageError("the client's own thread cannot wait for itself")

    def require_own_process(self) -> None:
        """Raises UsageError after a fork."""
        require_process(self._pid)

    def close(self) -> None:
        """Stops the loop and ends the thread. Safe to call twice."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        if self._opened is not None:
            self._opened.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())


def require_plain(function: Callable[..., Any]) -> None:
    """Raises UsageError for coroutine functions, because a slow one would stop the heartbeats of our loop."""
    if is_coroutine_function(function):
        raise UsageError(
            f"{name_of(function)} is a coroutine function, but metaq.Client calls plain functions",
            hint="use metaq.aio.Client, or write it with def",
        )
