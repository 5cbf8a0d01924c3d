"""Consumption with a handler, which is called with each message or with batches of messages."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from metaq._core import Message
from metaq.client.consumer.group.broker_requests import BrokerRequests
from metaq.client.consumer.group.group_member import GroupMember
from metaq.client.consumer.handler_threads import as_exception, run_in_thread
from metaq.client.consumer.handler_timeout import TimedTasks, TimedThreads
from metaq.client.consumer.options import ConsumerOptions, client_directory
from metaq.client.consumer.pull.buffers import QueueBuffer
from metaq.client.consumer.replying import blocking_reply, reply_from_here, task_reply
from metaq.client.consumer.settlement.local_retry import LocalRetries
from metaq.client.consumer.settlement.local_retry_store import LocalRetryStore, local_retry_file
from metaq.client.consumer.settlement.settlement import Settlement
from metaq.client.consumer.subscription import Reject, Retry
from metaq.client.lifecycle import CLOSE_TIMEOUT_S, CloseDeadline, SharedClose, closing_within
from metaq.client.session.routes import Queue
from metaq.client.stderr_fallback import once
from metaq.errors import HandlerTimeout

if TYPE_CHECKING:
    from metaq.client.session.session import Session

_log = logging.getLogger(__name__)

IDS_SHOWN_MAX: Final = 3
"""A log line names this many messages of a batch."""
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
        self._requests = BrokerRequests(self.member, self._invoke_elsewhere)
        self._workers: set[asyncio.Future[None]] = set()
        self._workers_started = 0
        self._threads: dict[str, asyncio.Future[None]] = {}
        """Worker threads by name."""
        self._timed_threads: TimedThreads | None = None
        self._timed_tasks: TimedTasks | None = None
        self._call = self.invoke
        """Calls the handler, with its time limit if it has one."""
        if options.handler_timeout is not None:
            self._timed_tasks = TimedTasks(options)
            self._call = self._invoke_in_time
            if caller.is_plain:
                self._timed_threads = TimedThreads(options, self._failed, self._replace_thread)
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
            self._local_retries = LocalRetries(self._session, options, store, self._invoke_elsewhere)
            self._settlement = Settlement(self.member, self._local_retries)
        self._requests.begin()
        await self.member.start()
        if self._timed_threads is not None:
            self._timed_threads.start()
        context = contextvars.copy_context()
        context.run(self._enable_replies, asyncio.get_running_loop())
        for number in range(options.concurrency):
            if self._caller.is_plain:
                self._start_thread()
            else:
                name = f"metaq {options.group} worker {number}"
                self._workers.add(asyncio.create_task(self._work(), name=name, context=context.copy()))
        if self._local_retries is not None:
            # It counts as a worker, so a close gives its message in hand the same time.
            name = f"metaq {options.group} local retries"
            self._workers.add(asyncio.create_task(self._local_retries.work(), name=name))

    def _start_thread(self) -> None:
        name = f"metaq {self._options.group} worker {self._workers_started}"
        self._workers_started += 1
        work = self._work_here if self._timed_threads is None else self._work_here_in_time
        self._threads[name] = run_in_thread(work, asyncio.get_running_loop(), name=name)
        self._workers.add(self._threads[name])

    def _replace_thread(self, name: str) -> None:
        """Starts another thread. A close does not wait for this one, whose messages were given back."""
        self._workers.discard(self._threads.pop(name))
        self._start_thread()

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
        if self._timed_threads is not None:
            await self._timed_threads.close()
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

    async def _invoke_elsewhere(self, messages: Sequence[Message]) -> None:
        """Does the same outside of the workers, with the time limit."""
        self._enable_replies(asyncio.get_running_loop())
        await self._call(messages)

    async def _invoke_in_time(self, messages: Sequence[Message]) -> None:
        assert self._timed_tasks is not None, "only with a time limit"
        await self._timed_tasks.run(self.invoke(messages))

    def _enable_replies(self, loop: asyncio.AbstractEventLoop) -> None:
        """Makes `Message.reply` work in this thread or task."""
        session, group = self._session, self._options.group
        is_plain = self._caller.is_plain
        reply_from_here(blocking_reply(session, group, loop) if is_plain else task_reply(session, group))

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
            await self._call(messages)
        except Exception as error:
            await self._failed(buffer, messages, error)
        else:
            self._settlement.ack(buffer, messages)

    def _work_here(self, loop: asyncio.AbstractEventLoop) -> None:
        """Does the same as `_work` in a thread."""
        self._enable_replies(loop)
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
                self._failed_here(buffer, messages, error, loop)
            else:
                self._settlement.ack(buffer, messages)

    def _work_here_in_time(self, loop: asyncio.AbstractEventLoop) -> None:
        """Does the same with a time limit for each call."""
        threads = self._timed_threads
        assert threads is not None, "only with a time limit"
        self._enable_replies(loop)
        is_batch = self._options.batch is not None
        telemetry = self._session.telemetry
        prefetch = self.member.prefetch
        while (taken := prefetch.take_waiting(self._options.batch or 1)) is not None:
            buffer, messages = taken
            telemetry.consumed(self._options.group, messages)
            call = threads.begin(buffer, messages)
            failure: BaseException | None = None
            try:
                with telemetry.processing(self._options, messages):
                    self._caller.call_here(messages if is_batch else messages[0], loop)
                    if call.is_abandoned:
                        raise HandlerTimeout("the handler returned too late")  # For spans and metrics.
            except BaseException as error:
                failure = error
            if not threads.end(call):
                if call.is_replaced:
                    return
            elif failure is not None:
                self._failed_here(buffer, messages, failure, loop)
            else:
                self._settlement.ack(buffer, messages)

    def _failed_here(
        self,
        buffer: QueueBuffer,
        messages: list[Message],
        error: BaseException,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        settled = asyncio.run_coroutine_threadsafe(self._failed(buffer, messages, as_exception(error)), loop)
        try:
            settled.result()
        except Exception:
            _log.exception("group %s: %d messages were not settled", self._options.group, len(messages))

    async def _failed(self, buffer: QueueBuffer, messages: list[Message], error: Exception) -> None:
        if isinstance(error, Reject):
            await self._settlement.reject(buffer, messages, error)
        elif isinstance(error, Retry):
            await self._settlement.retry(buffer, messages, error.after, error)
        else:
            _log.warning(
                "group %s: the handler failed on %s",
                self._options.group,
                _named(messages),
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


def _named(messages: Sequence[Message]) -> str:
    """Returns how a log line names the messages of one call."""
    ids = ", ".join(message.id for message in messages[:IDS_SHOWN_MAX])
    left = len(messages) - IDS_SHOWN_MAX
    return f"{len(messages)} messages: {ids} and {left} more" if left > 0 else ids
