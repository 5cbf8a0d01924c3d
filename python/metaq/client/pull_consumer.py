"""The third form of consumption: the caller names the queues, says where to read and asks for messages.

Nobody else's share is touched: the group, where there is one, only gives the offsets a name.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal

from metaq.client.buffers import Limits, QueueBuffer, Turns
from metaq.client.message import Message, check_group, check_topic
from metaq.client.offsets import BrokerOffsets, end_offset, first_offset, offset_at
from metaq.client.pulling import Puller
from metaq.client.routes import Queue
from metaq.client.subscription import Subscription
from metaq.errors import MetaqError, UnreadableBody, UsageError
from metaq.protocol.errors import Refused

if TYPE_CHECKING:
    from metaq.client.session import Session

_log = logging.getLogger(__name__)

Position = int | datetime | Literal["begin", "end"]
"""A queue offset, a time, or one of the ends."""

NO_GROUP: Final = "TOOLS_CONSUMER"
"""What brokers know readers by that have no group of their own."""
FAILURE_PAUSE_S: Final = 1.0
FULL_PAUSE_S: Final = 0.01


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
        self._puller = Puller(session, group or NO_GROUP, carries_subscription=True)
        self._turns = Turns()
        self._buffers: dict[Queue, QueueBuffer] = {}
        self._pulls: dict[Queue, asyncio.Task[None]] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._paused: set[Queue] = set()
        self._something = asyncio.Event()
        self._failure: Exception | None = None
        self.is_closed = False
        self._subscription("any")  # A filter that cannot be is an error at once.

    @property
    def queues(self) -> list[Queue]:
        return sorted(self._buffers)

    def position(self, queue: Queue) -> int:
        """The offset of the message that `poll` gives next of this queue; raises UsageError."""
        return self._buffer(queue).committable

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
        for queue in set(self._buffers) - set(wanted):
            await self._drop(queue)
        fresh = [queue for queue in dict.fromkeys(wanted) if queue not in self._buffers]
        positions = await asyncio.gather(*(self._first_position(queue) for queue in fresh))
        for queue, queue_offset in zip(fresh, positions, strict=True):
            self._begin(queue, queue_offset)
        return self.queues

    async def seek(self, position: Position, *queues: Queue) -> None:
        """The next `poll` reads from there, in these queues or in all that are assigned."""
        self._require_open()
        _check_position(position)
        for queue in queues or self.queues:
            self._buffer(queue)
            queue_offset = await self._resolve(queue, position)
            await self._drop(queue)
            self._begin(queue, queue_offset)

    async def poll(self, timeout: float = 1.0, *, count: int = 32) -> list[Message]:
        """Up to `count` messages, as soon as there are any; an empty list where none came in time.

        Raises what the broker refused, and UnreadableBody (once) for a message that cannot be decompressed.
        """
        self._require_open()
        if count < 1:
            raise UsageError(f"a poll for {count} messages makes no sense: at least 1")
        if not self._buffers:
            raise UsageError("nothing is assigned", hint="call assign first")
        messages: list[Message] = []
        started_ns = time.time_ns()
        try:
            async with asyncio.timeout(timeout):
                while not (messages := self._take(count)):
                    if self._failure is not None:
                        failure, self._failure = self._failure, None
                        raise failure
                    self._something.clear()
                    await self._something.wait()
        except TimeoutError:
            pass
        self._session.telemetry.received(self._group, messages, started_ns)
        return messages

    async def commit(self) -> dict[Queue, int]:
        """Makes known how far every queue is read; raises MetaqError where a broker did not take it."""
        self._require_open()
        if self._offsets is None:
            raise UsageError("without a group there is nothing to commit for", hint="give group=… to puller")
        offsets = {queue: buffer.committable for queue, buffer in self._buffers.items()}
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
        self._paused.update(self._buffers if queues is None else queues)

    def resume(self, queues: Iterable[Queue] | None = None) -> None:
        self._paused.difference_update(list(self._paused) if queues is None else list(queues))
        self._something.set()

    async def close(self) -> None:
        """Commits nothing by itself. Safe to call twice."""
        self.is_closed = True
        for queue in list(self._buffers):
            await self._drop(queue)

    def _take(self, count: int) -> list[Message]:
        messages: list[Message] = []
        while len(messages) < count:
            ready = [
                buffer
                for buffer in self._buffers.values()
                if len(buffer) and buffer.queue not in self._paused
            ]
            buffer = self._turns.next(ready)
            if buffer is None:
                break
            taken = buffer.take(count - len(messages))
            buffer.settle(taken)
            messages += taken
        return messages

    def _require_open(self) -> None:
        self._session.require_usable()
        if self.is_closed:
            raise UsageError("this puller is closed", hint="make another one")

    def _buffer(self, queue: Queue) -> QueueBuffer:
        try:
            return self._buffers[queue]
        except KeyError:
            raise UsageError(f"{queue} is not assigned") from None

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
        self._subscriptions.setdefault(queue.topic, self._subscription(queue.topic))
        buffer = self._buffers[queue] = QueueBuffer(queue, queue_offset, self._limits)
        self._pulls[queue] = asyncio.create_task(self._keep_pulling(buffer), name=f"metaq pull {queue}")

    async def _drop(self, queue: Queue) -> None:
        self._buffers.pop(queue).dropped = True
        self._turns.forget(queue)
        task = self._pulls.pop(queue)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _keep_pulling(self, buffer: QueueBuffer) -> None:
        queue = buffer.queue
        while not buffer.dropped:
            if buffer.is_full:
                await asyncio.sleep(FULL_PAUSE_S)
                continue
            try:
                pull = await self._puller.pull(
                    queue, buffer.pull_offset, self._subscriptions[queue.topic], 32
                )
            except Refused as error:
                if not error.retriable:
                    self._fail(error)
                await asyncio.sleep(FAILURE_PAUSE_S)
            except MetaqError as error:
                _log.info("pull of %s: %s", queue, error)
                await asyncio.sleep(FAILURE_PAUSE_S)
            else:
                if not pull.is_moved:
                    buffer.put(pull.messages, pull.next_offset)
                elif buffer.unsettled or pull.next_offset == buffer.pull_offset:
                    await asyncio.sleep(FAILURE_PAUSE_S)  # Until what we hold of the old place is polled.
                else:
                    buffer.move(pull.next_offset)
                for message, problem in pull.unreadable:
                    self._fail(UnreadableBody(f"{message.offset_id} of {queue}: {problem}"))
                if pull.messages:
                    self._something.set()

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._something.set()


def _check_position(position: Position) -> None:
    is_offset = isinstance(position, int) and not isinstance(position, bool) and position >= 0
    if not (is_offset or isinstance(position, datetime) or position in ("begin", "end")):
        raise UsageError(f"{position!r} is no position: an offset, a datetime, 'begin' or 'end'")
