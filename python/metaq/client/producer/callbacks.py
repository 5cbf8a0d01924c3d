"""Callbacks of the plain face: they run in a thread of their own, where a slow one stops nothing of ours."""

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

END_LOOK_S: Final = 0.01

_serving: ContextVar[Callbacks | None] = ContextVar("metaq callbacks", default=None)
"""Whose thread it is; what the thread asks of an event loop runs there with the same."""


def call_back(callback: Callback, future: SendFuture) -> None:
    """What it raises is nobody's to catch, so it is logged."""
    try:
        callback(future)
    except Exception:
        _log.exception("a callback of %r failed", future)


class Callbacks:
    """The thread, started with the first callback. What waits for it is bounded by the buffer of its
    producer, in which every batch keeps its room until its callbacks were called."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    @property
    def is_here(self) -> bool:
        """Whether a callback asks: it must not wait for the others, nor for room that they keep."""
        return _serving.get() is self

    def run(self, batches: Iterable[DoneBatch]) -> None:
        """In the order in which they come."""
        for batch in batches:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="metaq callbacks", daemon=True)
                self._thread.start()
            self._calls.put(batch.call_back)

    async def wait(self) -> None:
        """Until those that came before have run; not at all where one of them asks."""
        if self._thread is None or self.is_here:
            return
        while self._is_stopped and self._thread.is_alive():
            await asyncio.sleep(END_LOOK_S)
        if self._is_stopped:
            return
        loop = asyncio.get_running_loop()
        reached: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # The loop has ended: nobody waits any more.
                loop.call_soon_threadsafe(_reach, reached)

        self._calls.put(tell)
        await reached

    def stop(self) -> None:
        """Ends the thread after what it has in hand. Safe to call twice."""
        if self._thread is not None and not self._is_stopped:
            self._is_stopped = True
            self._calls.put(None)

    def _serve(self) -> None:
        _serving.set(self)
        while (call := self._calls.get()) is not None:
            call()


def _reach(reached: asyncio.Future[None]) -> None:
    if not reached.done():
        reached.set_result(None)
