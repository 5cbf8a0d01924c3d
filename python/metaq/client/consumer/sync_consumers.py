"""The consumers of `metaq.Client`: the same names and signatures as on asyncio, with calls that wait.

Handlers run in threads of their own. The client's thread only pulls, commits and sends heartbeats.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from metaq.client.consumer import aio_consumers
from metaq.client.consumer.iteration import Unsettled
from metaq.client.consumer.offsets.positions import Position
from metaq.client.consumer.received_handler import HandledMessage
from metaq.client.consumer.replying import SENT
from metaq.client.consumer.subscription import Reject, retry_seconds
from metaq.client.lifecycle import CLOSE_TIMEOUT_S, Closable, Startable
from metaq.client.message import Message
from metaq.client.portal import Portal
from metaq.client.session.routes import Queue
from metaq.client.stderr_fallback import once

if TYPE_CHECKING:
    from typing_extensions import Buffer

_log = logging.getLogger(__name__)


class ReceivedMessage(Message):
    """A message that you settle with `process`, `ack`, `retry` or `reject`.

    Iterations give it, and a handler gets it if its parameter is annotated with this class.
    """

    __slots__ = ("_delivery", "_portal")
    _delivery: Unsettled
    _portal: Portal

    def __new__(cls, delivery: Unsettled, portal: Portal) -> Self:
        self = super().__new__(cls, delivery.message)
        self._delivery = delivery
        self._portal = portal
        return self

    def process(self) -> Processing:
        """Opens a block that acknowledges the message at its end.

        An exception retries the message; `Retry` and `Reject` work as in a handler. The exception is logged
        and does not leave the block, so the loop continues.
        """
        self._delivery.is_processed = True
        return Processing(self)

    def ack(self) -> None:
        """Acknowledges the message: it will not come again."""
        self._delivery.ack()

    def retry(self, after: float | timedelta | None = None) -> None:
        """Lets the message come again, after that many seconds or that timedelta if given."""
        self._portal.run(self._delivery.retry, retry_seconds(after))

    def reject(self, reason: str = "") -> None:
        """Sends the message to the group's dead letters, which keep the reason."""
        self._portal.run(self._delivery.reject, Reject(reason))

    def reply(self, body: Buffer) -> Awaitable[None]:
        """Replies to a message that was sent with `request`. Returns when the broker has taken the reply.

        Raises InvalidMessage if the message is not a request.
        """
        if isinstance(self._delivery, HandledMessage):
            return self._delivery.reply(self, body)
        self._portal.run(self._delivery.send_reply, self, body)
        return SENT


Handler = Callable[[Message], None] | Callable[[ReceivedMessage], None]
"""Takes a message. It returns None, so that type checkers refuse coroutine functions."""
BatchHandler = Callable[[list[Message]], None] | Callable[[list[ReceivedMessage]], None]
"""Takes a list of messages, with the option `batch`."""
AnyHandler = Callable[[Any], None]
"""Takes either, if a type checker cannot know whether `batch` is given."""


class Processing:
    """The block of `ReceivedMessage.process`."""

    __slots__ = ("_message", "_telemetry")

    def __init__(self, message: ReceivedMessage) -> None:
        self._message = message
        self._telemetry = message._delivery.processing()

    def __enter__(self) -> None:
        self._telemetry.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._telemetry.__exit__(kind, error, trace)
        message = self._message
        if error is None:
            message.ack()
            return False
        if not isinstance(error, Exception):
            message._delivery.give_back()  # Interrupted: that does not count as a failure.
            return False
        _log.warning(
            "processing of %s failed", message.id, exc_info=error, extra=once("process", message.topic)
        )
        message._portal.run(message._delivery.end, error)
        return True


class Consumer:
    """A handler and its consumer group. You can call it like the handler itself, for example in a test."""

    def __init__(self, portal: Portal, consumer: aio_consumers.Consumer) -> None:
        self.handler = consumer.handler
        self._portal = portal
        self._consumer = consumer

    def __call__(self, message: Message | list[Message]) -> Any:
        return self.handler(message)

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._consumer.group

    @property
    def is_closed(self) -> bool:
        """Whether it is closed or closing."""
        return self._consumer.is_closed

    @property
    def queues(self) -> frozenset[Queue]:
        """The queues that this consumer reads now."""
        return self._portal.call(lambda: self._consumer.queues)

    def start(self, wait: float | None = None) -> None:
        """Joins the group. Safe to call twice.

        With `wait`, waits up to that many seconds until it has its share of every topic, and closes and
        raises the reason if it has not.
        """
        self._portal.run(self._consumer.start, wait)

    def pause(self, queues: Iterable[Queue] | None = None) -> None:
        """Stops taking messages of these queues, or of all, until they are resumed. It keeps the queues."""
        self._portal.call(lambda: self._consumer.pause(queues))

    def resume(self, queues: Iterable[Queue] | None = None) -> None:
        """Continues with these queues, or with all."""
        self._portal.call(lambda: self._consumer.resume(queues))

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """Stops pulling, waits for running handlers, commits and leaves the group, all within the timeout.

        Returns False if handlers were still running; their messages come again. Safe to call twice.
        """
        return self._portal.run(self._consumer.close, timeout)


