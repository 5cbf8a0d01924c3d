"""Consumption with a handler, which is called with each message or with batches of messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from metaq._core import Message
from metaq.client.consumer.group.broker_requests import BrokerRequests
from metaq.client.consumer.group.group_member import GroupMember
from metaq.client.consumer.handler_threads import as_exception, run_in_thread
from metaq.client.consumer.options import ConsumerOptions, client_directory
from metaq.client.consumer.pull.buffers import QueueBuffer
from metaq.client.consumer.settlement.local_retry import LocalRetries
from metaq.client.consumer.settlement.local_retry_store import LocalRetryStore, local_retry_file
from metaq.client.consumer.settlement.settlement import Settlement
from metaq.client.consumer.subscription import Reject, Retry
from metaq.client.lifecycle import CLOSE_TIMEOUT_S, CloseDeadline, SharedClose, closing_within
from metaq.client.session.routes import Queue
from metaq.client.stderr_fallback import once

if TYPE_CHECKING:
    from metaq.client.session.session import Session

_log = logging.getLogger(__name__)

YIELD_EVERY: Final = 64
"""After this many messages a task that never awaits lets the event loop run, which has heartbeats to send."""


class Caller(Protocol):
    """Calls the user's handler; `HandlerCaller` is the real one."""

    is_plain: bool
    """The handler is not a coroutine function, so threads call it."""

    async def call(self, argument: Any) -> None: ...

    def call_here(self, argument: Any, loop: asyncio.AbstractEventLoop) -> None: ...

    def close(self) -> None: ...


class HandlerConsumer:
    """Runs a handler over a group's messages, up to `concurrency` calls at a time.

    Threads take messages, call the handler and acknowledge on their own. The event loop only sees messages
    that failed.
    """

    def __init__(self, session: Session, options: ConsumerOptions, caller: Caller) -> None:
        self.member = GroupMember(session, options)
        self._session = session
        self._options = options
        self._caller = caller
        self._local_retries: LocalRetries | None = None
        self._settlement = Settlement(self.member)
        self._requests = BrokerRequests(self.member, self.invoke)
        self._workers: set[asyncio.Future[None]] = set()
        self._is_started = False
        self.is_closed = False
        self._closing = SharedClose()

    async def start(self) -> None:
        """Joins the group and starts the workers. Safe to call twice."""
        if self._is_started or self.is_closed:
            return
        self._is_started = True
        options = self._options
        if options.on_failure == "local":
            directory = options.local_directory or client_directory() / "parked"
            path = local_retry_file(directory, options.group)
            store = await asyncio.to_thread(LocalRetryStore, path, options.local_bytes_max)
            self._local_retries = LocalRetries(self._session, options, store, self.invoke)
            self._settlement = Settlement(self.member, self._local_retries)
        self._requests.begin()
        await self.member.start()
        for number in range(options.concurrency):
            name = f"metaq {options.group} worker {number}"
            if self._caller.is_plain:
                self._workers.add(run_in_thread(self._work_here, asyncio.get_running_loop(), name=name))
            else:
                self._workers.add(asyncio.create_task(self._work(), name=name))
        if self._local_retries is not None:
            # It counts as a worker, so a close gives its message in hand the same time.
            name = f"metaq {options.group} local retries"
            self._workers.add(asyncio.create_task(self._local_retries.work(), name=name))

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """Stops pulling, finishes the messages in hand, commits and leaves the group, all within the timeout.

        Returns False if handlers were still running; their messages come again. A second close waits for the
        first.
        """
        self.is_closed = True
        if not self._is_started:
            return True
        with closing_within(timeout):
            return await self._closing.run(lambda: self._close(CloseDeadline(timeout)), timeout)

    async def _close(self, deadline: CloseDeadline) -> bool:
        self._requests.end()
        if self._local_retries is not None:
            self._local_retries.stop()
        await self.member.stop_taking()
        late: set[asyncio.Future[None]] = set()
        if self._workers:
            _, late = await asyncio.wait(self._workers, timeout=deadline.for_handlers())
        for worker in late:
            worker.cancel()
        if late:
            _log.warning("group %s: %d handlers did not finish in time", self._options.group, len(late))
            await asyncio.wait(late, timeout=deadline.for_handlers())
        self._caller.close()
        try:
            async with asyncio.timeout(deadline.for_leaving()):
                await self.member.leave()
        except TimeoutError:
            _log.warning("group %s: the last commit did not finish in time", self._options.group)
        if self._local_retries is not None:
            await self._local_retries.close()
        return not late

    async def invoke(self, messages: Sequence[Message]) -> None:
        """Calls the handler with one message, or with a list if it takes batches."""
        telemetry = self._session.telemetry
        telemetry.consumed(self._options.group, messages)
        with telemetry.processing(self._options, messages):
            await self._caller.call(messages[0] if self._options.batch is None else list(messages))

    async def _work(self) -> None:
        prefetch, count = self.member.prefetch, self._options.batch or 1
        calls = 0
        while (taken := prefetch.take_now(count) or await prefetch.take(count)) is not None:
            buffer, messages = taken
            try:
                await self._handle(buffer, messages)
            except Exception:
                # Our own failure, not the handler's: the messages come again after a restart.
                _log.exception("group %s: %d messages were not settled", self._options.group, len(messages))
            calls += 1
            if calls % YIELD_EVERY == 0:
                await asyncio.sleep(0)

    async def _handle(self, buffer: QueueBuffer, messages: list[Message]) -> None:
        try:
            await self.invoke(messages)
        except Exception as error:
            await self._failed(buffer, messages, error)
        else:
            self._settlement.ack(buffer, messages)

    def _work_here(self, loop: asyncio.AbstractEventLoop) -> None:
        """Does the same as `_work` in a thread."""
        is_batch = self._options.batch is not None
        telemetry = self._session.telemetry
        prefetch = self.member.prefetch
        while (taken := prefetch.take_waiting(self._options.batch or 1)) is not None:
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
                self._settlement.ack(buffer, messages)

    async def _failed(self, buffer: QueueBuffer, messages: list[Message], error: Exception) -> None:
        if isinstance(error, Reject):
            await self._settlement.reject(buffer, messages, error)
        elif isinstance(error, Retry):
            await self._settlement.retry(buffer, messages, error.after, error)
        else:
            ids = ", ".join(message.id for message in messages)
            _log.warning(
                "group %s: the handler failed on %s",
                self._options.group,
                ids,
                exc_info=error,
                extra=once("handler", self._options.group),
            )
            await self._settlement.retry(buffer, messages, None, error)

    # Both faces of the client show these.

    @property
    def queues(self) -> frozenset[Queue]:
        return frozenset(self.member.prefetch.buffers)

    def pause(self, queues: Iterable[Queue] | None = None) -> None:
        self.member.prefetch.pause(queues)

    def resume(self, queues: Iterable[Queue] | None = None) -> None:
        self.member.prefetch.resume(queues)
