"""Callbacks of the plain face: they run in a thread of their own, where a slow one stops nothing of ours."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metaq._core import SendFuture

_log = logging.getLogger(__name__)

Callback = Callable[["SendFuture"], Any]


def call_back(callback: Callback, future: SendFuture) -> None:
    """What it raises is nobody's to catch, so it is logged."""
    try:
        callback(future)
    except Exception:
        _log.exception("a callback of %r failed", future)


class Callbacks:
    """The thread, started with the first callback."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Sequence[tuple[Callback, SendFuture]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, calls: Sequence[tuple[Callback, SendFuture]]) -> None:
        """In the order in which they come."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="metaq callbacks", daemon=True)
            self._thread.start()
        self._calls.put(calls)

    def stop(self) -> None:
        """Ends the thread after what it has in hand."""
        if self._thread is not None:
            self._calls.put(None)

    def _serve(self) -> None:
        while (calls := self._calls.get()) is not None:
            for callback, future in calls:
                call_back(callback, future)
