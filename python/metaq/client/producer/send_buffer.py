"""Messages that may wait a moment for others: a bounded buffer of the data plane, sent in batches.

The data plane sends each batch once. A batch that was not stored comes back here and is sent again like any
other message: to other brokers, with pauses, until its time is over.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Unpack

from metaq._core import AsyncSendFuture, SendBuffer, SendFuture, UnsentBatch, register_send_types
from metaq.client.message import Outgoing
from metaq.client.producer.callbacks import CallbackThread, call_back
from metaq.client.producer.options import MessageOptions, PreparedSend, ProducerOptions, prepare_send
from metaq.client.producer.queue_selection import queue_of_key
from metaq.client.producer.results import STATUSES, SendResult, not_durable
from metaq.client.producer.sending import Sender
from metaq.client.producer.waiting_sends import WaitingSends, buffer_full
from metaq.client.session.routes import Queue
from metaq.client.session.session import Session
from metaq.client.tasks import Tasks
from metaq.errors import ClientClosed, InvalidMessage, MetaqError, NotDelivered, NotSent
from metaq.protocol.names import MASTER_ID
from metaq.protocol.properties import encode_properties

if TYPE_CHECKING:
    from typing_extensions import Buffer

FAILURES_KEPT_MAX: Final = 100
EXIT_TIMEOUT_S: Final = 5.0
"""How long the end of the program waits for the messages of producers that were not closed."""
EXIT_INTERVAL_S: Final = 0.01
CALLBACKS_GRACE_S: Final = 0.25
"""At a close without any time left, the callbacks of messages that were given up still get this time."""
SHORT_LINGER_S: Final = 0.05
PLAIN_OPTIONS: Final = frozenset(("tag", "keys", "key"))
"""The options that the data plane handles itself. A message with other options is prepared here."""
_BATCH_OVERHEAD_BYTES: Final = 22

register_send_types(
    result=SendResult, queue=Queue, statuses=STATUSES, not_durable=not_durable, call_back=call_back
)

_open: set[BufferedSender] = set()
"""All buffers that are not closed. They are kept here, so that the end of the program finds their messages
even if the user has dropped the client."""


class BufferedSender:
    """The buffer of one producer. Any thread may put messages; the rest runs on the session's event loop."""

    def __init__(self, session: Session, sender: Sender, options: ProducerOptions) -> None:
        self._session = session
        self._sender = sender
        self._options = options
        self.loop = asyncio.get_running_loop()
        self.buffer = SendBuffer(session.network("send"), session.unique_ids, options, self.loop)
        self.put_on_loop: Callable[..., AsyncSendFuture | None] = self.buffer.put_on_loop
        self._topics: set[str] = set()
        self._expected: dict[str, set[Queue]] = {}
        """Topic → queues that it was expected to be created with, but does not have as far as we know."""
        self._callbacks = CallbackThread()
        self._tasks = Tasks(f"producer {options.group}")
        self._waiting = WaitingSends(
            options, sender, self._tasks, self._enter, self.count_failure, self._follow_waiting
        )
        self.is_clear = True
        """Nothing waits, and `drain` need not let other tasks run. It is asked for with every message."""
        self.should_yield = self.buffer.should_yield
        self._flushing: dict[asyncio.Future[None], int] = {}
        self._failed_count = 0
        self._failures: list[Exception] = []
        self._closed = False
        session.routes.watch(self._push_route)
        sender.faults.on_change = self._push_faults
        self.loop.add_reader(self.buffer.fileno(), self._process_events)
        session.at_end(self.abandon)
        _open.add(self)

    @property
    def buffered_bytes(self) -> int:
        return self.buffer.held_bytes() + self._waiting.held_bytes

    # Putting

    def prepare(self, topic: str, body: Buffer, **options: Unpack[MessageOptions]) -> PreparedSend:
        """Checks a message, in any thread. Raises InvalidMessage."""
        return prepare_send(self._options, self._session.unique_ids.next(), topic, body, **options)

    async def queue_of(self, prepared: PreparedSend) -> Queue | None:
        """Returns the only queue that the message may go to, or None. A key may wait for a new master.

        Raises NoRoute or NotSent for a key.
        """
        if prepared.key is None:
            return prepared.queue
        return await self._sender.queue_of_key(prepared.message.topic, prepared.key, prepared.timeout_s)

    def known_queue_of(self, prepared: PreparedSend) -> Queue | None:
        """Does the same in any thread, but returns None if the queue of the key is not known now."""
        if prepared.key is None:
            return prepared.queue
        route = self._session.routes.known(prepared.message.topic)
        if route is None or not route.writable:
            return None
        return queue_of_key(route, prepared.key)

    def put(self, prepared: PreparedSend, queue: Queue | None) -> SendFuture:
        """Puts a message into the buffer, in any thread, and waits while the buffer is full.

        A callback does not wait, because it would wait for itself. Raises NotSent if the buffer stays full.
        """
        arguments = self._arguments(prepared.message, queue)
        wait_s = None if self._callbacks.is_current else prepared.timeout_s
        try:
            future = self.buffer.put_checked(**arguments, wait_s=wait_s)
        except TimeoutError:
            raise buffer_full(self._options, prepared.timeout_s) from None
        except ValueError as error:
            raise InvalidMessage(str(error)) from None
        if future is None:
            raise ClientClosed("this producer is closed", hint="make another one")
        return future

    def put_soon(self, prepared: PreparedSend) -> AsyncSendFuture:
        """Accepts a message on the event loop, at once. If it cannot enter the buffer yet, it waits for that.

        Raises NotSent if too many messages wait already.
        """
        if self.should_yield():
            self.is_clear = False
        queue = self.known_queue_of(prepared)
        arguments = self._arguments(prepared.message, queue)
        is_known = queue is not None or prepared.key is None
        if is_known and not self._waiting.blocks(prepared):
            future = self._enter(arguments)
            if future is not None:
                return future
        if self._closed:
            raise ClientClosed("this producer is closed", hint="make another one")
        size_bytes = len(arguments["body"]) + len(arguments["properties"]) + _BATCH_OVERHEAD_BYTES
        if not self._waiting:
            self._stop_lingering()
        return self._waiting.add(prepared, arguments, size_bytes, needs_queue=not is_known)

    async def drain(self) -> None:
        """Lets other tasks run, and returns when the buffer has room."""
        self.is_clear = not self._waiting
        await asyncio.sleep(0)
        await self._waiting.drain()

    def _enter(self, arguments: dict[str, Any]) -> AsyncSendFuture | None:
        try:
            return self.buffer.put_checked_on_loop(**arguments)
        except ValueError as error:
            raise InvalidMessage(str(error)) from None

    def _stop_lingering(self) -> None:
        """Makes room while messages wait for it. A short linger ends soon enough, with larger batches."""
        if self._options.linger_s > SHORT_LINGER_S:
            self.buffer.flush()

    def _follow_waiting(self) -> None:
        """While messages wait, no other overtakes them."""
        self.is_clear = not self._waiting
        if self._waiting:
            self.put_on_loop = _put_nothing
        else:
            self.put_on_loop = self.buffer.put_on_loop
            self.buffer.stop_watching_space()

    def count_failure(self, error: Exception) -> None:
        """Counts a message that was not sent, for `flush` and `close` to report."""
        self._failed_count += 1
        if len(self._failures) < FAILURES_KEPT_MAX:
            self._failures.append(error)

    def track_route(self, topic: str) -> None:
        """Keeps the data plane informed about the route of a topic from now on."""
        if topic not in self._topics:
            # In this order, so that a route which arrives in between is not missed.
            self._topics.add(topic)
            self._push_route(topic)

    def _arguments(self, message: Outgoing, queue: Queue | None) -> dict[str, Any]:
        self.track_route(message.topic)
        message.compress(self._options.compress_from_bytes, self._options.compression)
        properties = encode_properties(message.properties)
        size_bytes = len(message.body) + len(properties) + _BATCH_OVERHEAD_BYTES
        return {
            "topic": message.topic,
            "body": message.body,
            "properties": properties,
            "unique_id": message.id,
            "queue": None if queue is None else (queue.broker, queue.id),
            # Brokers do not accept batches for retry topics.
            "alone": not message.batchable
            or message.system_flag != 0
            or message.topic.startswith("%")
            or size_bytes > self._options.batch_bytes_max,
            "system_flag": message.system_flag,
            "flag": message.flag,
        }

    # Flush and close

    async def flush(self, timeout: float | None = None) -> None:
        """Sends everything that is in the buffer now, and waits for the results and their callbacks.

        Raises NotDelivered for messages that failed since the last flush or are not sent in time.
        """
        flush = self._waiting.begin_flush()
        epoch = self.buffer.flush()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                if self._waiting.count_before(flush):
                    await self._waiting.wait_for(flush)
                    epoch = self.buffer.flush()
                await self._wait_sent(epoch)
                await self._deliver_results()
                await self._callbacks.wait()
        await self._deliver_results()
        late = self.buffer.unfinished_count(epoch) + self._waiting.count_before(flush)
        count, failures = self._failed_count + late, self._failures
        self._failed_count, self._failures = 0, []
        if late:
            failures.append(NotSent(f"{late} messages were not sent before the timeout"))
        if count:
            raise NotDelivered(count, failures)

    async def _wait_sent(self, epoch: int) -> None:
        if self.buffer.unfinished_count(epoch):
            done: asyncio.Future[None] = self.loop.create_future()
            self._flushing[done] = epoch
            try:
                await done
            finally:
                del self._flushing[done]

    async def _deliver_results(self) -> None:
        """Sets the futures of messages that are done but whose events were not processed yet."""
        end = self.buffer.events_end()
        while self.buffer.has_events_before(end):
            self._process_events()
            await asyncio.sleep(0)

    async def close(self, timeout: float) -> None:
        """Flushes, then gives up the rest. Raises NotDelivered.

        If it is cancelled, the messages are sent on, and it can be repeated.
        """
        deadline = self.loop.time() + timeout
        lost: NotDelivered | None = None
        try:
            await self.flush(timeout)
        except NotDelivered as error:
            lost = error
        self.abandon()
        await self._tasks.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(deadline - self.loop.time(), CALLBACKS_GRACE_S)):
                await self._callbacks.wait()
        if lost is not None:
            raise lost

    def abandon(self) -> None:
        """Gives up the rest without waiting, so that no future stays open. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        _open.discard(self)
        self._session.remove_ending(self.abandon)
        left = self.buffer.close()
        self._tasks.cancel()
        for unsent in left:
            unsent.failed(NotSent("the producer was closed before the message was sent"))
        self._waiting.refuse_all(NotSent("the producer was closed before the message was sent"))
        self._session.routes.unwatch(self._push_route)
        self._sender.faults.on_change = lambda: None
        end = self.buffer.events_end()
        while self.buffer.has_events_before(end):
            self._process_events()
        self.loop.remove_reader(self.buffer.fileno())
        self._callbacks.stop()

    # Events from the data plane

    def _process_events(self) -> None:
        unsent, done_batches, created_topics, working_brokers = self.buffer.drain()
        if not self._closed:
            for batch in unsent:
                self._tasks.spawn(self._resend(batch), "resend")
            for topic in created_topics:
                self._session.routes.made(topic)
                self._tasks.spawn(self._ask_route(topic), "route of a new topic")
        for broker in working_brokers:
            self._sender.faults.worked(broker)
        self._callbacks.run(done_batches)
        for done, epoch in self._flushing.items():
            if not done.done() and not self.buffer.unfinished_count(epoch):
                done.set_result(None)
        if self._waiting:
            self._waiting.serve()
            if self._waiting:
                self._stop_lingering()

    async def _resend(self, batch: UnsentBatch) -> None:
        try:
            await self._sender.resend(batch, key=self._movable_key(batch))
        except Exception as error:
            # Does nothing if the batch is stored, only less safely than it should be.
            batch.failed(error)
            self._failed_count += batch.count
            self._failures += batch.errors(FAILURES_KEPT_MAX - len(self._failures))

    def _movable_key(self, batch: UnsentBatch) -> str | None:
        """Returns the key of a batch whose queue was selected before its topic existed, otherwise None.

        The topic may have been created without that queue. A queue that the topic has may come back.
        """
        expected = self._expected.get(batch.topic)
        if not expected or batch.queue is None or Queue(batch.topic, *batch.queue) not in expected:
            return None
        return batch.key

    async def _ask_route(self, topic: str) -> None:
        with contextlib.suppress(MetaqError):  # The next message or the next refresh asks again.
            await self._sender.route(topic)

    # State for the data plane

    def _push_route(self, topic: str) -> None:
        route = self._session.routes.known(topic)
        while route is not None and topic in self._topics:
            if route.is_template:
                self._expected[topic] = set(route.writable)
            elif topic in self._expected:
                self._expected[topic].difference_update(route.writable)
            queues = [
                (queue.broker, route.brokers[queue.broker][MASTER_ID], queue.id) for queue in route.writable
            ]
            self.buffer.set_route(topic, queues, route.is_template)
            # This may be a user's thread, and the loop may have pushed a newer route in between.
            pushed, route = route, self._session.routes.known(topic)
            if route is pushed:
                break

    def _push_faults(self) -> None:
        self.buffer.set_faults(self._sender.faults.left())

    # The end of the program

    def finish(self, deadline: float) -> int:
        """Waits until everything is sent, in any thread and without the event loop, which may have ended.

        Returns how many messages were not sent.
        """
        with contextlib.suppress(KeyboardInterrupt):  # The user does not want to wait.
            for waiting in self._waiting.take_all():
                left_s = max(deadline - time.monotonic(), 0.0)
                try:
                    entered = self.buffer.put_checked(**waiting.arguments, wait_s=left_s)
                except (TimeoutError, ValueError):
                    break
                if entered is None:
                    break
                self._waiting.sent_at_exit(waiting)
            epoch = self.buffer.flush()
            while self.buffer.unfinished_count(epoch) and time.monotonic() < deadline:
                time.sleep(EXIT_INTERVAL_S)
        return self._failed_count + self.buffer.unfinished_count(self.buffer.flush()) + self._waiting.count


def _put_nothing(*_: object) -> None:
    """Stands in for the fast path while messages wait that must go first."""


def _disable_after_fork() -> None:
    # The child has these objects, but not the threads behind them, so nothing there may be used.
    for buffered in list(_open):
        buffered.buffer.disable()
    _open.clear()


os.register_at_fork(after_in_child=_disable_after_fork)


def _finish_at_exit() -> None:
    """Sends what unclosed producers hold, for a short while, and reports the rest on stderr."""
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    left = sum(buffered.finish(deadline) for buffered in list(_open))
    if left and sys.stderr is not None:
        count = "1 message" if left == 1 else f"{left} messages"
        print(
            f"metaq: {count} of send_soon not sent when the program ended; close producers, "
            "which waits for their messages and raises the reason",
            file=sys.stderr,
            flush=True,
        )


atexit.register(_finish_at_exit)
