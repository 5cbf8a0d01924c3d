"""The first form of consumption: a handler is called with each message, or with batches of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from metaq._core import Message
from metaq.client.consumer.broker_requests import BrokerRequests
from metaq.client.consumer.buffers import QueueBuffer
from metaq.client.consumer.group_member import GroupConsumer
from metaq.client.consumer.handler_threads import as_exception, in_thread
from metaq.client.consumer.local_retry import Parking
from metaq.client.consumer.local_retry_store import ParkedMessages, parked_file
from metaq.client.consumer.options import ConsumerOptions, client_directory
from metaq.client.consumer.settlement import Settlement
from metaq.client.consumer.subscription import Reject, Retry
from metaq.client.session.routes import Queue

if TYPE_CHECKING:
    from metaq.client.session.session import Session

_log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 30.0
LEAVE_TIMEOUT_S: Final = 3.0
"""Kept back for the last commit and the farewell, or a quarter of the time where that is less."""
LEAVE_TIMEOUT_MIN_S: Final = 0.25
"""Even where there was no time at all: what is settled should be committed."""

YIELD_EVERY: Final = 64
START_AGAIN_S: Final = 0.5
"""A start that did not hear that it is to end is told again."""


class Ending:
    """The time that a close has, and who may use how much of it."""

    def __init__(self, timeout: float) -> None:
        timeout = max(0.0, timeout)
        self._deadline = time.monotonic() + timeout
        self._kept_back = min(LEAVE_TIMEOUT_S, timeout / 4)

    def for_handlers(self) -> float:
        """To end what they have in hand."""
        return max(0.0, self._deadline - self._kept_back - time.monotonic())

    def for_leaving(self) -> float:
        return max(self._deadline - time.monotonic(), LEAVE_TIMEOUT_MIN_S)


async def end_start(starting: asyncio.Task[None], timeout: float) -> None:
    """Waits for a start, then stops it: one that went on would leave a member that nobody works for."""
    await asyncio.wait((starting,), timeout=timeout)
    while not starting.done():
        starting.cancel()
        await asyncio.wait((starting,), timeout=START_AGAIN_S)


class Caller(Protocol):
    """Calls the user's handler in whichever way suits it."""

    is_plain: bool
    """It is no coroutine function and is called by threads."""

    async def call(self, argument: Any) -> None:
        """With a message or a list of them; a plain one in a thread for such calls."""

    def call_here(self, argument: Any, loop: asyncio.AbstractEventLoop) -> None:
        """The same for a plain one, in the calling thread, which is not the loop's."""

    def close(self) -> None:
        """No more calls will come."""


