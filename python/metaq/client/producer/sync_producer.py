"""The producer for plain code: each call waits for what the one on asyncio does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from metaq._core import SendFuture
from metaq.client.message import Message
from metaq.client.portal import Portal, require_plain
from metaq.client.producer import producer as aio
from metaq.client.producer import transactions
from metaq.client.producer.options import MessageOptions
from metaq.client.producer.results import SendResult
from metaq.client.producer.send_buffer import PLAIN_OPTIONS
from metaq.client.session.routes import Queue
from metaq.errors import NotDelivered

_Checker = TypeVar("_Checker", bound=Callable[[Message], bool | None])


class Producer:
    """Sends messages as a member of a group. Made by `Client.producer`; a context manager.

    Sends are tried again, on another broker where there is one, until their time is over. One that fails may
    be stored all the same, where only its answer was lost: a message is delivered at least once.
    """

    def __init__(self, portal: Portal, producer: aio.Producer) -> None:
        self._portal = portal
        self._producer = producer
        self._telemetry = producer._session.telemetry
        self._put: Callable[..., SendFuture | None] = _not_started

    @property
    def group(self) -> str:
        """What it produces for; its members answer for each other's transactions."""
        return self._producer.group

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        key: str | None = None,
        queue: Queue | None = None,
        delay: timedelta | float | None = None,
        deliver_at: datetime | None = None,
        priority: int | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Sends one message and waits until its broker has stored it.

        Messages with the same `key` go to the same queue. Raises InvalidMessage, NoRoute, Refused, NotSent,
        and NotDurable for what is stored less safely than the broker was set up to.
        """
        return self._portal.run(
            self._producer.send,
            topic,
            body,
            tag=tag,
            keys=keys,
            properties=properties,
            key=key,
            queue=queue,
            delay=delay,
            deliver_at=deliver_at,
            priority=priority,
            timeout=timeout,
        )

    def send_soon(self, topic: str, body: bytes, **options: Unpack[MessageOptions]) -> SendFuture:
        """Takes a message into the buffer, from where it is sent with others, and gives its future.

        Waits only while the buffer is full. What failed is also told by `flush` and `close`.
        """
        # Whatever is not plainly right is looked at more closely below, and told there.
        future: SendFuture | None = None
        if self._telemetry.is_heard:
            pass
        elif not options:
            future = self._put(topic, body)
        elif options.keys() <= PLAIN_OPTIONS:
            # One by one: a call with ** would make two more dicts of them.
            future = self._put(topic, body, options.get("tag"), options.get("keys"), options.get("key"))
        return future if future is not None else self._send_soon(topic, body, options)

    def _send_soon(self, topic: str, body: bytes, options: MessageOptions) -> SendFuture:
        self._portal.require_usable()
        soon = self._producer._open_soon()
        wanted = soon.order(topic, body, **options)
        with self._telemetry.sending_later(self.group, wanted.message) as sending:
            queue = soon.known_queue_of(wanted)
            if queue is None and wanted.key is not None:
                queue = self._portal.run(soon.queue_of, wanted)
            future = soon.take(wanted, queue)
            sending.follow(future)
        return future

    def send_oneway(self, topic: str, body: bytes, **options: Unpack[MessageOptions]) -> None:
        """Sends one message and waits for no answer: whether it was stored is never known."""
        self._portal.run(self._with_options, self._producer.send_oneway, topic, body, options)

    def send_many(
        self,
        messages: Iterable[Message],
        *,
        key: Callable[[Message], str] | None = None,
        queue: Queue | None = None,
        timeout: float | None = None,
    ) -> list[SendResult]:
        """Sends many in few requests: those for one queue together, as many as a request may hold.

        Without `key`, which gives the sharding key of each, those of one topic go to one queue. Results are
        in the order of the messages. Raises NotAllSent, with what became of each, where some were not sent.
        """
        # Theirs to iterate, in their own thread.
        everything = list(messages)
        keys = None if key is None else {id(message): key(message) for message in everything}
        return self._portal.run(
            self._producer.send_many,
            everything,
            key=None if keys is None else lambda message: keys[id(message)],
            queue=queue,
            timeout=timeout,
        )

    def request(self, topic: str, body: bytes, **options: Unpack[MessageOptions]) -> Message:
        """Sends a message and waits for the answer of whoever consumes it; raises NoReply."""
        answer: Message = self._portal.run(self._with_options, self._producer.request, topic, body, options)
        return answer

    def reply(self, request: Message, body: bytes) -> None:
        """Answers a message that was sent with `request`."""
        self._portal.run(self._producer.reply, request, body)

    def recall(self, topic: str, handle: str | None) -> str:
        """Takes back a message that waits for its time, by the `recall_handle` of its result; its id.

        Raises InvalidMessage where its result has none, Refused where it was delivered already, or the broker
        does not allow it.
        """
        return self._portal.run(self._producer.recall, topic, handle)

    def check(self, checker: _Checker) -> _Checker:
        """Registers what tells brokers how a transaction ended, after a crash for instance; a decorator.

        It gets the message and returns True to commit, False to roll back, None if it is not known yet. It
        runs in a thread of its own.
        """
        require_plain(checker)
        self._producer.check(checker)
        return checker

    def transaction(self, topic: str, body: bytes, **options: Unpack[MessageOptions]) -> Transaction:
        """A message that consumers get if the block below `with` ends, and not if it raises."""
        return Transaction(self._portal, self._portal.run(self._transaction, topic, body, options))

    async def _transaction(
        self, topic: str, body: bytes, options: MessageOptions
    ) -> transactions.Transaction:
        return self._producer.transaction(topic, body, **options)

    def start(self) -> None:
        """Joins the group. Safe to call twice."""
        self._portal.run(self._producer.start)
        self._put = self._producer._open_soon().buffer.put

    def flush(self, timeout: float | None = None) -> None:
        """Waits until what `send_soon` took is sent and its callbacks have run; raises NotDelivered for what
        failed since the last. Called by a callback, it waits for no other."""
        self._portal.run(self._producer.flush, timeout)

    def close(self, timeout: float = aio.CLOSE_TIMEOUT_S) -> None:
        """Flushes, gives up what is left after the time-out, leaves the group. Safe to call twice.

        Raises NotDelivered where something was not sent; the producer is closed all the same.
        """
        self._put = _not_started
        if self._portal.usable:
            self._portal.run(self._producer.close, timeout)

    def __enter__(self) -> Self:
        self.start()
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

    async def _with_options(
        self, function: Callable[..., Awaitable[Any]], topic: str, body: bytes, options: MessageOptions
    ) -> Any:
        return await function(topic, body, **options)


def _not_started(*_: Any) -> None:
    return None


class Transaction:
    """One of them: committed at the end of its block, rolled back where the block raises.

    `commit` and `rollback` decide earlier; after `leave` the broker will ask the checker.
    """

    def __init__(self, portal: Portal, transaction: transactions.Transaction) -> None:
        self._portal = portal
        self._transaction = transaction

    @property
    def id(self) -> str:
        """That of its message."""
        return self._transaction.id

    def commit(self) -> None:
        """From now on consumers get the message; raises Undecided."""
        self._portal.run(self._transaction.commit)

    def rollback(self) -> None:
        """No consumer will ever see the message; raises Undecided."""
        self._portal.run(self._transaction.rollback)

    def leave(self) -> None:
        """Decides nothing: the broker will ask the checker."""
        self._portal.run(self._transaction.leave)

    def __enter__(self) -> Self:
        self._portal.run(self._transaction.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.run(self._transaction.__aexit__, kind, error, trace)
