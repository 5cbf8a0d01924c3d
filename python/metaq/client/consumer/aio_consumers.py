"""The consumers of `metaq.aio.Client`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from metaq.client.consumer.handler import HandlerConsumer
from metaq.client.consumer.iteration import Stream, Unsettled
from metaq.client.consumer.pull.pull_consumer import PullConsumer
from metaq.client.consumer.subscription import Reject, retry_seconds
from metaq.client.lifecycle import (
    CLOSE_TIMEOUT_S,
    AsyncClosable,
    AsyncStartable,
    CloseDeadline,
    OpenMark,
    SharedStart,
)
from metaq.client.message import Message
from metaq.client.producer.options import check_timeout
from metaq.client.session.routes import Queue
from metaq.client.session.session import Session
from metaq.client.stderr_fallback import once
from metaq.errors import MetaqError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_log = logging.getLogger(__name__)


class ReceivedMessage(Message):
    """A message that you settle with `process`, `ack`, `retry` or `reject`.

    Iterations give it, and a handler gets it if its parameter is annotated with this class.
    """

    __slots__ = ("_delivery",)
    _delivery: Unsettled

    def __new__(cls, delivery: Unsettled) -> Self:
        self = super().__new__(cls, delivery.message)
        self._delivery = delivery
        return self

    def process(self) -> Processing:
        """Opens a block that acknowledges the message at its end.

        An exception retries the message; `Retry` and `Reject` work as in a handler. The exception is logged
        and does not leave the block, so the loop continues.
        """
        self._delivery.is_processed = True
        return Processing(self)

    async def ack(self) -> None:
        """Acknowledges the message: it will not come again."""
        self._delivery.ack()

    async def retry(self, after: float | timedelta | None = None) -> None:
        """Lets the message come again, after that many seconds or that timedelta if given."""
        await self._delivery.retry(retry_seconds(after))

    async def reject(self, reason: str = "") -> None:
        """Sends the message to the group's dead letters, which keep the reason."""
        await self._delivery.reject(Reject(reason))

    def reply(self, body: Buffer) -> Awaitable[None]:
        """Replies to a message that was sent with `request`. It sends at once; await what it returns.

        Raises InvalidMessage if the message is not a request.
        """
        return self._delivery.reply(self, body)


Handler = (
    Callable[[Message], Awaitable[object] | None] | Callable[[ReceivedMessage], Awaitable[object] | None]
)
"""Takes a message. What a coroutine function returns is ignored; a plain function returns None."""
BatchHandler = (
    Callable[[list[Message]], Awaitable[object] | None]
    | Callable[[list[ReceivedMessage]], Awaitable[object] | None]
)
"""Takes a list of messages, with the option `batch`."""
AnyHandler = Callable[[Any], Awaitable[object] | None]
"""Takes either, if a type checker cannot know whether `batch` is given."""


class Processing:
    """The block of `ReceivedMessage.process`."""

    __slots__ = ("_message", "_telemetry")

    def __init__(self, message: ReceivedMessage) -> None:
        self._message = message
        self._telemetry = message._delivery.processing()

    async def __aenter__(self) -> None:
        self._telemetry.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._telemetry.__exit__(kind, error, trace)
        message = self._message
        if isinstance(error, Exception):
            _log.warning(
                "processing of %s failed", message.id, exc_info=error, extra=once("process", message.topic)
            )
        await message._delivery.end(error)
        return isinstance(error, Exception)