class Subscribed(Startable):
    """The messages of a group, to iterate over.

    To ask for the next message acknowledges the one before, unless you settled it or opened its `process`
    block. With `auto_ack=False` you must settle every message, which is necessary if several threads share
    the iteration.
    """

    def __init__(self, portal: Portal, subscribed: aio_consumers.Subscribed) -> None:
        self._portal = portal
        self._subscribed = subscribed

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._subscribed.group

    @property
    def is_closed(self) -> bool:
        """Whether it is closed or closing."""
        return self._subscribed.is_closed

    @property
    def queues(self) -> frozenset[Queue]:
        """The queues that it reads now."""
        return self._portal.call(lambda: self._subscribed.queues)

    def __iter__(self) -> Self:
        self._portal.require_own_process()
        self._subscribed._stream.begin_again()
        return self

    def __next__(self) -> ReceivedMessage:
        stream = self._subscribed._stream
        self._portal.require_own_process()
        if not stream.is_started:
            self._portal.run(self._subscribed.start)
        delivery = stream.take_waiting(self._subscribed._idle_timeout)
        if delivery is None:
            raise StopIteration
        return ReceivedMessage(delivery, self._portal)

    def start(self, wait: float | None = None) -> None:
        """Joins the group. The first message that you ask for does that too. Safe to call twice.

        With `wait`, waits up to that many seconds until it has its share of every topic, and closes and
        raises the reason if it has not.
        """
        self._portal.run(self._subscribed.start, wait)

    def pause(self, queues: Iterable[Queue] | None = None) -> None:
        """Stops taking messages of these queues, or of all, until they are resumed. It keeps the queues."""
        self._portal.call(lambda: self._subscribed.pause(queues))

    def resume(self, queues: Iterable[Queue] | None = None) -> None:
        """Continues with these queues, or with all."""
        self._portal.call(lambda: self._subscribed.resume(queues))

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """Waits for messages that are being processed, commits and leaves the group. Safe to call twice.

        Returns False if some were not settled within the timeout; they come again.
        """
        return self._portal.run(self._subscribed.close, timeout)


class Puller(Closable):
    """Reads queues that you assign. Messages that `poll` returned count as read; `commit` stores how far."""

    def __init__(self, portal: Portal, puller: aio_consumers.Puller) -> None:
        self._portal = portal
        self._puller = puller

    @property
    def is_closed(self) -> bool:
        """Whether it is closed or closing."""
        return self._puller.is_closed

    @property
    def queues(self) -> list[Queue]:
        """The queues that are assigned to it."""
        return self._portal.call(lambda: self._puller.queues)

    def position(self, queue: Queue) -> int:
        """Returns the offset of the message of this queue that `poll` gives next. Raises UsageError."""
        return self._portal.call(lambda: self._puller.position(queue))

    def assign(self, *what: str | Queue) -> list[Queue]:
        """Reads these queues, or all queues of these topics, and no others. Returns the queues.

        A new queue starts at the group's committed offset, or at `start` if there is none. Raises NoRoute for
        a topic that does not exist.
        """
        return self._portal.run(self._puller.assign, *what)

    def seek(self, position: Position, *queues: Queue) -> None:
        """Lets the next `poll` read from a position, in these queues or in all that are assigned.

        A position is "earliest", "latest", a datetime or a queue offset.
        """
        self._portal.run(self._puller.seek, position, *queues)

    def poll(self, timeout: float = 1.0, *, count: int = 32) -> list[Message]:
        """Returns up to `count` messages as soon as there are any; an empty list if the timeout passes.

        Raises Refused if the broker refused the pull, and UnreadableBody once for each message that cannot be
        decompressed.
        """
        self._portal.require_usable()
        return self._puller.poll_waiting(timeout, count)

    def commit(self) -> dict[Queue, int]:
        """Commits how far every queue was polled, and returns the offsets.

        Raises UsageError without a group, and MetaqError if a broker did not store an offset.
        """
        return self._portal.run(self._puller.commit)

    def committed(self, queue: Queue) -> int | None:
        """Returns the offset that the group has committed for a queue, or None."""
        return self._portal.run(self._puller.committed, queue)

    def pause(self, queues: Iterable[Queue] | None = None) -> None:
        """Makes `poll` skip these queues, or all queues, until they are resumed."""
        self._portal.call(lambda: self._puller.pause(queues))

    def resume(self, queues: Iterable[Queue] | None = None) -> None:
        """Continues with these queues, or with all."""
        self._portal.call(lambda: self._puller.resume(queues))

    def close(self) -> None:
        """Stops reading. Does not commit. Safe to call twice."""
        self._portal.run(self._puller.close)
