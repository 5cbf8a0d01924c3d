"""Consumers as plain code sees them: the same names and signatures, and calls that wait.

Handlers run in threads of their own; the client's thread only pulls, commits and beats.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar, Unpack

from metaq.client import aio
from metaq.client.consumer import aio_consumers as consumers_aio
from metaq.client.consumer.handler import CLOSE_TIMEOUT_S
from metaq.client.consumer.iteration import Delivery
from metaq.client.consumer.options import ConsumerKeywords, HandlerKeywords
from metaq.client.consumer.pull_consumer import Position
from metaq.client.message import Message
from metaq.client.portal import Portal, require_plain
from metaq.client.session.routes import Queue

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

Handler = Callable[[Any], object]
"""Takes a message, or with `batch` a list of them."""


class ReceivedMessage(Message):
    """A message of an iteration."""

    __slots__ = ("_delivery", "_portal")
    _delivery: Delivery
    _portal: Portal

    def __new__(cls, delivery: Delivery, portal: Portal) -> Self:
        self = super().__new__(cls, delivery.message)
        self._delivery = delivery
        self._portal = portal
        return self

    def process(self) -> Processing:
        """Acknowledges at its end; an exception retries, `Retry` and `Reject` as in a handler. The exception
        does not leave the block, so that the loop goes on."""
        self._delivery.is_processed = True
        return Processing(self)

    def ack(self) -> None:
        """It is done with."""
        self._delivery.ack()

    def retry(self, after: float | None = None) -> None:
        """It comes again."""
        self._portal.run(self._delivery.retry, after)

    def reject(self) -> None:
        """It goes to the dead letters."""
        self._portal.run(self._delivery.reject)


class Processing:
    """A block in which a message is processed."""

    __slots__ = ("_message", "_told")

    def __init__(self, message: ReceivedMessage) -> None:
        self._message = message
        self._told = message._delivery.processing()

    def __enter__(self) -> None:
        self._told.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._told.__exit__(kind, error, trace)
        message = self._message
        if error is None:
            message.ack()
            return False
        if not isinstance(error, Exception):
            message._delivery.give_back()  # Interrupted: it is nobody's fault.
            return False
        _log.warning("processing of %s failed", message.id, exc_info=error)
        message._portal.run(message._delivery.end, error)
        return True


class Consumer:
    """A handler and the group it works for. Calling it calls the handler, for instance in a test."""

    def __init__(self, portal: Portal, consumer: consumers_aio.Consumer) -> None:
        self.handler = consumer.handler
        self._portal = portal
        self._consumer = consumer

    def __call__(self, message: Any) -> Any:
        return self.handler(message)

    @property
    def group(self) -> str:
        """That it is a member of."""
        return self._consumer.group

    @property
    def is_closed(self) -> bool:
        """Also while its close is under way."""
        return self._consumer.is_closed

    @property
    def queues(self) -> frozenset[Queue]:
        """Its share of the queues now."""
        return _on_loop(self._portal, lambda: self._consumer.queues)

    def start(self) -> None:
        """Joins the group. Safe to call twice."""
        self._portal.run(self._consumer.start)

    def pause(self, queues: Iterable[Queue] | None = None) -> None:
        """Takes nothing of these queues, or of any, until resumed; they stay this consumer's."""
        _on_loop(self._portal, lambda: self._consumer.pause(queues))

    def resume(self, queues: Iterable[Queue] | None = None) -> None:
        """Goes on with these queues, or with all."""
        _on_loop(self._portal, lambda: self._consumer.resume(queues))

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """Stops pulling, lets what is in hand end, commits and leaves the group, within the time.

        False where handlers were still at work: their messages come again. Safe to call twice.
        """
        return self._portal.run(self._consumer.close, timeout)


