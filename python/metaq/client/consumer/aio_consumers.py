"""Consumers as asyncio code sees them."""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Self, Unpack

from metaq.client.consumer.buffers import Limits
from metaq.client.consumer.handler import CLOSE_TIMEOUT_S, HandlerConsumer, end_start
from metaq.client.consumer.handler_threads import DaemonThreads
from metaq.client.consumer.iteration import Delivery, Stream
from metaq.client.consumer.options import ConsumerKeywords, HandlerKeywords, consumer_options
from metaq.client.consumer.pull_consumer import Position, PullConsumer
from metaq.client.message import Message
from metaq.client.session.routes import Queue
from metaq.client.session.session import Session
from metaq.errors import ClientClosed, UsageError

_log = logging.getLogger(__name__)

Handler = Callable[[Any], Awaitable[object] | object]
"""Takes a message, or with `batch` a list of them."""


class ReceivedMessage(Message):
    """A message of an iteration."""

    __slots__ = ("_delivery",)
    _delivery: Delivery

    def __new__(cls, delivery: Delivery) -> Self:
        self = super().__new__(cls, delivery.message)
        self._delivery = delivery
        return self

    def process(self) -> Processing:
        """Acknowledges at its end; an exception retries, `Retry` and `Reject` as in a handler. The exception
        does not leave the block, so that the loop goes on."""
        self._delivery.is_processed = True
        return Processing(self)

    async def ack(self) -> None:
        """It is done with."""
        self._delivery.ack()

    async def retry(self, after: float | None = None) -> None:
        """It comes again."""
        await self._delivery.retry(after)

    async def reject(self) -> None:
        """It goes to the dead letters."""
        await self._delivery.reject()


class Processing:
    """A block in which a message is processed."""

    __slots__ = ("_message", "_told")

    def __init__(self, message: ReceivedMessage) -> None:
        self._message = message
        self._told = message._delivery.processing()

    async def __aenter__(self) -> None:
        self._told.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._told.__exit__(kind, error, trace)
        message = self._message
        if isinstance(error, Exception):
            _log.warning("processing of %s failed", message.id, exc_info=error)
        await message._delivery.end(error)
        return isinstance(error, Exception)


class Consumer:
    """A handler and the group it works for. Calling it calls the handler, for instance in a test."""

    def __init__(self, session: Session, handler: Handler, consumption: HandlerConsumer) -> None:
        self.handler = handler
        self._session = session
        self._consumption = consumption
        self._starting: asyncio.Task[None] | None = None

    def __call__(self, message: Any) -> Any:
        return self.handler(message)

    @property
    def group(self) -> str:
        """That it is a member of."""
        return self._consumption.core.options.group

    @property
    def is_closed(self) -> bool:
        """Also while its close is under way."""
        return self._consumption.is_closed

    @property
    def queues(self) -> frozenset[Queue]:
        """Its share of the queues now."""
        return self._consumption.queues

    async def start(self) -> None:
        """Joins the group. Safe to call twice."""
        self._session.require_usable()
        if self._starting is None:
            self._start_soon()
        assert self._starting is not None
        # Who gives up waiting does not end it; closing does, and that is no cancellation of who waits.
        await asyncio.wait((self._starting,))
        if not self._starting.cancelled():
            self._starting.result()

    def _start_soon(self) -> None:
        """Without waiting; what goes wrong is logged, and raised by `start`."""
        self._starting = asyncio.create_task(self._start(), name="metaq start of a consumer")
        self._starting.add_done_callback(_report)

    async def _start(self) -> None:
        try:
            await self._consumption.start()
        except Exception:
            await self._consumption.close(0)
            raise

    def pause(self, queues: Iterable[Queue] | None = None) -> None:
        """Takes nothing of these queues, or of any, until resumed; they stay this consumer's."""
        self._session.require_loop()
        self._consumption.pause(queues)

    def resume(self, queues: Iterable[Queue] | None = None) -> None:
        """Goes on with these queues, or with all."""
        self._session.require_loop()
        self._consumption.resume(queues)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """Stops pulling, lets what is in hand end, commits and leaves the group, within the time.

        False where handlers were still at work: their messages come again. Safe to call twice.
        """
        begun = time.monotonic()
        self._session.require_process()
        self._session.require_loop()
        if self._starting is not None:
            await end_start(self._starting, timeout)
        return await self._consumption.close(timeout - (time.monotonic() - begun))