class Consumer:
    """A handler and its consumer group. You can call it like the handler itself, for example in a test."""

    def __init__(self, session: Session, handler: AnyHandler, consumption: HandlerConsumer) -> None:
        self.handler = handler
        self._session = session
        self._consumption = consumption
        self._starting = SharedStart(self._start, "start of a consumer")
        self._open_mark: OpenMark | None = None

    def __call__(self, message: Message | list[Message]) -> Any:
        return self.handler(message)

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._consumption.member.options.group

    @property
    def is_closed(self) -> bool:
        """Whether it is closed or closing."""
        return self._consumption.is_closed

    @property
    def queues(self) -> frozenset[Queue]:
        """The queues that this consumer reads now."""
        return self._consumption.queues

    async def start(self, wait: float | None = None) -> None:
        """Joins the group. Safe to call twice.

        With `wait`, waits up to that many seconds until it has its share of every topic, and closes and
        raises the reason if it has not.
        """
        self._session.require_usable()
        if wait is not None:
            check_timeout(wait, "wait")
        self._start_soon()
        await self._starting.run()
        if wait is not None and not self.is_closed:
            try:
                await self._consumption.member.wait_until_ready(wait)
            except MetaqError:
                await self.close(0)
                raise

    def _start_soon(self) -> None:
        """Starts without waiting. A failure is logged, and `start` raises it."""
        if not self._starting.has_begun:
            self._starting.begin().add_done_callback(_log_failed_start)

    async def _start(self) -> None:
        try:
            await self._consumption.start()
        except Exception:
            await self._consumption.close(0)
            raise

    def pause(self, queues: Iterable[Queue] | None = None) -> None:
        """Stops taking messages of these queues, or of all, until they are resumed. It keeps the queues."""
        self._session.require_loop()
        self._consumption.pause(queues)

    def resume(self, queues: Iterable[Queue] | None = None) -> None:
        """Continues with these queues, or with all."""
        self._session.require_loop()
        self._consumption.resume(queues)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """Stops pulling, waits for running handlers, commits and leaves the group, all within the timeout.

        Returns False if handlers were still running; their messages come again. Safe to call twice.
        """
        begun = time.monotonic()
        self._session.require_process()
        self._session.require_loop()
        await self._starting.end(CloseDeadline(timeout).for_handlers())
        return await self._consumption.close(timeout - (time.monotonic() - begun))


class Subscribed(AsyncStartable):
    """The messages of a group, to iterate over.

    To ask for the next message acknowledges the one before, unless you settled it or opened its `process`
    block. With `auto_ack=False` you must settle every message, which is necessary if several tasks share the
    iteration.
    """

    def __init__(self, stream: Stream, idle_timeout: float | None) -> None:
        self._stream = stream
        self._idle_timeout = idle_timeout
        self._open_mark: OpenMark | None = None

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._stream.member.options.group

    @property
    def is_closed(self) -> bool:
        """Whether it is closed or closing."""
        return self._stream.is_closed

    @property
    def queues(self) -> frozenset[Queue]:
        """The queues that it reads now."""
        return frozenset(self._stream.member.prefetch.buffers)

    def __aiter__(self) -> Self:
        self._stream.member.session.require_process()
        self._stream.begin_again()
        return self

    async def __anext__(self) -> ReceivedMessage:
        delivery = await self._stream.take(self._idle_timeout)
        if delivery is None:
            raise StopAsyncIteration
        return ReceivedMessage(delivery)

    async def start(self, wait: float | None = None) -> None:
        """Joins the group. The first message that you ask for does that too. Safe to call twice.

        With `wait`, waits up to that many seconds until it has its share of every topic, and closes and
        raises the reason if it has not.
        """
        if wait is not None:
            check_timeout(wait, "wait")
        await self._stream.start()
        if wait is not None and not self.is_closed:
            try:
                await self._stream.member.wait_until_ready(wait)
            except MetaqError:
                await self.close(0)
                raise

    def pause(self, queues: Iterable[Queue] | None = None) -> None:
        """Stops taking messages of these queues, or of all, until they are resumed. It keeps the queues."""
        self._stream.member.session.require_loop()
        self._stream.member.prefetch.pause(queues)

    def resume(self, queues: Iterable[Queue] | None = None) -> None:
        """Continues with these queues, or with all."""
        self._stream.member.session.require_loop()
        self._stream.member.prefetch.resume(queues)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """Waits for messages that are being processed, commits and leaves the group. Safe to call twice.

        Returns False if some were not settled within the timeout; they come again.
        """
        self._stream.member.session.require_process()
        self._stream.member.session.require_loop()
        return await self._stream.close(timeout)


class Puller(PullConsumer, AsyncClosable):
    """Reads queues that you assign. Messages that `poll` returned count as read; `commit` stores how far."""

    _open_mark: OpenMark | None = None


def _log_failed_start(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("a consumer did not start", exc_info=task.exception(), extra=once("start", task))
