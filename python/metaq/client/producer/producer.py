"""The producer, on asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from asyncio import get_running_loop
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self, TypeVar, Unpack

from metaq._core import AsyncSendFuture
from metaq.client.message import Message, Outgoing, outgoing
from metaq.client.producer.options import MessageOptions, Order, ProducerOptions, check_timeout, order
from metaq.client.producer.queue_selection import by_key
from metaq.client.producer.request_reply import Requests
from metaq.client.producer.results import SendResult
from metaq.client.producer.send_buffer import PLAIN_OPTIONS, Soon
from metaq.client.producer.sending import Sender
from metaq.client.producer.transactions import Checker, Transaction, Transactions
from metaq.client.properties import SHARDING_KEY
from metaq.client.session.routes import Queue
from metaq.client.session.session import Session
from metaq.errors import ClientClosed, InvalidMessage, MetaqError, NotAllSent, NotDelivered

_log = logging.getLogger(__name__)

_Checker = TypeVar("_Checker", bound=Checker)

CLOSE_TIMEOUT_S = 30.0


class Producer:
    """Sends messages as a member of a group. Made by `Client.producer`; a context manager.

    Sends are tried again, on another broker where there is one, until their time is over. One that fails may
    be stored all the same, where only its answer was lost: a message is delivered at least once.
    """

    def __init__(
        self, session: Session, options: ProducerOptions, *, on_close: Callable[[Producer], None]
    ) -> None:
        self._session = session
        self._telemetry = session.telemetry
        self._on_close = on_close
        self._options = options
        self._sender = Sender(session, options)
        self._soon: Soon | None = None
        self._transactions = Transactions(session, self._sender, options)
        self._requests = Requests(session, self._sender, options)
        self._started = False
        self._closed = False
        self._ended = asyncio.Event()
        """The close is over."""

    @property
    def group(self) -> str:
        """What it produces for; its members answer for each other's transactions."""
        return self._options.group

    # Sending

    async def send(
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
        wanted = self._order(
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
        return await self._sender.send(wanted.message, wanted.timeout_s, key=wanted.key, queue=wanted.queue)

    async def send_soon(self, topic: str, body: bytes, **options: Unpack[MessageOptions]) -> AsyncSendFuture:
        """Takes a message into the buffer, from where it is sent with others, and gives its future.

        Waits only while the buffer is full. What failed is also told by `flush` and `close`.
        """
        # Whatever is not plainly right is looked at more closely below, and told there.
        soon = self._soon
        if soon is not None and not self._telemetry.is_heard and get_running_loop() is soon.loop:
            future: AsyncSendFuture | None = None
            if not options:
                future = soon.put_here(topic, body)
            elif options.keys() <= PLAIN_OPTIONS:
                # One by one: a call with ** would make two more dicts of them.
                future = soon.put_here(
                    topic, body, options.get("tag"), options.get("keys"), options.get("key")
                )
            if future is not None:
                return future
        return await self._send_soon(topic, body, options)

    async def _send_soon(self, topic: str, body: bytes, options: MessageOptions) -> AsyncSendFuture:
        self._session.require_usable()
        soon = self._open_soon()
        wanted = soon.order(topic, body, **options)
        if soon.buffer.ends_turn():  # There were many in a row: whoever else is on the loop has a turn.
            await asyncio.sleep(0)
        with self._telemetry.sending_later(self.group, wanted.message) as sending:
            future = await soon.take_here(wanted, await soon.queue_of(wanted))
            sending.follow(future)
        return future

    async def send_oneway(self, topic: str, body: bytes, **options: Unpack[MessageOptions]) -> None:
        """Sends one message and waits for no answer: whether it was stored is never known."""
        wanted = self._order(topic, body, **options)
        await self._sender.send_oneway(wanted.message, key=wanted.key, queue=wanted.queue)

    async def send_many(
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
        self._require_usable()
        if timeout is not None:
            check_timeout(timeout, "a timeout")
        many = [self._one_of_many(message, key, queue) for message in messages]
        self._telemetry.created([message for message, _ in many])
        places: dict[tuple[str, Queue | None], list[int]] = {}
        for place, (message, its_key) in enumerate(many):
            target = queue
            if its_key is not None:
                target = by_key(await self._sender.route(message.topic), its_key)
            places.setdefault((message.topic, target), []).append(place)
        outcomes: list[SendResult | MetaqError | None] = [None] * len(many)
        timeout_s = self._options.timeout_s if timeout is None else timeout

        async def send_in_order(target: Queue | None, numbers: Sequence[int]) -> None:
            for chunk in _chunks(numbers, [message for message, _ in many], self._options.body_bytes_max):
                batch = [many[place][0] for place in chunk]
                try:
                    found: Sequence[SendResult | MetaqError] = await self._sender.send_batch(
                        batch, timeout_s, queue=target
                    )
                except NotAllSent as error:
                    found = error.outcomes
                except MetaqError as error:
                    found = [error] * len(chunk)
                for place, outcome in zip(chunk, found, strict=True):
                    outcomes[place] = outcome

        await asyncio.gather(*(send_in_order(target, numbers) for (_, target), numbers in places.items()))
        results = [outcome for outcome in outcomes if isinstance(outcome, SendResult)]
        if len(results) < len(many):
            raise NotAllSent([outcome for outcome in outcomes if outcome is not None])
        return results

    async def request(self, topic: str, body: bytes, **options: Unpack[MessageOptions]) -> Message:
        """Sends a message and waits for the answer of whoever consumes it; raises NoReply."""
        return await self._requests.ask(self._order(topic, body, **options))

    async def reply(self, request: Message, body: bytes) -> None:
        """Answers a message that was sent with `request`."""
        self._require_usable()
        if not isinstance(request, Message):
            raise InvalidMessage(f"a request is a Message, not {type(request).__name__}")
        if not isinstance(body, bytes):
            raise InvalidMessage(f"a body is bytes, not {type(body).__name__}")
        await self._requests.answer(request, body, self._session.unique_ids.next())

    async def recall(self, topic: str, handle: str | None) -> str:
        """Takes back a message that waits for its time, by the `recall_handle` of its result; its id.

        Raises InvalidMessage where its result has none, Refused where it was delivered already, or the broker
        does not allow it.
        """
        self._require_usable()
        return await self._sender.recall(topic, handle)

    # Transactions

    def check(self, checker: _Checker) -> _Checker:
        """Registers what tells brokers how a transaction ended, after a crash for instance; a decorator.

        It gets the message and returns True to commit, False to roll back, None if it is not known yet.
        """
        self._transactions.check_with(checker)
        return checker

    def transaction(self, topic: str, body: bytes, **options: Unpack[MessageOptions]) -> Transaction:
        """A message that consumers get if the block below `async with` ends, and not if it raises."""
        self._transactions.require_checker()
        return Transaction(self._transactions, self._order(topic, body, **options))

    # Its life

    async def start(self) -> None:
        """Joins the group. Safe to call twice."""
        self._session.require_usable()
        if self._closed:
            raise ClientClosed("this producer is closed", hint="make another one")
        if not self._started:
            self._soon = Soon(self._session, self._sender, self._options)
            self._telemetry.watch_buffer("send", self._soon)
            self._started = True
            await self._session.add_producer(self.group)

    async def flush(self, timeout: float | None = None) -> None:
        """Waits until what `send_soon` took is sent; raises NotDelivered for what failed since the last."""
        self._require_usable()
        await self._open_soon().flush(timeout)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Flushes, gives up what is left after the time-out, leaves the group. Safe to call twice.

        Raises NotDelivered where something was not sent; the producer is closed all the same. A second close
        waits for the first.
        """
        if self._closed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._ended.wait()
            return
        self._closed = True
        try:
            if self._started and not self._session.closed:
                await self._close(timeout)
        finally:
            self._on_close(self)
            self._ended.set()

    async def _close(self, timeout: float) -> None:
        try:
            if self._soon is not None:
                await self._soon.close(timeout)
        finally:
            self._soon = None
            self._transactions.stop()
            self._requests.stop()
            await self._session.remove_producer(self.group)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except NotDelivered as lost:
            if error is None:
                raise
            error.add_note(str(lost))

    # Inside

    def _require_usable(self) -> None:
        self._session.require_usable()
        self._require_open()

    def _require_open(self) -> None:
        if self._closed:
            raise ClientClosed("this producer is closed", hint="make another one")
        if not self._started:
            raise ClientClosed(
                "this producer is not started", hint="use it as a context manager, or call start"
            )

    def _open_soon(self) -> Soon:
        self._require_open()
        assert self._soon is not None
        return self._soon

    def _order(self, topic: str, body: bytes, **options: Unpack[MessageOptions]) -> Order:
        self._require_usable()
        return order(self._options, self._session.unique_ids.next(), topic, body, **options)

    def _one_of_many(
        self, message: Message, key: Callable[[Message], str] | None, queue: Queue | None
    ) -> tuple[Outgoing, str | None]:
        if not isinstance(message, Message):
            raise InvalidMessage(f"many are sent as Messages, not as {type(message).__name__}")
        if queue is not None and (key is not None or queue.topic != message.topic):
            raise InvalidMessage(f"{queue!r} is no queue of {message.topic}, or a key is given too")
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
            its_key = key(message)
            checked.properties[SHARDING_KEY] = its_key
        return checked, its_key


def _chunks(places: Iterable[int], messages: Sequence[Outgoing], size_bytes_max: int) -> Iterable[list[int]]:
    """Splits them so that what goes into one request is no larger than a broker takes."""
    chunk: list[int] = []
    size_bytes = 0
    for place in places:
        its_size = messages[place].size_bytes()
        if chunk and size_bytes + its_size > size_bytes_max:
            yield chunk
            chunk, size_bytes = [], 0
        chunk.append(place)
        size_bytes += its_size
    if chunk:
        yield chunk
