"""The producer of `metaq.aio.Client`."""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar, Unpack

from metaq._core import AsyncSendFuture
from metaq.client.lifecycle import CLOSE_TIMEOUT_S, AsyncStartable, OpenMark, SharedClose, closing_within
from metaq.client.message import Message, Outgoing, check_sharding_key, checked_body, outgoing
from metaq.client.producer.accepted_send import AcceptedSend, DeferredSend
from metaq.client.producer.options import (
    MessageOptions,
    PreparedSend,
    ProducerOptions,
    check_timeout,
    prepare_send,
)
from metaq.client.producer.queue_selection import queue_of_key
from metaq.client.producer.request_reply import Requests, send_reply
from metaq.client.producer.results import SendResult
from metaq.client.producer.send_buffer import PLAIN_OPTIONS, BufferedSender
from metaq.client.producer.sending import Sender
from metaq.client.producer.transactions import Checker, Transaction, Transactions
from metaq.client.session.routes import Queue
from metaq.client.session.session import Session
from metaq.errors import ClientClosed, InvalidMessage, MetaqError, NotAllSent, NotDelivered, NotSent
from metaq.protocol.properties import SHARDING_KEY

if TYPE_CHECKING:
    from typing_extensions import Buffer

_Checker = TypeVar("_Checker", bound=Checker)


