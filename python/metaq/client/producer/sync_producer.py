"""The producer of `metaq.Client`: each call waits for the producer on asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from metaq._core import SendFuture
from metaq.client.lifecycle import CLOSE_TIMEOUT_S, Startable
from metaq.client.message import Message
from metaq.client.portal import Portal, require_plain
from metaq.client.producer import producer as aio
from metaq.client.producer import transactions
from metaq.client.producer.options import MessageOptions
from metaq.client.producer.results import SendResult
from metaq.client.producer.send_buffer import PLAIN_OPTIONS
from metaq.client.session.routes import Queue
from metaq.errors import InvalidMessage

if TYPE_CHECKING:
    from typing_extensions import Buffer

_Checker = TypeVar("_Checker", bound=Callable[[Message], bool | None])


class Producer(Startable):
    """Sends messages as a member of a producer group. `Client.producer` makes it; use it with `with`.

    A send that fails is tried again, on another broker if there is one, until its timeout. A send that raised
    an error may still be stored, if only the answer was lost: messages are delivered at least once.
    """

    def __init__(self, portal: Portal, producer: aio.Producer) -> None:
        self._portal = portal
        self._producer = producer
        self._telemetry = producer._session.telemetry
        self._put: Callable[..., SendFuture | None] = _not_started

    @property
    def group(self) -> str:
        """The producer group. Its members answer for each other's transactions."""
        return self._producer.group

    def send(self, topic: str, body: Buffer, **options: Unpack[MessageOptions]) -> SendResult:
        """Sends one message and waits until its broker has stored it.

        The options, which default to None or nothing:

        - `tag`: the tag, by which consumers can filter
        - `keys`: keys by which the message can be found
        - `properties`: your own properties
        - `key`: the sharding key; messages with the same key go to the same queue
        - `queue`: the queue, instead of a key
        - `delay`, `deliver_at`: when it is delivered, as a timedelta or seconds from now, or as a datetime; a
          datetime without a time zone is local time of this machine
        - `delay_level`: the same, as a delay level of the broker, from 1 to the producer's `delay_levels_max`
        - `priority`: the priority, 0 or higher
        - `timeout`: seconds for the whole call

        Raises InvalidMessage, NoRoute, Refused or NotSent, and NotDurable if the message is stored less
        safely than the broker is configured to.
        """
        result: SendResult = self._portal.run(self._with_options, self._producer.send, topic, body, options)
        return result

    def send_soon(self, topic: str, body: Buffer, **options: Unpack[MessageOptions]) -> SendFuture:
        """Puts one message into the buffer, which is sent in batches, and returns its future.

        Waits only while the buffer is full, and with a `key` while the broker of its queue has no master. The
        options are those of `send`. Failures are raised by the future, and also by `flush` and `close`.
        """
        # The fast path. It returns None for everything unusual, which `_send_soon` handles and explains.
        future: SendFuture | None = None
        if self._telemetry.is_heard:
            pass
        elif not options:
            future = self._put(topic, body)
        elif options.keys() <= PLAIN_OPTIONS:
            # One by one, because a call with ** would copy the options twice.
            future = self._put(topic, body, options.get("tag"), options.get("keys"), options.get("key"))
        return future if future is not None else self._send_soon(topic, body, options)

    def _send_soon(self, topic: str, body: Buffer, options: MessageOptions) -> SendFuture:
        self._portal.require_usable()
        buffered = self._producer._require_buffered()
        prepared = buffered.prepare(topic, body, **options)
        with self._telemetry.sending_later(self.group, prepared.message) as sending:
            queue = buffered.known_queue_of(prepared)
            if queue is None and prepared.key is not None:
                queue = self._portal.run(buffered.queue_of, prepared)
            future = buffered.put(prepared, queue)
            sending.follow(future)
        return future

    def drain(self) -> None:
        """Waits while the buffer of `send_soon` is full, as `send_soon` itself does in plain code."""
        self._portal.run(self._producer.drain)

    def send_oneway(self, topic: str, body: Buffer, **options: Unpack[MessageOptions]) -> None:
        """Sends one message without an answer, so you never know whether it was stored."""
        self._portal.run(self._with_options, self._producer.send_oneway, topic, body, options)

    def send_many(
        self,
        messages: Iterable[Message],
        *,
        key: Callable[[Message], str] | None = None,
        queue: Queue | None = None,
        timeout: float | None = None,
    ) -> list[SendResult]:
        """Sends many messages in few requests, and returns their results in order.

        `key` returns the sharding key of a message. Without it, the messages of one topic go to one queue.
        Raises NotAllSent, which holds the outcome of each message, if some were not sent.
        """
        # The iterable and the key function are user code, so they run in the caller's thread.
        if not isinstance(messages, Iterable):
            raise InvalidMessage(f"send_many takes Messages, not {type(messages).__name__}")
        everything = list(messages)
        keys = None if key is None else {id(message): aio.key_of(message, key) for message in everything}
        return self._portal.run(
            self._producer.send_many,
            everything,
            key=None if keys is None else lambda message: keys[id(message)],
            queue=queue,
            timeout=timeout,
        )

    def request(self, topic: str, body: Buffer, **options: Unpack[MessageOptions]) -> Message:
        """Sends a message and waits for the reply of its consumer. Raises NoReply.

        The options are those of `send`.
        """
        reply: Message = self._portal.run(self._with_options, self._producer.request, topic, body, options)
        return reply

    def reply(self, request: Message, body: Buffer) -> None:
        """Replies to a message that was sent with `request`."""
        self._portal.run(self._producer.reply, request, body)

    def recall(self, topic: str, handle: str | None) -> str:
        """Cancels a delayed message, by the `recall_handle` of its result, and returns its id.

        Raises InvalidMessage if the result has no handle, and Refused if the message was delivered already or
        the broker does not allow recalls.
        """
        return self._portal.run(self._producer.recall, topic, handle)

    def check(self, checker: _Checker) -> _Checker:
        """Registers the function that tells brokers how a transaction ended, as a decorator.

        Brokers ask it if they never heard of the end, for example after a crash. It gets the message and
        returns True to commit, False to roll back, or None if the outcome is not known yet.
        It runs in a thread of its own.
        """
        require_plain(checker)
        self._producer.check(checker)
        return checker

    def transaction(self, topic: str, body: Buffer, **options: Unpack[MessageOptions]) -> Transaction:
        """Makes a message that consumers get only if the `with` block ends without an exception.

        The options are those of `send`.
        """
        make = self._producer.transaction
        return Transaction(self._portal, self._portal.call(lambda: make(topic, body, **options)))

    def start(self) -> None:
        """Joins the group. Safe to call twice."""
        self._portal.run(self._producer.start)
        self._put = self._producer._require_buffered().buffer.put

    def flush(self, timeout: float | None = None) -> None:
        """Waits until all messages of `send_soon` are sent and their callbacks have run.

        Raises NotDelivered for messages that failed since the last flush. In a callback it does not wait for
        other callbacks.
        """
        self._portal.run(self._producer.flush, timeout)

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Flushes, gives up messages that are not sent within the timeout, and leaves the group.

        Raises NotDelivered if some messages were not sent; the producer is closed anyway. Safe to call twice:
        the second close waits for the first.
        """
        self._put = _not_started
        if self._portal.usable:
            self._portal.run(self._producer.close, timeout)

    async def _with_options(
        self, function: Callable[..., Awaitable[Any]], topic: str, body: Buffer, options: MessageOptions
    ) -> Any:
        return await function(topic, body, **options)


def _not_started(*_: Any) -> None:
    return None


class Transaction:
    """A transaction: committed at the end of its block, rolled back if the block raises.

    `commit` and `rollback` decide earlier. After `leave` the broker will ask the checker.
    """

    def __init__(self, portal: Portal, transaction: transactions.Transaction) -> None:
        self._portal = portal
        self._transaction = transaction

    @property
    def id(self) -> str:
        """The unique id of its message."""
        return self._transaction.id

    def commit(self) -> None:
        """Lets consumers get the message. Raises Undecided."""
        self._portal.run(self._transaction.commit)

    def rollback(self) -> None:
        """Discards the message. Raises Undecided."""
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