class Subscribed:
    """Messages of a group to iterate over.

    Asking for the next message acknowledges the one before, unless it was settled or given to `process`; with
    `auto_ack=False` only that settles it, which several threads that share it need.
    """

    def __init__(self, portal: Portal, subscribed: consumers_aio.Subscribed) -> None:
        self._portal = portal
        self._subscribed = subscribed

    @property
    def group(self) -> str:
        """That it is a member of."""
        return self._subscribed.group

    @property
    def is_closed(self) -> bool:
        """Also while its close is under way."""
        return self._subscribed.is_closed

    @property
    def queues(self) -> frozenset[Queue]:
        """Its share of the queues now."""
        return _on_loop(self._portal, lambda: self._subscribed.queues)

    def __iter__(self) -> Self:
        self._portal.require_own_process()
        self._subscribed.stream.begin_again()
        return self

    def __next__(self) -> ReceivedMessage:
        stream = self._subscribed.stream
        self._portal.require_own_process()
        if not stream.is_started:
            self._portal.run(self._subscribed.start)
        delivery = stream.take_waiting(self._subscribed.idle_timeout)
        if delivery is None:
            raise StopIteration
        return ReceivedMessage(delivery, self._portal)

    def start(self) -> None:
        """Joins the group, which the first message asked for does too. Safe to call twice."""
        self._portal.run(self._subscribed.start)

    def pause(self, queues: Iterable[Queue] | None = None) -> None:
        """Takes nothing of these queues, or of any, until resumed; they stay its own."""
        _on_loop(self._portal, lambda: self._subscribed.pause(queues))

    def resume(self, queues: Iterable[Queue] | None = None) -> None:
        """Goes on with these queues, or with all."""
        _on_loop(self._portal, lambda: self._subscribed.resume(queues))

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """Waits for what is being processed, commits and leaves the group. Safe to call twice."""
        return self._portal.run(self._subscribed.close, timeout)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Puller:
    """Reads queues that the caller names. What `poll` returned counts as read; `commit` makes it known."""

    def __init__(self, portal: Portal, puller: consumers_aio.Puller) -> None:
        self._portal = portal
        self._puller = puller

    @property
    def is_closed(self) -> bool:
        """Also while its close is under way."""
        return self._puller.is_closed

    @property
    def queues(self) -> list[Queue]:
        """What is assigned to it."""
        return _on_loop(self._portal, lambda: self._puller.queues)

    def position(self, queue: Queue) -> int:
        """The offset of the message that `poll` gives next of this queue; raises UsageError."""
        return _on_loop(self._portal, lambda: self._puller.position(queue))

    def assign(self, *what: str | Queue) -> list[Queue]:
        """Reads these queues, or all queues of topics, and no others. Each begins at the group's offset, or
        where it has none at `start`. Raises NoRoute for a topic that is not there."""
        return self._portal.run(self._puller.assign, *what)

    def seek(self, position: Position, *queues: Queue) -> None:
        """The next `poll` reads from there, in these queues or in all that are assigned."""
        self._portal.run(self._puller.seek, position, *queues)

    def poll(self, timeout: float = 1.0, *, count: int = 32) -> list[Message]:
        """Up to `count` messages, as soon as there are any; an empty list where none came in time.

        Raises what the broker refused, and UnreadableBody (once) for a message that cannot be decompressed.
        """
        self._portal.require_usable()
        return self._puller.poll_waiting(timeout, count)

    def commit(self) -> dict[Queue, int]:
        """Makes known how far every queue is read; raises MetaqError where a broker did not take it."""
        return self._portal.run(self._puller.commit)

    def committed(self, queue: Queue) -> int | None:
        """What the group committed of a queue; None for nothing."""
        return self._portal.run(self._puller.committed, queue)

    def pause(self, queues: Iterable[Queue] | None = None) -> None:
        """`poll` gives nothing of these queues, or of any, until resumed."""
        _on_loop(self._portal, lambda: self._puller.pause(queues))

    def resume(self, queues: Iterable[Queue] | None = None) -> None:
        """Goes on with these queues, or with all."""
        _on_loop(self._portal, lambda: self._puller.resume(queues))

    def close(self) -> None:
        """Commits nothing by itself. Safe to call twice."""
        self._portal.run(self._puller.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Consuming:
    """The consumers of a client."""

    _portal: Portal
    _client: aio.Client

    def consumer(
        self, topic: str | Iterable[str], *, group: str, **options: Unpack[HandlerKeywords]
    ) -> Callable[[Handler], Consumer]:
        """Declares a handler; it begins with the client, or at once where that has begun.

        It is called in threads, up to `concurrency` at a time. To return acknowledges, an exception retries,
        `Retry` says when and `Reject` sends to the dead letters.
        """
        declare = self._client.consumer(topic, group=group, **options)

        def declare_plain(handler: Handler) -> Consumer:
            require_plain(handler)
            if not self._portal.usable:
                return Consumer(self._portal, declare(handler))
            consumer = Consumer(self._portal, _on_loop(self._portal, lambda: declare(handler)))
            consumer.start()
            return consumer

        return declare_plain

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
        subscribed = self._client.subscribe(
            topic, group=group, auto_ack=auto_ack, idle_timeout=idle_timeout, **options
        )
        return Subscribed(self._portal, subscribed)

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
        puller = self._client.puller(
            group=group,
            tags=tags,
            sql=sql,
            function=function,
            start=start,
            buffer_count=buffer_count,
            buffer_bytes=buffer_bytes,
        )
        return Puller(self._portal, puller)

    def run(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Consumes until SIGTERM or SIGINT comes, then closes within the time. For the main thread."""
        ended = threading.Event()

        def end(number: int, frame: FrameType | None) -> None:
            ended.set()

        before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self.start()
            ended.wait()
        finally:
            self.close(timeout)
            for number, handler in before.items():
                signal.signal(number, handler)

    def start(self) -> None:
        raise NotImplementedError

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        raise NotImplementedError


def _on_loop(portal: Portal, function: Callable[[], _T]) -> _T:
    """Where the state belongs that it reads or changes."""

    async def call() -> _T:
        return function()

    return portal.run(call)