class HandlerConsumer:
    """Runs a handler over a group's messages, so many calls at a time as asked.

    Threads take, call and acknowledge by themselves; the loop has to do with a message only where it failed.
    """

    def __init__(self, session: Session, options: ConsumerOptions, caller: Caller) -> None:
        self.core = GroupConsumer(session, options)
        self._options = options
        self._caller = caller
        self._parking: Parking | None = None
        self._settlement = Settlement(self.core)
        self._requests = BrokerRequests(self.core, self.invoke)
        self._workers: set[asyncio.Future[None]] = set()
        self._is_started = False
        self.is_closed = False
        self._ended: asyncio.Future[bool] | None = None
        """How the close that is under way, or was, ends."""

    async def start(self) -> None:
        if self._is_started or self.is_closed:
            return
        self._is_started = True
        if self._options.on_failure == "local":
            path = parked_file(
                self._options.local_directory or client_directory() / "parked", self._options.group
            )
            self._parking = Parking(self.core, await asyncio.to_thread(ParkedMessages, path), self.invoke)
            self._settlement = Settlement(self.core, self._parking)
        self._requests.begin()
        await self.core.start()
        for number in range(self._options.concurrency):
            name = f"metaq {self._options.group} worker {number}"
            if self._caller.is_plain:
                self._workers.add(in_thread(self._work_here, asyncio.get_running_loop(), name=name))
            else:
                self._workers.add(asyncio.create_task(self._work(), name=name))
        if self._parking is not None:
            # One of the workers: what it has in hand has the same time to end as theirs.
            name = f"metaq {self._options.group} parked messages"
            self._workers.add(asyncio.create_task(self._parking.work(), name=name))

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """Stops pulling, lets what is in hand end, commits and leaves the group, within the time.

        False where handlers were still at work: their messages come again. Safe to call twice: the second one
        waits for the first.
        """
        self.is_closed = True
        if not self._is_started:
            return True
        if self._ended is not None:
            done, _ = await asyncio.wait((self._ended,), timeout=max(0.0, timeout))
            return bool(done) and self._ended.result()
        self._ended = asyncio.get_running_loop().create_future()
        is_clean = False
        try:
            is_clean = await self._close(timeout)
        finally:
            self._ended.set_result(is_clean)
        return is_clean

    async def _close(self, timeout: float) -> bool:
        ending = Ending(timeout)
        self._requests.end()
        if self._parking is not None:
            self._parking.stop()
        await self.core.stop_taking()
        late: set[asyncio.Future[None]] = set()
        if self._workers:
            _, late = await asyncio.wait(self._workers, timeout=ending.for_handlers())
        for worker in late:
            worker.cancel()
        if late:
            _log.warning("group %s: %d handlers did not end in time", self._options.group, len(late))
            await asyncio.wait(late, timeout=ending.for_handlers())
        self._caller.close()
        try:
            async with asyncio.timeout(ending.for_leaving()):
                await self.core.leave()
        except TimeoutError:
            _log.warning("group %s: the last commit took too long", self._options.group)
        if self._parking is not None:
            await self._parking.close()
        return not late

    async def invoke(self, messages: Sequence[Message]) -> None:
        """Calls the handler as it wants to be called."""
        telemetry = self.core.session.telemetry
        telemetry.consumed(self._options.group, messages)
        with telemetry.processing(self._options, messages):
            await self._caller.call(messages[0] if self._options.batch is None else list(messages))

    async def _work(self) -> None:
        core, count = self.core, self._options.batch or 1
        calls = 0
        while (taken := core.take_now(count) or await core.take(count)) is not None:
            buffer, messages = taken
            try:
                await self._handle(buffer, messages)
            except Exception:
                # Ours, not the handler's: the messages stay unsettled and come again after a restart.
                _log.exception("group %s: %d messages were not settled", self._options.group, len(messages))
            calls += 1
            if calls % YIELD_EVERY == 0:
                # A handler that awaits nothing would keep the loop from its heartbeats.
                await asyncio.sleep(0)

    async def _handle(self, buffer: QueueBuffer, messages: list[Message]) -> None:
        try:
            await self.invoke(messages)
        except Exception as error:
            await self._failed(buffer, messages, error)
        else:
            self._settlement.acknowledge(buffer, messages)

    def _work_here(self, loop: asyncio.AbstractEventLoop) -> None:
        """The same in a thread."""
        is_batch = self._options.batch is not None
        telemetry = self.core.session.telemetry
        while (taken := self.core.take_waiting(self._options.batch or 1)) is not None:
            buffer, messages = taken
            telemetry.consumed(self._options.group, messages)
            try:
                with telemetry.processing(self._options, messages):
                    self._caller.call_here(messages if is_batch else messages[0], loop)
            except BaseException as error:
                settled = asyncio.run_coroutine_threadsafe(
                    self._failed(buffer, messages, as_exception(error)), loop
                )
                try:
                    settled.result()
                except Exception:
                    _log.exception(
                        "group %s: %d messages were not settled", self._options.group, len(messages)
                    )
            else:
                self._settlement.acknowledge(buffer, messages)

    async def _failed(self, buffer: QueueBuffer, messages: list[Message], error: Exception) -> None:
        if isinstance(error, Reject):
            await self._settlement.reject(buffer, messages)
        elif isinstance(error, Retry):
            await self._settlement.retry(buffer, messages, error.after, error)
        else:
            ids = ", ".join(message.id for message in messages)
            _log.warning("group %s: the handler failed on %s", self._options.group, ids, exc_info=error)
            await self._settlement.retry(buffer, messages, None, error)

    # What both faces show

    @property
    def queues(self) -> frozenset[Queue]:
        """Our share now."""
        return frozenset(self.core.buffers)

    def pause(self, queues: Iterable[Queue] | None = None) -> None:
        self.core.pause(queues)

    def resume(self, queues: Iterable[Queue] | None = None) -> None:
        self.core.resume(queues)