class Producer(AsyncStartable):
    """Sends messages as a member of a producer group. `Client.producer` makes it; use it with `async with`.

    A send that fails is tried again, on another broker if there is one, until its timeout. A send that raised
    an error may still be stored, if only the answer was lost: messages are delivered at least once.
    """

    def __init__(
        self, session: Session, options: ProducerOptions, *, on_close: Callable[[Producer], None]
    ) -> None:
        self._session = session
        self._telemetry = session.telemetry
        self._on_close = on_close
        self._options = options
        self._sender = Sender(session, options)
        self._buffered: BufferedSender | None = None
        self._transactions = Transactions(session, self._sender, options)
        self._requests = Requests(session, self._sender, options)
        self._is_started = False
        self._is_closing = False
        self._closing = SharedClose()
        self._open_mark: OpenMark | None = None

    @property
    def group(self) -> str:
        """The producer group. Its members answer for each other's transactions."""
        return self._options.group

    # Sending

    async def send(self, topic: str, body: Buffer, **options: Unpack[MessageOptions]) -> SendResult:
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
        prepared = self._prepare(topic, body, **options)
        return await self._sender.send(
            prepared.message, prepared.timeout_s, key=prepared.key, queue=prepared.queue
        )

    def send_soon(self, topic: str, body: Buffer, **options: Unpack[MessageOptions]) -> AcceptedSend:
        """Accepts one message, to be sent in a batch. It is sent whether or not you await what this returns.

        Await it in loops: that waits while the buffer is full, and returns the message's future. Without
        `await`, messages wait for room in the buffer, and so do messages with a `key` while the broker of
        their queue has no master; once `buffer_bytes_max` bytes wait, only an `await` gets another one in.
        The options are those of `send`. Failures are raised by the future, and also by `flush` and `close`.
        """
        # The fast path. It returns None for everything unusual, which `_send_soon` handles and explains.
        buffered = self._buffered
        if buffered is not None and not self._telemetry.is_heard and _get_running_loop() is buffered.loop:
            future: AsyncSendFuture | None = None
            if not options:
                future = buffered.put_on_loop(topic, body)
            elif options.keys() <= PLAIN_OPTIONS:
                # One by one, because a call with ** would copy the options twice.
                future = buffered.put_on_loop(
                    topic, body, options.get("tag"), options.get("keys"), options.get("key")
                )
            if future is not None:
                return AcceptedSend(buffered, future)
        return self._send_soon(topic, body, options)

    def _send_soon(self, topic: str, body: Buffer, options: MessageOptions) -> AcceptedSend:
        self._session.require_usable()
        buffered = self._require_buffered()
        prepared = buffered.prepare(topic, body, **options)

        def accept() -> AsyncSendFuture:
            with self._telemetry.sending_later(self.group, prepared.message) as sending:
                future = buffered.put_soon(prepared)
                sending.follow(future)
            return future

        try:
            return AcceptedSend(buffered, accept())
        except NotSent as refusal:
            return DeferredSend(buffered, accept, prepared.timeout_s, refusal)

    async def drain(self) -> None:
        """Waits while the buffer of `send_soon` is full, as `await producer.send_soon(…)` does.

        If the buffer has room it returns at once, except that after many messages in a row other tasks run.
        """
        buffered = self._buffered
        if buffered is None or not buffered.is_clear or buffered.should_yield():
            self._require_usable()
            await self._require_buffered().drain()

    async def send_oneway(self, topic: str, body: Buffer, **options: Unpack[MessageOptions]) -> None:
        """Sends one message without an answer, so you never know whether it was stored."""
        prepared = self._prepare(topic, body, **options)
        await self._sender.send_oneway(prepared.message, key=prepared.key, queue=prepared.queue)

    async def send_many(
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
        self._require_usable()
        if timeout is not None:
            check_timeout(timeout, "timeout")
        if not isinstance(messages, Iterable):
            raise InvalidMessage(f"send_many takes Messages, not {type(messages).__name__}")
        many = [self._one_of_many(message, key, queue) for message in messages]
        self._telemetry.created([message for message, _ in many])
        indices: dict[tuple[str, Queue | None], list[int]] = {}
        for index, (message, its_key) in enumerate(many):
            target = queue
            if its_key is not None:
                target = queue_of_key(await self._sender.route(message.topic), its_key)
            indices.setdefault((message.topic, target), []).append(index)
        outcomes: list[SendResult | MetaqError | None] = [None] * len(many)
        timeout_s = self._options.timeout_s if timeout is None else timeout

        async def send_in_order(target: Queue | None, numbers: Sequence[int]) -> None:
            for chunk in _chunks(numbers, [message for message, _ in many], self._options.body_bytes_max):
                batch = [many[index][0] for index in chunk]
                try:
                    found: Sequence[SendResult | MetaqError] = await self._sender.send_batch(
                        batch, timeout_s, queue=target
                    )
                except NotAllSent as error:
                    found = error.outcomes
                except MetaqError as error:
                    found = [error] * len(chunk)
                for index, outcome in zip(chunk, found, strict=True):
                    outcomes[index] = outcome

        await asyncio.gather(*(send_in_order(target, numbers) for (_, target), numbers in indices.items()))
        results = [outcome for outcome in outcomes if isinstance(outcome, SendResult)]
        if len(results) < len(many):
            raise NotAllSent([outcome for outcome in outcomes if outcome is not None])
        return results

    async def request(self, topic: str, body: Buffer, **options: Unpack[MessageOptions]) -> Message:
        """Sends a message and waits for the reply of its consumer. Raises NoReply.

        The options are those of `send`.
        """
        return await self._requests.ask(self._prepare(topic, body, **options))

    async def reply(self, request: Message, body: Buffer) -> None:
        """Replies to a message that was sent with `request`."""
        self._require_usable()
        if not isinstance(request, Message):
            raise InvalidMessage(f"a request is a Message, not {type(request).__name__}")
        timeout_s = self._options.attempt_timeout_s
        await send_reply(self._session, self.group, request, checked_body(body), timeout_s)

    async def recall(self, topic: str, handle: str | None) -> str:
        """Cancels a delayed message, by the `recall_handle` of its result, and returns its id.

        Raises InvalidMessage if the result has no handle, and Refused if the message was delivered already or
        the broker does not allow recalls.
        """
        self._require_usable()
        return await self._sender.recall(topic, handle)

    # Transactions

    def check(self, checker: _Checker) -> _Checker:
        """Registers the function that tells brokers how a transaction ended, as a decorator.

        Brokers ask it if they never heard of the end, for example after a crash. It gets the message and
        returns True to commit, False to roll back, or None if the outcome is not known yet.
        """
        self._transactions.check_with(checker)
        return checker

    def transaction(self, topic: str, body: Buffer, **options: Unpack[MessageOptions]) -> Transaction:
        """Makes a message that consumers get only if the `async with` block ends without an exception.

        The options are those of `send`.
        """
        self._transactions.require_checker()
        return Transaction(self._transactions, self._prepare(topic, body, **options))

    # Start and close

    async def start(self) -> None:
        """Joins the group. Safe to call twice."""
        self._session.require_usable()
        if self._is_closing:
            raise ClientClosed("this producer is closed", hint="make another one")
        if not self._is_started:
            self._buffered = BufferedSender(self._session, self._sender, self._options)
            self._telemetry.watch_buffer("send", self._buffered)
            self._is_started = True
            await self._session.add_producer(self.group)

    async def flush(self, timeout: float | None = None) -> None:
        """Waits until all messages of `send_soon` are sent and their callbacks have run.

        Raises NotDelivered for messages that failed since the last flush.
        """
        self._require_usable()
        await self._require_buffered().flush(timeout)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Flushes, gives up messages that are not sent within the timeout, and leaves the group.

        Raises NotDelivered if some messages were not sent; the producer is closed anyway. Safe to call twice:
        the second close waits for the first. One that was interrupted can be repeated.
        """
        await self._closing.run(lambda: self._close(timeout), timeout)

    async def _close(self, timeout: float) -> bool:
        self._is_closing = True
        try:
            if self._is_started and not self._session.closed:
                with closing_within(timeout):
                    await self._close_started(timeout)
        except asyncio.CancelledError:
            self._is_closing = False
            raise
        except BaseException:
            self._on_close(self)
            raise
        self._on_close(self)
        return True

    async def _close_started(self, timeout: float) -> None:
        lost: NotDelivered | None = None
        if self._buffered is not None:
            try:
                await self._buffered.close(timeout)
            except NotDelivered as error:
                lost = error
        self._buffered = None
        self._transactions.stop()
        self._requests.stop()
        await self._session.remove_producer(self.group)
        if lost is not None:
            raise lost

    def _require_usable(self) -> None:
        self._session.require_usable()
        self._require_open()

    def _require_open(self) -> None:
        if self._is_closing:
            raise ClientClosed("this producer is closed", hint="make another one")
        if not self._is_started:
            raise ClientClosed(
                "this producer is not started", hint="use it as a context manager, or call start"
            )

    def _require_buffered(self) -> BufferedSender:
        self._require_open()
        assert self._buffered is not None
        return self._buffered

    def _prepare(self, topic: str, body: Buffer, **options: Unpack[MessageOptions]) -> PreparedSend:
        self._require_usable()
        return prepare_send(self._options, self._session.unique_ids.next(), topic, body, **options)

    def _one_of_many(
        self, message: Message, key: Callable[[Message], str] | None, queue: Queue | None
    ) -> tuple[Outgoing, str | None]:
        if not isinstance(message, Message):
            raise InvalidMessage(f"send_many takes Messages, not {type(message).__name__}")
        if queue is not None:
            if key is not None:
                raise InvalidMessage("key and queue exclude each other: leave one of them out")
            if not isinstance(queue, Queue) or queue.topic != message.topic:
                raise InvalidMessage(f"{queue!r} is not a queue of {message.topic}")
        checked = outgoing(
            message.topic,
            message.body,
            self._session.unique_ids.next(),
            tag=message.tag,
            keys=message.keys,
            properties=message.properties,
            body_bytes_max=self._options.body_bytes_max,
        )
        its_key = None
        if key is not None:
            its_key = key_of(message, key)
            checked.properties[SHARDING_KEY] = its_key
        return checked, its_key


def key_of(message: Message, key: Callable[[Message], str]) -> str:
    """Calls the user's function for the sharding key. Raises InvalidMessage if it fails or returns no key."""
    try:
        its_key = key(message)
    except Exception as error:
        raise InvalidMessage(f"the key function failed on a message to {message.topic}: {error!r}") from error
    check_sharding_key(its_key)
    return its_key


def _chunks(indices: Iterable[int], messages: Sequence[Outgoing], size_bytes_max: int) -> Iterable[list[int]]:
    """Divides messages so that no request is larger than a broker accepts."""
    chunk: list[int] = []
    size_bytes = 0
    for index in indices:
        its_size = messages[index].size_bytes()
        if chunk and size_bytes + its_size > size_bytes_max:
            yield chunk
            chunk, size_bytes = [], 0
        chunk.append(index)
        size_bytes += its_size
    if chunk:
        yield chunk
