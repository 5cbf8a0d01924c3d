"""Messages that may wait a moment for others: in a bounded buffer of the data plane, sent in batches.

The data plane sends each batch once. What that does not get stored comes back here whole, and goes on as any
other send does: other brokers, pauses, until its time is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Unpack

from metaq._core import AsyncSendFuture, SendBuffer, SendFuture, UnsentBatch, register_send_types
from metaq.client.message import Outgoing
from metaq.client.producer.callbacks import Callbacks, call_back
from metaq.client.producer.options import MessageOptions, Order, ProducerOptions, order
from metaq.client.producer.queue_selection import by_key
from metaq.client.producer.results import STATUSES, SendResult, not_durable
from metaq.client.producer.sending import Sender
from metaq.client.properties import encode_properties
from metaq.client.session.routes import MASTER_ID, Queue
from metaq.client.session.session import Session
from metaq.errors import ClientClosed, InvalidMessage, MetaqError, NotDelivered, NotSent

FAILURES_KEPT_MAX: Final = 100
CALLBACKS_GRACE_S: Final = 0.25
"""What callbacks have at a close even where there was no time at all: those of what was given up."""
PLAIN_OPTIONS: Final = frozenset(("tag", "keys", "key"))
"""What the data plane takes by itself; whatever else a message has is looked at here."""
_BATCH_OVERHEAD_BYTES: Final = 22

register_send_types(
    result=SendResult, queue=Queue, statuses=STATUSES, not_durable=not_durable, call_back=call_back
)

_alive: weakref.WeakSet[Soon] = weakref.WeakSet()


class Soon:
    """The buffer of one producer. Any thread may put; all else happens on the session's event loop."""

    def __init__(self, session: Session, sender: Sender, options: ProducerOptions) -> None:
        self._session = session
        self._sender = sender
        self._options = options
        self.loop = asyncio.get_running_loop()
        self.buffer = SendBuffer(session.network("send"), session.unique_ids, options, self.loop)
        self.put_here = self.buffer.put_here
        self._topics: set[str] = set()
        self._callbacks = Callbacks()
        self._tasks: set[asyncio.Task[None]] = set()
        self._line: deque[asyncio.Future[None]] = deque()
        self._flushing: dict[asyncio.Future[None], int] = {}
        self._failed_count = 0
        self._failures: list[Exception] = []
        self._closed = False
        session.routes.watch(self._take_route)
        sender.faults.on_change = self._take_faults
        self.loop.add_reader(self.buffer.fileno(), self._drain)
        session.at_end(self.abandon)
        _alive.add(self)

    @property
    def buffered_bytes(self) -> int:
        return self.buffer.held_bytes()

    # Putting

    def order(self, topic: str, body: bytes, **options: Unpack[MessageOptions]) -> Order:
        """Checks a message, in any thread; raises InvalidMessage."""
        return order(self._options, self._session.unique_ids.next(), topic, body, **options)

    async def queue_of(self, order: Order) -> Queue | None:
        """The one queue that it may go to; raises NoRoute where it has a key and its topic no queue."""
        if order.key is None:
            return order.queue
        return by_key(await self._sender.route(order.message.topic), order.key)

    def known_queue_of(self, order: Order) -> Queue | None:
        """The same for any thread; None where that needs a route that has to be asked for."""
        if order.key is None:
            return order.queue
        route = self._session.routes.known(order.message.topic)
        return None if route is None else by_key(route, order.key)

    def take(self, order: Order, queue: Queue | None) -> SendFuture:
        """Takes it into the buffer, for any thread; waits while the buffer is full, but for a callback, which
        would wait for itself.

        Raises NotSent where that is for too long.
        """
        arguments = self._arguments(order.message, queue)
        wait_s = None if self._callbacks.is_here else order.timeout_s
        try:
            future = self.buffer.put_checked(**arguments, wait_s=wait_s)
        except TimeoutError:
            raise self._full(order) from None
        except ValueError as error:
            raise InvalidMessage(str(error)) from None
        if future is None:
            raise ClientClosed("this producer is closed", hint="make another one")
        return future

    async def take_here(self, order: Order, queue: Queue | None) -> AsyncSendFuture:
        """The same on the event loop."""
        arguments = self._arguments(order.message, queue)
        try:
            future = None if self._line else self.buffer.put_checked_here(**arguments)
            if future is None:
                async with asyncio.timeout(order.timeout_s):
                    future = await self._take_in_turn(arguments)
        except TimeoutError:
            raise self._full(order) from None
        except ValueError as error:
            raise InvalidMessage(str(error)) from None
        return future

    async def _take_in_turn(self, arguments: dict[str, Any]) -> AsyncSendFuture:
        turn: asyncio.Future[None] = self.loop.create_future()
        self._line.append(turn)
        try:
            while True:
                if self._line[0] is turn:
                    future = self.buffer.put_checked_here(**arguments)
                    if future is not None:
                        return future
                if self._closed:
                    raise ClientClosed("this producer is closed", hint="make another one")
                await turn
                place = self._line.index(turn)
                turn = self._line[place] = self.loop.create_future()
        finally:
            self._line.remove(turn)
            self._next_in_line()
            if not self._line:
                self.buffer.want_no_room()

    def _next_in_line(self) -> None:
        if self._line and not self._line[0].done():
            self._line[0].set_result(None)

    def follow(self, topic: str) -> None:
        """From now on the data plane is told of the topic's route."""
        if topic not in self._topics:
            # In this order: a route that comes in between is seen by one of the two.
            self._topics.add(topic)
            self._take_route(topic)

    def _arguments(self, message: Outgoing, queue: Queue | None) -> dict[str, Any]:
        self.follow(message.topic)
        message.compress(self._options.compress_from_bytes, self._options.compression)
        properties = encode_properties(message.properties)
        size_bytes = len(message.body) + len(properties) + _BATCH_OVERHEAD_BYTES
        return {
            "topic": message.topic,
            "body": message.body,
            "properties": properties,
            "unique_id": message.id,
            "queue": None if queue is None else (queue.broker, queue.id),
            # Brokers take no batches for retry topics.
            "alone": not message.batchable
            or message.system_flag != 0
            or message.topic.startswith("%")
            or size_bytes > self._options.batch_bytes_max,
            "system_flag": message.system_flag,
            "flag": message.flag,
        }

    def _full(self, order: Order) -> NotSent:
        return NotSent(
            f"the buffer of {self._options.buffer_bytes_max} bytes was full for {order.timeout_s:g} s",
            hint="brokers do not take messages as fast as they are sent",
        )

    # Its end

    async def flush(self, timeout: float | None = None) -> None:
        """Sends everything that is in the buffer now and waits for it and for its callbacks; raises
        NotDelivered for what failed since the last flush, or is still open when the time is over."""
        epoch = self.buffer.flush()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._done(epoch)
                await self._tell_all()
                await self._callbacks.wait()
        await self._tell_all()
        late = self.buffer.left(epoch)
        count, failures = self._failed_count + late, self._failures
        self._failed_count, self._failures = 0, []
        if late:
            failures.append(NotSent(f"{late} messages were still being sent when the time was over"))
        if count:
            raise NotDelivered(count, failures)

    async def _done(self, epoch: int) -> None:
        if self.buffer.left(epoch):
            done: asyncio.Future[None] = self.loop.create_future()
            self._flushing[done] = epoch
            try:
                await done
            finally:
                del self._flushing[done]

    async def _tell_all(self) -> None:
        """What is done may not have been told to its futures yet."""
        end = self.buffer.news_end()
        while self.buffer.has_news(end):
            self._drain()
            await asyncio.sleep(0)

    async def close(self, timeout: float) -> None:
        """Flushes, then gives up what is left; raises NotDelivered."""
        deadline = self.loop.time() + timeout
        lost: NotDelivered | None = None
        try:
            await self.flush(timeout)
        except NotDelivered as error:
            lost = error
        finally:
            tasks = list(self._tasks)
            self.abandon()
            await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(deadline - self.loop.time(), CALLBACKS_GRACE_S)):
                await self._callbacks.wait()
        if lost is not None:
            raise lost

    def abandon(self) -> None:
        """Gives up what is left and waits for nothing, so that no future stays open. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._session.remove_ending(self.abandon)
        left = self.buffer.close()
        for task in self._tasks:
            task.cancel()
        for unsent in left:
            unsent.failed(NotSent("the producer was closed before it was sent"))
        for turn in self._line:
            if not turn.done():
                turn.set_result(None)
        self._session.routes.unwatch(self._take_route)
        self._sender.faults.on_change = lambda: None
        end = self.buffer.news_end()
        while self.buffer.has_news(end):
            self._drain()
        self.loop.remove_reader(self.buffer.fileno())
        self._callbacks.stop()

    # What comes from below

    def _drain(self) -> None:
        unsent, done_batches, made, worked = self.buffer.drain()
        if not self._closed:  # Nobody goes on with what was given up.
            for batch in unsent:
                self._spawn(self._go_on(batch))
            for topic in made:
                self._session.routes.made(topic)
                self._spawn(self._ask_route(topic))
        for broker in worked:
            self._sender.faults.worked(broker)
        self._callbacks.run(done_batches)
        for done, epoch in self._flushing.items():
            if not done.done() and not self.buffer.left(epoch):
                done.set_result(None)
        self._next_in_line()

    async def _go_on(self, batch: UnsentBatch) -> None:
        try:
            await self._sender.go_on(batch)
        except Exception as error:
            batch.failed(error)  # The first word counts: it may be stored, only not as it should be.
            self._failed_count += batch.count
            self._failures += batch.errors(FAILURES_KEPT_MAX - len(self._failures))

    async def _ask_route(self, topic: str) -> None:
        with contextlib.suppress(MetaqError):  # Asked again with the next message, or every so often.
            await self._sender.route(topic)

    def _spawn(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # What goes down

    def _take_route(self, topic: str) -> None:
        route = self._session.routes.known(topic)
        while route is not None and topic in self._topics:
            queues = [
                (queue.broker, route.brokers[queue.broker][MASTER_ID], queue.id) for queue in route.writable
            ]
            self.buffer.set_route(topic, queues, route.is_template)
            # In a thread of the user's: the loop may have learned and told of another one meanwhile.
            told, route = route, self._session.routes.known(topic)
            if route is told:
                break

    def _take_faults(self) -> None:
        self.buffer.set_faults(self._sender.faults.left())


def _forked() -> None:
    # The child has the objects but not the thread behind them: nothing of it may be touched there.
    buffers: Iterable[Soon] = list(_alive)
    for soon in buffers:
        soon.buffer.disable()


os.register_at_fork(after_in_child=_forked)
