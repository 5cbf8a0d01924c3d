"""Starting and closing: context managers, starts and closes that several callers share, deadlines."""

from __future__ import annotations

import asyncio
import os
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Self

from metaq.client.tasks import end_tasks
from metaq.errors import NotDelivered, UsageError

CLOSE_TIMEOUT_S: Final = 30.0
LEAVE_TIMEOUT_S: Final = 3.0
"""A close keeps this time, but at most a quarter of its timeout, for the last commit and the goodbye."""
LEAVE_TIMEOUT_MIN_S: Final = 0.25
"""The last commit has this time even if the close has none, because settled messages should be committed."""
GOODBYE_TIMEOUT_S: Final = 1.0
GOODBYE_TIMEOUT_MIN_S: Final = 0.05
"""A goodbye has this time even if the close has none. A broker that does not get it forgets us when the
connection ends."""
FAILED_START_CLOSE_S: Final = 5.0
"""If a client cannot start, handlers that already run have this time."""

_closing_until: ContextVar[float | None] = ContextVar("metaq close", default=None)


@contextmanager
def closing_within(timeout: float) -> Iterator[None]:
    """Limits the goodbyes in this block, and in tasks that it starts, to what is left of the timeout."""
    before = _closing_until.get()
    until = time.monotonic() + timeout
    reset = _closing_until.set(until if before is None else min(before, until))
    try:
        yield
    finally:
        _closing_until.reset(reset)


def goodbye_timeout_s() -> float:
    """Returns the seconds that a goodbye may take now."""
    until = _closing_until.get()
    if until is None:
        return GOODBYE_TIMEOUT_S
    return min(GOODBYE_TIMEOUT_S, max(until - time.monotonic(), GOODBYE_TIMEOUT_MIN_S))


class OpenMark:
    """Warns when everything that holds it is dropped while the client is open.

    The client and all that it has made hold it, because a producer works on if only the client is dropped.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()
        self.is_open = False

    def __del__(self) -> None:
        if self.is_open and os.getpid() == self._pid:
            warnings.warn(
                f"unclosed {self._what}: use it as a context manager, or call close",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )


def require_process(pid: int) -> None:
    """Raises UsageError in any other process than the one with this id. Cheap enough for every message."""
    if os.getpid() != pid:
        raise UsageError(
            "this client was made before a fork and belongs to the other process",
            hint="make one in each process",
        )


class Closable:
    """A context manager that closes itself at the end of the block.

    If the block raised an error, messages that could not be delivered are added to it as a note.
    """

    def close(self) -> object:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except NotDelivered as lost:
            if error is None:
                raise
            error.add_note(str(lost))


class Startable(Closable):
    """A context manager that also starts itself at the beginning of the block."""

    def start(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self


class AsyncClosable:
    """Does the same as `Closable` for `async with`."""

    async def close(self) -> object:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except NotDelivered as lost:
            if error is None:
                raise
            error.add_note(str(lost))


class AsyncStartable(AsyncClosable):
    """Does the same as `Startable` for `async with`."""

    async def start(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.start()
        return self


class SharedStart:
    """A start that runs once, in a task of its own. A cancelled caller does not stop it; `end` does."""

    def __init__(self, start: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._start = start
        self._name = name
        self._task: asyncio.Task[None] | None = None

    @property
    def has_begun(self) -> bool:
        return self._task is not None

    @property
    def is_done(self) -> bool:
        return self._task is not None and self._task.done()

    def begin(self) -> asyncio.Task[None]:
        """Begins the start without waiting for it. Safe to call twice."""
        if self._task is None:
            self._task = asyncio.create_task(self._start(), name=f"metaq {self._name}")
        return self._task

    async def run(self) -> None:
        """Waits for the start and raises its failure. A start that `end` cancelled raises nothing."""
        task = self.begin()
        await asyncio.wait((task,))
        if not task.cancelled():
            task.result()

    async def end(self, timeout: float) -> None:
        """Waits for a start that has begun, and cancels it after the timeout.

        A start that ran on would leave a member in the group that nobody works for.
        """
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=timeout)
            await end_tasks((self._task,))


class SharedClose:
    """A close that runs once. Later callers wait for the first and get its result.

    If the first is cancelled, the next caller closes, and so does one that already waits.
    """

    def __init__(self) -> None:
        self._result: asyncio.Future[bool] | None = None
        self.has_begun = False

    async def run(self, close: Callable[[], Awaitable[bool]], timeout: float | None) -> bool:
        """Returns whether the close was clean; False if another caller's close outlasts the timeout."""
        self.has_begun = True
        while (first := self._result) is not None:
            done, _ = await asyncio.wait((first,), timeout=None if timeout is None else max(0.0, timeout))
            if not done:
                return False
            if not first.cancelled():
                return first.result()
        result = self._result = asyncio.get_running_loop().create_future()
        try:
            is_clean = await close()
        except asyncio.CancelledError:
            self._result = None
            result.cancel()
            raise
        except BaseException:
            result.set_result(False)
            raise
        result.set_result(is_clean)
        return is_clean


class CloseDeadline:
    """The time that the close of a consumer has, divided between its handlers and the last commit."""

    def __init__(self, timeout: float) -> None:
        timeout = max(0.0, timeout)
        self._deadline = time.monotonic() + timeout
        self._kept_back = min(LEAVE_TIMEOUT_S, timeout / 4)

    def for_handlers(self) -> float:
        """Returns the seconds in which handlers may finish the messages in hand."""
        return max(0.0, self._deadline - self._kept_back - time.monotonic())

    def for_leaving(self) -> float:
        """Returns the seconds for the last commit."""
        return max(self._deadline - time.monotonic(), LEAVE_TIMEOUT_MIN_S)
