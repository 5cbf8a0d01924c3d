"""The third form of consumption: the caller names the queues, says where to read and asks for messages.

Nobody else's share is touched: the group, where there is one, only gives the offsets a name. Pulling is
native (`_core.PullStream`); what an answer leaves to be decided comes here as an event.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from metaq._core import Message, PullEvent, PullStream
from metaq.client.compression import INFLATED_BYTES_MAX
from metaq.client.consumer.buffers import Limits
from metaq.client.consumer.offsets import BrokerOffsets, end_offset, first_offset, offset_at
from metaq.client.consumer.pull import HOLD_MS, INFLATED_TOGETHER_BYTES, find_unreadable
from metaq.client.consumer.subscription import Subscription
from metaq.client.message import check_group, check_topic
from metaq.client.session.routes import MASTER_ID, Queue
from metaq.errors import MetaqError, NoRoute, UnreadableBody, UsageError
from metaq.protocol.errors import ProtocolError, Refused
from metaq.settings import PullSettings

if TYPE_CHECKING:
    from metaq.client.session.session import Session

_log = logging.getLogger(__name__)

Position = int | datetime | Literal["begin", "end"]
"""A queue offset, a time, or one of the ends."""

NO_GROUP: Final = "TOOLS_CONSUMER"
"""What brokers know readers by that have no group of their own."""
FAILURE_PAUSE_S: Final = 1.0


class PullConsumer:
    """Reads the queues it was given. What `poll` returned counts as read; `commit` makes it known."""

    def __init__(
        self,
        session: Session,
        *,
        group: str | None = None,
        tags: str | Iterable[str] | None = None,
        sql: str | None = None,
        function: str | None = None,
        start: Position = "end",
        limits: Limits | None = None,
    ) -> None:
        if group is not None:
            check_group(group)
        _check_position(start)
        self._session = session
        self._group = group
        self._filter = (tags, sql, function)
        self._start = start
        self._limits = limits or Limits()
        self._offsets = None if group is None else BrokerOffsets(session, group)
        self._stream: PullStream | None = None
        self._numbers: dict[Queue, int] = {}
        self._queues: dict[int, Queue] = {}
        """By the number that the stream knows each by."""
        self._paused: set[Queue] = set()
        self._something = asyncio.Event()
        self._failure: Exception | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._subscription("any")  # A filter that cannot be is an error at once.

    @property
    def is_closed(self) -> bool:
        """Also while its close is under way."""
        return self._is_closed

    @property
    def queues(self) -> list[Queue]:
        """What is assigned to it."""
        return sorted(self._numbers)

    def position(self, queue: Queue) -> int:
        """The offset of the message that `poll` gives next of this queue; raises UsageError."""
        self._session.require_process()
        number = self._number(queue)
        position = None if self._stream is None else self._stream.position(number)
        if position is None:
            raise UsageError(f"{queue} is not assigned")
        return position

    async def assign(self, *what: str | Queue) -> list[Queue]:
        """Reads these queues, or all queues of topics, and no others. Each begins at the group's offset, or
        where it has none at `start`. Raises NoRoute for a topic that is not there."""
        self._require_open()
        wanted: list[Queue] = []
        for item in what:
            if isinstance(item, Queue):
                await self._session.routes.get(item.topic)
                wanted.append(item)
            else:
                check_topic(item)
                wanted += (await self._session.routes.get(item)).readable
        for queue in set(self._numbers) - set(wanted):
            self._drop(queue)
        fresh = [queue for queue in dict.fromkeys(wanted) if queue not in self._numbers]
        positions = await asyncio.gather(*(self._first_position(queue) for queue in fresh))
        self._require_open()
        for queue, queue_offset in zip(fresh, positions, strict=True):
            self._begin(queue, queue_offset)
        return self.queues

    async def seek(self, position: Position, *queues: Queue) -> None:
        """The next `poll` reads from there, in these queues or in all that are assigned."""
        self._require_open()
        _check_position(position)
        for queue in queues or self.queues:
            self._number(queue)
            queue_offset = await self._resolve(queue, position)
            self._require_open()
            self._number(queue)  # It may have been given up meanwhile.
            self._begin(queue, queue_offset)

    async def poll(self, timeout: float = 1.0, *, count: int = 32) -> list[Message]:
        """Up to `count` messages, as soon as there are any; an empty list where none came in time.

        Raises what the broker refused, and UnreadableBody (once) for a message that cannot be decompressed.
        """
        self._require_open()
        started_ns = time.time_ns()
        stream = self._pollable(count)
        # A caller who polls a long backlog and does nothing else would keep the loop from its heartbeats.
        # Once they are taken nothing is awaited: a poll that is cancelled then would lose them.
        await asyncio.sleep(0)
        messages = self._readable(stream, count, *stream.take(count))
        if messages:
            self._session.telemetry.received(self._group, messages, started_ns)
            return messages
        try:
            async with asyncio.timeout(timeout):
                while True:
                    self._something.clear()
                    messages = self._readable(stream, count, *stream.take(count))
                    if messages:
                        self._session.telemetry.received(self._group, messages, started_ns)
                        return messages
                    self._raise_failure()
                    await self._something.wait()
        except TimeoutError:
            return []

    def poll_waiting(self, timeout: float, count: int) -> list[Message]:
        """The same from any thread, which waits without holding the interpreter."""
        self._require_not_closed()
        stream = self._pollable(count)
        started_ns = time.time_ns()
        deadline = time.monotonic() + timeout
        while True:
            wakes = stream.wakes()
            # Where there is something to raise, what is there comes first, but nothing is waited for.
            left = 0.0 if self._failure is not None else deadline - time.monotonic()
            messages = self._readable(stream, count, *stream.wait(count, left, wakes))
            if messages:
                self._session.telemetry.received(self._group, messages, started_ns)
                return messages
            self._require_not_closed()
            self._raise_failure()
            if time.monotonic() >= deadline:
                return []

    async def commit(self) -> dict[Queue, int]:
        """Makes known how far every queue is read; raises MetaqError where a broker did not take it."""
        self._require_open()
        if self._offsets is None:
            raise UsageError("without a group there is nothing to commit for", hint="give group=… to puller")
        offsets = {queue: self.position(queue) for queue in self._numbers}
        await self._offsets.commit(offsets)
        return offsets

    async def committed(self, queue: Queue) -> int | None:
        """What the group committed of a queue; None for nothing."""
        self._require_open()
        if self._offsets is None:
            raise UsageError("without a group nothing is committed", hint="give group=… to puller")
        await self._session.routes.get(queue.topic)
        return await self._offsets.read(queue)

    def pause(self, queues: Iterable[Queue] | None = None) -> None:
        """`poll` gives nothing of these queues, or of any, until resumed."""
        self._set_paused(self._numbers if queues is None else queues, True)

    def resume(self, queues: Iterable[Queue] | None = None) -> None:
        """Goes on with these queues, or with all."""
        self._set_paused(list(self._paused) if queues is None else list(queues), False)

    async def close(self) -> None:
        """Commits nothing by itself. Safe to call twice."""
        self._is_closed = True
        for queue in list(self._numbers):
            self._drop(queue)
        for task in self._tasks:
            task.cancel()
        if self._stream is not None:
            self._session.routes.unwatch(self._route_changed)
            asyncio.get_running_loop().remove_reader(self._stream.fileno())
            self._stream.close()

    # Taking

    def _pollable(self, count: int) -> PullStream:
        if count < 1:
            raise UsageError(f"a poll for {count} messages makes no sense: at least 1")
        if self._stream is None or not self._numbers:
            raise UsageError("nothing is assigned", hint="call assign first")
        return self._stream

    def _readable(
        self, stream: PullStream, count: int, messages: list[Message], compressed: list[Message]
    ) -> list[Message]:
        """Inflates the body of the last one, where it is compressed, and takes more while there is room for
        theirs. Without those of which nothing comes; the next poll tells of that which finds nothing."""
        size_bytes = taken = 0
        readable = messages
        while compressed:
            taken += len(messages)
            unreadable = find_unreadable(compressed)
            for message, problem in unreadable:
                self._failure = UnreadableBody(f"{message.offset_id} of {message.queue}: {problem}")
                readable.pop()
            # One that is too large took as long as the largest.
            size_bytes += INFLATED_BYTES_MAX if unreadable else sum(one.body_size for one in compressed)
            if taken >= count or size_bytes >= INFLATED_TOGETHER_BYTES:
                break
            messages, compressed = stream.take(count - taken)
            readable += messages
        return readable

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._something.set()
        if self._stream is not None:
            self._stream.wake()

    def _require_open(self) -> None:
        self._session.require_usable()
        self._require_not_closed()

    def _require_not_closed(self) -> None:
        if self.is_closed:
            raise UsageError("this puller is closed", hint="make another one")

    # Its queues

    def _number(self, queue: Queue) -> int:
        try:
            return self._numbers[queue]
        except KeyError:
            raise UsageError(f"{queue} is not assigned") from None

    def _set_paused(self, queues: Iterable[Queue], paused: bool) -> None:
        self._session.require_process()
        for queue in queues:
            (self._paused.add if paused else self._paused.discard)(queue)
            number = self._numbers.get(queue)
            if number is not None and self._stream is not None:
                self._stream.pause(number, paused)
        if not paused:
            self._something.set()

    def _subscription(self, topic: str) -> Subscription:
        tags, sql, function = self._filter
        return Subscription.of(topic, tags=tags, sql=sql, function=function)

    async def _first_position(self, queue: Queue) -> int:
        if self._offsets is not None:
            committed = await self._offsets.read(queue)
            if committed is not None and committed >= 0:
                return committed
        return await self._resolve(queue, self._start)

    async def _resolve(self, queue: Queue, position: Position) -> int:
        if isinstance(position, datetime):
            return await offset_at(self._session, queue, int(position.timestamp() * 1000))
        if position == "begin":
            return await first_offset(self._session, queue)
        if position == "end":
            return await end_offset(self._session, queue)
        return position

    def _begin(self, queue: Queue, queue_offset: int) -> None:
        if self._stream is None:
            self._stream = self._open()
        subscription = self._subscription(queue.topic)
        address = self._session.address(queue.broker)
        before = self._numbers.get(queue)
        paused = queue in self._paused
        number = self._stream.begin(queue, subscription, address, queue_offset, paused=paused)
        # Another thread may poll meanwhile: there is no moment without the queue.
        self._numbers[queue] = number
        self._queues[number] = queue
        if before is not None:
            self._end(before)

    def _open(self) -> PullStream:
        settings = PullSettings(
            group=self._group or NO_GROUP,
            hold_ms=HOLD_MS,
            count_max=self._limits.count_max,
            bytes_max=self._limits.bytes_max,
        )
        stream = PullStream(self._session.network("pull"), settings)
        self._session.routes.watch(self._route_changed)
        asyncio.get_running_loop().add_reader(stream.fileno(), self._look)
        return stream

    def _drop(self, queue: Queue) -> None:
        self._end(self._numbers.pop(queue))

    def _end(self, number: int) -> None:
        del self._queues[number]
        assert self._stream is not None, "a queue that was begun has its stream"
        self._stream.end(number)

    def _route_changed(self, topic: str) -> None:
        for queue, number in self._numbers.items():
            address = self._session.routes.address(queue.broker)
            if queue.topic == topic and address is not None and self._stream is not None:
                self._stream.relocate(number, address)

    # What the stream leaves to be decided

    def _look(self) -> None:
        assert self._stream is not None, "its descriptor is watched"
        for event in self._stream.events():
            queue = self._queues.get(event.number)
            if queue is not None:
                self._decide(queue, event)
        self._something.set()

    def _decide(self, queue: Queue, event: PullEvent) -> None:
        try:
            if event.kind == "suggested":
                self._go_on(queue, event.number, broker_id=event.value)
                return
            if event.kind == "moved" and self._is_left_behind(event):
                self._go_on(queue, event.number, queue_offset=event.value)
                return
        except NoRoute as error:
            _log.info("pull of %s: %s", queue, error)
        if event.kind == "refused":
            self._refused(Refused(event.value, event.text))
        elif event.kind == "malformed":
            self._refused(ProtocolError(f"{queue}: {event.text}"))
        elif event.kind == "failed":
            _log.info("pull of %s: %s", queue, event.text)
        # Moved: until what we hold of the old place is polled, or its broker is known again.
        self._spawn(self._go_on_later(queue, event))

    def _is_left_behind(self, event: PullEvent) -> bool:
        """Nothing is held of the place that the queue does not reach any more, so we may follow it."""
        return (
            event.is_empty and self._stream is not None and self._stream.position(event.number) != event.value
        )

    def _refused(self, error: Refused) -> None:
        if not error.retriable:
            self._fail(error)

    async def _go_on_later(self, queue: Queue, event: PullEvent) -> None:
        await asyncio.sleep(FAILURE_PAUSE_S)
        while event.number in self._queues:
            try:
                if event.kind == "failed":
                    # Its broker may be somewhere else by now.
                    await self._session.routes.get(queue.topic, refresh=True)
                self._go_on(queue, event.number)
                return
            except MetaqError as error:
                _log.info("pull of %s: %s", queue, error)
                await asyncio.sleep(FAILURE_PAUSE_S)

    def _go_on(
        self, queue: Queue, number: int, *, broker_id: int = MASTER_ID, queue_offset: int | None = None
    ) -> None:
        """Raises NoRoute where the broker is not known any more."""
        assert self._stream is not None, "it told the event"
        address = self._session.routes.address(queue.broker, broker_id)
        if address is None:
            address = self._session.address(queue.broker)
        self._stream.resume(number, address, broker_id=broker_id, queue_offset=queue_offset)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="metaq pull goes on")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _check_position(position: Position) -> None:
    is_offset = isinstance(position, int) and not isinstance(position, bool) and position >= 0
    if not (is_offset or isinstance(position, datetime) or position in ("begin", "end")):
        raise UsageError(f"{position!r} is no position: an offset, a datetime, 'begin' or 'end'")
