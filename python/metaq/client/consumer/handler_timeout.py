"""The time limit of a call of a handler (`handler_timeout`). Consumers without one never come here.

A coroutine function is cancelled. A thread cannot be stopped: its call is abandoned. In both cases the
messages are given back at once, as after any other failure. An abandoned thread is replaced by a new one, so
that consumption continues, but at most `concurrency` threads are: handlers that hang for ever must not fill
the memory with threads. When an abandoned call returns after all, its outcome is dropped and its thread ends.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from metaq.client.tasks import Tasks
from metaq.errors import HandlerTimeout

if TYPE_CHECKING:
    from metaq._core import Message
    from metaq.client.consumer.options import ConsumerOptions
    from metaq.client.consumer.pull.buffers import QueueBuffer

_log = logging.getLogger(__name__)

CANCEL_GRACE_S: Final = 1.0
"""A cancelled handler has this long to end. After that nobody waits for it."""

GiveBack = Callable[["QueueBuffer", list["Message"], Exception], Awaitable[None]]


def ran_out(timeout_s: float, stack: str) -> HandlerTimeout:
    """Returns the error for a call; the log shows the stack with it."""
    error = HandlerTimeout(f"the handler did not return within {timeout_s:g} s (handler_timeout)")
    error.add_note(f"The handler was here:\n{stack.rstrip()}")
    return error


@dataclass(slots=True, eq=False)
class TimedCall:
    """One call of a plain handler in a thread."""

    buffer: QueueBuffer
    messages: list[Message]
    deadline: float
    thread: threading.Thread = field(default_factory=threading.current_thread)
    is_abandoned: bool = False
    is_replaced: bool = False


class TimedThreads:
    """Watches the calls in the threads of one consumer, and replaces threads whose calls are abandoned."""

    def __init__(self, options: ConsumerOptions, give_back: GiveBack, replace: Callable[[str], None]) -> None:
        assert options.handler_timeout is not None, "only with a time limit"
        self.timeout_s = options.handler_timeout
        self._options = options
        self._give_back = give_back
        self._replace = replace
        self._lock = threading.Lock()
        self._calls: dict[TimedCall, None] = {}
        """The calls under way, in the order of their deadlines."""
        self._replaced = 0
        """Threads with an abandoned call that were replaced and have not ended."""
        self._tasks = Tasks(f"{options.group} handler timeouts")

    def start(self) -> None:
        self._tasks.spawn(self._watch(), "watch")

    async def close(self) -> None:
        await self._tasks.end()

    def begin(self, buffer: QueueBuffer, messages: list[Message]) -> TimedCall:
        """Notes that the current thread calls the handler now."""
        call = TimedCall(buffer, messages, time.monotonic() + self.timeout_s)
        with self._lock:
            self._calls[call] = None
        return call

    def end(self, call: TimedCall) -> bool:
        """Notes that the call has returned. Returns False if it was abandoned: nothing is left to settle."""
        with self._lock:
            self._calls.pop(call, None)
            if not call.is_abandoned:
                return True
            if call.is_replaced:
                self._replaced -= 1
        late_s = time.monotonic() - call.deadline
        _log.info(
            "group %s: a handler returned %.1f s after its time; its messages were given back already",
            self._options.group,
            late_s,
        )
        return False

    async def _watch(self) -> None:
        while True:
            now = time.monotonic()
            for call in self._take_late(now):
                self._tasks.spawn(self._abandon(call), "give back")
            with self._lock:
                first = next(iter(self._calls), None)
            # A call that begins later ends later, so nothing is missed meanwhile.
            await asyncio.sleep(self.timeout_s if first is None else max(first.deadline - now, 0.001))

    def _take_late(self, now: float) -> list[TimedCall]:
        late = []
        with self._lock:
            for call in self._calls:
                if call.deadline > now:
                    break
                late.append(call)
            for call in late:
                del self._calls[call]
                call.is_abandoned = True
                if self._replaced < self._options.concurrency:
                    self._replaced += 1
                    call.is_replaced = True
        return late

    async def _abandon(self, call: TimedCall) -> None:
        stack = thread_stack(call.thread)
        if call.is_replaced:
            self._replace(call.thread.name)
        else:
            _log.error(
                "group %s: %d handlers hang, so this one gets no new thread; when all threads hang, "
                "consumption stops until one returns",
                self._options.group,
                self._options.concurrency + 1,
            )
        try:
            await self._give_back(call.buffer, call.messages, ran_out(self.timeout_s, stack))
        except Exception:
            _log.exception("group %s: %d messages were not settled", self._options.group, len(call.messages))


class TimedTasks:
    """Calls a coroutine function, or waits for a thread, with a time limit."""

    def __init__(self, options: ConsumerOptions) -> None:
        assert options.handler_timeout is not None, "only with a time limit"
        self._timeout_s = options.handler_timeout
        self._options = options
        self._hanging: set[asyncio.Task[None]] = set()

    async def run(self, call: Coroutine[Any, Any, None]) -> None:
        """Runs one call. Raises HandlerTimeout and what the handler raises."""
        task = asyncio.create_task(call, name=f"metaq {self._options.group} handler")
        try:
            await asyncio.wait((task,), timeout=self._timeout_s)
            if task.done():
                task.result()
                return
            stack = task_stack(task)
            task.cancel()
            await asyncio.wait((task,), timeout=CANCEL_GRACE_S)
        except asyncio.CancelledError:  # The consumer closes.
            task.cancel()
            await asyncio.wait((task,), timeout=CANCEL_GRACE_S)
            raise
        if not task.done():
            await self._abandon(task)
        elif not task.cancelled():
            task.exception()  # It was cancelled too late to matter.
        raise ran_out(self._timeout_s, stack)

    async def _abandon(self, task: asyncio.Task[None]) -> None:
        _log.error(
            "group %s: a handler goes on although it was cancelled; it must let CancelledError pass",
            self._options.group,
        )
        if len(self._hanging) >= self._options.concurrency:
            # As many hang as may run: this worker waits, so that their number is bounded.
            await asyncio.wait((task,))
        if not task.done():
            self._hanging.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._hanging.discard(task)
        if not task.cancelled():
            task.exception()


def thread_stack(thread: threading.Thread) -> str:
    """Returns the stack of a thread as text."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "(its thread has ended)" if frame is None else "".join(traceback.format_stack(frame))


def task_stack(task: asyncio.Task[Any]) -> str:
    """Returns where a task waits, through all the coroutines that it awaits."""
    found = traceback.StackSummary()
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame: FrameType | None = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            found.extend(traceback.extract_stack(frame, limit=1))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return "".join(found.format())