class Subscribed:
    """Messages of a group to iterate over.

    Asking for the next message acknowledges the one before, unless it was settled or given to `process`; with
    `auto_ack=False` only that settles it, which several tasks that share it need.
    """

    def __init__(self, stream: Stream, idle_timeout: float | None) -> None:
        self.stream = stream
        """For the other face, which takes from it in the caller's thread."""
        self.idle_timeout = idle_timeout

    @property
    def group(self) -> str:
        """That it is a member of."""
        return self.stream.core.options.group

    @property
    def is_closed(self) -> bool:
        """Also while its close is under way."""
        return self.stream.is_closed

    @property
    def queues(self) -> frozenset[Queue]:
        """Its share of the queues now."""
        return frozenset(self.stream.core.buffers)

    def __aiter__(self) -> Self:
        self.stream.core.session.require_process()
        self.stream.begin_again()
        return self

    async def __anext__(self) -> ReceivedMessage:
        delivery = await self.stream.take(self.idle_timeout)
        if delivery is None:
            raise StopAsyncIteration
        return ReceivedMessage(delivery)

    async def start(self) -> None:
        """Joins the group, which the first message asked for does too. Safe to call twice."""
        await self.stream.start()

    def pause(self, queues: Iterable[Queue] | None = None) -> None:
        """Takes nothing of these queues, or of any, until resumed; they stay its own."""
        self.stream.core.session.require_loop()
        self.stream.core.pause(queues)

    def resume(self, queues: Iterable[Queue] | None = None) -> None:
        """Goes on with these queues, or with all."""
        self.stream.core.session.require_loop()
        self.stream.core.resume(queues)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """Waits for what is being processed, commits and leaves the group. Safe to call twice."""
        self.stream.core.session.require_process()
        self.stream.core.session.require_loop()
        return await self.stream.close(timeout)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Puller(PullConsumer):
    """Reads queues that the caller names. What `poll` returned counts as read; `commit` makes it known."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Consuming:
    """The consumers of a client."""

    _session: Session

    def __init__(self) -> None:
        self._declared: list[Consumer] = []
        self._opened: list[Subscribed | Puller] = []
        self._is_consuming = False

    def consumer(
        self, topic: str | Iterable[str], *, group: str, **options: Unpack[HandlerKeywords]
    ) -> Callable[[Handler], Consumer]:
        """Declares a handler; it begins with the client, or at once where that has begun.

        A coroutine function runs as a task, a plain one in a thread, up to `concurrency` at a time. To return
        acknowledges, an exception retries, `Retry` says when and `Reject` sends to the dead letters.
        """
        checked = consumer_options(topic, group, options)

        def declare(handler: Handler) -> Consumer:
            self._require_free(group)
            if self._is_consuming:
                self._session.require_usable()
            caller = HandlerCaller(handler, group)
            consumer = Consumer(self._session, handler, HandlerConsumer(self._session, checked, caller))
            self._declared.append(consumer)
            if self._is_consuming:
                consumer._start_soon()
            return consumer

        return declare

    def subscribe(
        self,
        topic: str | Iterable[str],
        *,
        group: str,
        auto_ack: bool = True,
        idle_timeout: float | None = None,
        **options: Unpack[ConsumerKeywords],
    ) -> Subscribed:
        """Messages to iterate over; the iteration ends when it is closed, or after `idle_timeout` seconds in
        which none came."""
        checked = consumer_options(topic, group, options)
        self._require_free(group)
        subscribed = Subscribed(Stream(self._session, checked, auto_ack=auto_ack), idle_timeout)
        self._opened.append(subscribed)
        return subscribed

    def puller(
        self,
        *,
        group: str | None = None,
        tags: str | Iterable[str] | None = None,
        sql: str | None = None,
        function: str | None = None,
        start: Position = "end",
        buffer_count: int = 1000,
        buffer_bytes: int = 100 * 1024 * 1024,
    ) -> Puller:
        """Reads queues that are assigned to it; `group` is needed to commit."""
        self._require_open()
        try:
            limits = Limits(buffer_count, buffer_bytes, 2**62)
            puller = Puller(
                self._session, group=group, tags=tags, sql=sql, function=function, start=start, limits=limits
            )
        except ValueError as error:
            raise UsageError(str(error)) from None
        self._opened.append(puller)
        return puller

    async def run(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Consumes until SIGTERM or SIGINT comes, then closes within the time. For the main thread."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        # Before the start: of several consumers the first has messages in hand while the others begin.
        for number in signals:
            loop.add_signal_handler(number, ended.set)
        try:
            try:
                await self.start()
                await ended.wait()
            finally:
                await self.close(timeout)
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    async def start(self) -> None:
        raise NotImplementedError

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        raise NotImplementedError

    def _require_free(self, group: str) -> None:
        """Brokers know one member of a group per client. Raises UsageError or ClientClosed."""
        self._require_open()
        self._declared = [consumer for consumer in self._declared if not consumer.is_closed]
        self._opened = [opened for opened in self._opened if not opened.is_closed]
        # A puller is no member of its group, so it takes nobody's place.
        taken = {opened.group for opened in self._opened if isinstance(opened, Subscribed)}
        if group in taken.union(consumer.group for consumer in self._declared):
            raise UsageError(
                f"this client has a consumer of group {group} already",
                hint="raise its concurrency, name several topics, or make another client",
            )

    def _require_open(self) -> None:
        if self._session.closed:
            raise ClientClosed("this client is closed", hint="make another one")
        self._session.require_process()

    async def _start_consumers(self) -> None:
        self._is_consuming = True
        for consumer in self._declared:
            await consumer.start()

    async def _close_consumers(self, timeout: float) -> None:
        self._is_consuming = False
        closings = [consumer.close(timeout) for consumer in self._declared]
        closings += [opened.close(timeout) for opened in self._opened if isinstance(opened, Subscribed)]
        pullers = [opened.close() for opened in self._opened if isinstance(opened, Puller)]
        for outcome in await asyncio.gather(*closings, *pullers, return_exceptions=True):
            if isinstance(outcome, Exception):
                _log.error("a consumer did not close", exc_info=outcome)
        self._declared.clear()
        self._opened.clear()


class HandlerCaller:
    """Calls a handler: a coroutine function in the worker's task, a plain one in a thread, never on the event
    loop, which a slow one would stop."""

    def __init__(self, handler: Handler, group: str) -> None:
        if not callable(handler):
            raise UsageError(f"a handler is a function, not {type(handler).__name__}")
        self._handler = handler
        self.is_plain = not inspect.iscoroutinefunction(handler)
        # For the parked messages and for what a broker wants to be tried.
        self._threads = DaemonThreads(2, f"metaq {group}") if self.is_plain else None

    async def call(self, argument: Any) -> None:
        outcome = (
            self._handler(argument)
            if self._threads is None
            else await self._threads.run(self._handler, argument)
        )
        if inspect.isawaitable(outcome):
            await outcome

    def call_here(self, argument: Any, loop: asyncio.AbstractEventLoop) -> None:
        outcome = self._handler(argument)
        if outcome is not None and inspect.isawaitable(outcome):
            asyncio.run_coroutine_threadsafe(_awaited(outcome), loop).result()

    def close(self) -> None:
        if self._threads is not None:
            self._threads.stop()


async def _awaited(outcome: Awaitable[Any]) -> Any:
    return await outcome


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("a consumer did not start", exc_info=task.exception())
