"""Callbacks of send futures in plain code, which run in a thread of their own and so block nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from metaq._core import DoneBatch, SendFuture

_log = logging.getLogger(__name__)

Callback = Callable[["SendFuture"], Any]

END_INTERVAL_S: Final = 0.01

_serving: ContextVar[CallbackThread | None] = ContextVar("metaq callbacks", default=None)
"""The object whose thread runs this context. Calls from the thread to an event loop keep the value."""


def call_back(callback: Callback, future: SendFuture) -> None:
    """Calls a callback and logs its failure, because nobody could catch it."""
    try:
        callback(future)
    except Exception:
        _log.exception("a callback of %r failed", future)


class CallbackThread:
    """A thread that starts with the first callback.

    The number of waiting callbacks is bounded by the producer's buffer, in which every batch keeps its room
    until its callbacks have run.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    @property
    def is_current(self) -> bool:
        """Whether a callback asks. It must not wait for other callbacks, nor for the room that they keep."""
        return _serving.get() is self

    def run(self, batches: Iterable[DoneBatch]) -> None:
        """Runs the callbacks of these batches, in order."""
        for batch in batches:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="metaq callbacks", daemon=True)
                self._thread.start()
            self._calls.put(batch.call_back)

    async def wait(self) -> None:
        """Waits until all callbacks so far have run. Returns at once if a callback asks."""
        if self._thread is None or self.is_current:
            return
        while self._is_stopped and self._thread.is_alive():
            await asyncio.sleep(END_INTERVAL_S)
        if self._is_stopped:
            return
        loop = asyncio.get_running_loop()
        reached: asyncio.Future[None] = loop.create_future()

        def reach() -> None:
            with contextlib.suppress(RuntimeError):  # The loop has ended, so nobody waits on it.
                loop.call_soon_threadsafe(_finish, reached)

        self._calls.put(reach)
        await reached

    def stop(self) -> None:
        """Ends the thread after the callbacks so far. Safe to call twice."""
        if self._thread is not None and not self._is_stopped:
            self._is_stopped = True
            self._calls.put(None)

    def _serve(self) -> None:
        _serving.set(self)
        while (call := self._calls.get()) is not None:
            call()


def _finish(reached: asyncio.Future[None]) -> None:
    if not reached.done():
        reached.set_result(None)
