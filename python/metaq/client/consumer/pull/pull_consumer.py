"""Consumption by polling: the caller names the queues, says where to read and asks for messages.

A puller is not a member of a group and takes no queues from anybody. If it has a group, it only uses that
group's committed offsets. The native stream (`_core.PullStream`) pulls ahead; see assigned_queues.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from metaq._core import Message, PullStream
from metaq.client.compression import INFLATED_BYTES_MAX
from metaq.client.consumer.offsets.positions import Position, checked_position, resolve_position
from metaq.client.consumer.offsets.storage import BrokerOffsets
from metaq.client.consumer.pull.assigned_queues import AssignedQueues
from metaq.client.consumer.pull.buffers import BYTES_MAX, COUNT_MAX, Limits
from metaq.client.consumer.pull.read_nodes import ReadFrom, check_read_from
from metaq.client.consumer.pull.requests import HOLD_MS, INFLATED_TOGETHER_BYTES, find_unreadable
from metaq.client.consumer.subscription import Subscription
from metaq.client.message import check_group, check_topic
from metaq.client.session.routes import Queue
from metaq.errors import UnreadableBody, UsageError
from metaq.protocol.names import TOOLS_GROUP
from metaq.settings import PullSettings

if TYPE_CHECKING:
    from metaq.client.session.session import Session


class PullConsumer:
    """Reads the queues that are assigned to it. Messages that `poll` returned count as read."""

    def __init__(
        self,
        session: Session,
        *,
        group: str | None = None,
        tags: str | Iterable[str] | None = None,
        sql: str | None = None,
        function: str | None = None,
        start: Position = "latest",
        buffer_count: int = COUNT_MAX,
        buffer_bytes: int = BYTES_MAX,
        read_from: ReadFrom = "master",
    ) -> None:
        """Raises UsageError or ValueError for options that make no sense."""
        if group is not None:
            check_group(group)
        check_read_from(read_from)
        limits = Limits(buffer_count, buffer_bytes)
        self._session = session
        self._group = group
        self._filter = (tags, sql, function)
        self._start = checked_position(start)
        self._offsets = None if group is None else BrokerOffsets(session, group)
        self._is_closed = False
        self._progress = asyncio.Event()
        """Set when a poll that waits should look again."""
        self._failure: Exception | None = None
        """Raised by the next poll that finds no message."""
        self._subscription("any")  # Raises now if the filter is not valid.
        self._assigned = AssignedQueues(
            session,
            PullSettings(
                group=group or TOOLS_GROUP,
                hold_ms=HOLD_MS,
                count_max=limits.count_max,
                bytes_max=limits.bytes_max,
            ),
            self._subscription,
            read_from=read_from,
            on_progress=self._progress.set,
            on_failure=self._fail,
        )

    @property
    def is_closed(self) -> bool:
        """Whether it is closed or closing."""
        return self._is_closed

    @property
    def queues(self) -> list[Queue]:
        """The queues that are assigned to it."""
        return self._assigned.queues

    def position(self, queue: Queue) -> int:
        """Returns the offset of the message of this queue that `poll` gives next. Raises UsageError."""
        self._session.require_process()
        return self._assigned.position(queue)

    async def assign(self, *what: str | Queue) -> list[Queue]:
        """Reads these queues, or all queues of these topics, and no others. Returns the queues.

        A new queue starts at the group's committed offset, or at `start` if there is none. Raises NoRoute for
        a topic that does not exist.
        """
        self._require_open()
        wanted: list[Queue] = []
        for item in what:
            if isinstance(item, Queue):
                await self._session.routes.get(item.topic)
                wanted.append(item)
            else:
                check_topic(item)
                wanted += (await self._session.routes.get(item)).readable
        for queue in set(self.queues) - set(wanted):
            self._assigned.drop(queue)
        fresh = [queue for queue in dict.fromkeys(wanted) if queue not in self._assigned]
        offsets = await asyncio.gather(*(self._start_offset(queue) for queue in fresh))
        self._require_open()
        for queue, queue_offset in zip(fresh, offsets, strict=True):
            self._assigned.begin(queue, queue_offset)
        return self.queues

    async def seek(self, position: Position, *queues: Queue) -> None:
        """Lets the next `poll` read from a position, in these queues or in all that are assigned.

        A position is "earliest", "latest", a datetime or a queue offset.
        """
        self._require_open()
        position = checked_position(position)
        for queue in queues or self.queues:
            self._assigned.require(queue)
            queue_offset = await resolve_position(self._session, queue, position)
            self._require_open()
            self._assigned.require(queue)  # Another assign may have removed it in the meantime.
            self._assigned.begin(queue, queue_offset)

    async def poll(self, timeout: float = 1.0, *, count: int = 32) -> list[Message]:
        """Returns up to `count` messages as soon as there are any; an empty list if the timeout passes.

        Raises Refused if the broker refused the pull, and UnreadableBody once for each message that cannot be
        decompressed.
        """
        self._require_open()
        started_ns = time.time_ns()
        stream = self._pollable(count)
        # A caller who only polls a long backlog would otherwise keep the loop from its heartbeats.
        # Nothing may be awaited once messages are taken: a cancellation would lose them.
        await asyncio.sleep(0)
        messages = self._readable(stream, count, *stream.take(count))
        if messages:
            self._session.telemetry.received(self._group, messages, started_ns)
            return messages
        try:
            async with asyncio.timeout(timeout):
                while True:
                    self._progress.clear()
                    messages = self._readable(stream, count, *stream.take(count))
                    if messages:
                        self._session.telemetry.received(self._group, messages, started_ns)
                        return messages
                    self._raise_failure()
                    await self._progress.wait()
        except TimeoutError:
            return []

    def poll_waiting(self, timeout: float, count: int) -> list[Message]:
        """Does the same as `poll` from any thread, and waits without holding the interpreter lock."""
        self._require_not_closed()
        stream = self._pollable(count)
        started_ns = time.time_ns()
        deadline = time.monotonic() + timeout
        while True:
            wake_count = stream.wake_count()
            # A failure is raised once no message is left, so do not wait for more.
            left = 0.0 if self._failure is not None else deadline - time.monotonic()
            messages = self._readable(stream, count, *stream.wait(count, left, wake_count))
            if messages:
                self._session.telemetry.received(self._group, messages, started_ns)
                return messages
            self._require_not_closed()
            self._raise_failure()
            if time.monotonic() >= deadline:
                return []

    async def commit(self) -> dict[Queue, int]:
        """Commits how far every queue was polled, and returns the offsets.

        If the group was reset in the meantime, nothing is committed for the queue: `poll` continues at the
        new offset, which is returned. Raises UsageError without a group, and MetaqError if a broker did not
        store an offset.
        """
        self._require_open()
        if self._offsets is None:
            raise UsageError("a puller without a group cannot commit", hint="give group=… to puller")
        offsets = {queue: self.position(queue) for queue in self.queues}
        for queue in await self._offsets.commit(offsets):
            reset_to = await self._offsets.read(queue)
            if reset_to is not None and queue in self._assigned:
                self._assigned.begin(queue, reset_to)
                offsets[queue] = reset_to
                # The broker ignores other offsets until it has this one.
                await self._offsets.commit({queue: reset_to})
        return offsets

    async def committed(self, queue: Queue) -> int | None:
        """Returns the offset that the group has committed for a queue, or None."""
        self._require_open()
        if self._offsets is None:
            raise UsageError(
                "a puller without a group has no committed offsets", hint="give group=… to puller"
            )
        await self._session.routes.get(queue.topic)
        return await self._offsets.read(queue)

    def pause(self, queues: Iterable[Queue] | None = None) -> None:
        """Makes `poll` skip these queues, or all queues, until they are resumed."""
        self._session.require_process()
        self._assigned.pause(queues)

    def resume(self, queues: Iterable[Queue] | None = None) -> None:
        """Continues with these queues, or with all."""
        self._session.require_process()
        self._assigned.resume(queues)

    async def close(self) -> None:
        """Stops reading. Does not commit. Safe to call twice."""
        self._is_closed = True
        self._assigned.close()

    def _pollable(self, count: int) -> PullStream:
        if count < 1:
            raise UsageError(f"count is {count}: it must be at least 1")
        if self._assigned.stream is None or not len(self._assigned):
            raise UsageError("no queue is assigned", hint="call assign first")
        return self._assigned.stream

    def _readable(
        self, stream: PullStream, count: int, messages: list[Message], compressed: list[Message]
    ) -> list[Message]:
        """Inflates compressed bodies, and takes more messages while there is room for their bodies.

        The stream stops at each compressed message, so at most the last one is compressed. Messages that
        cannot be inflated are left out, and the next poll that finds nothing raises the reason.
        """
        size_bytes = taken = 0
        readable = messages
        while compressed:
            taken += len(messages)
            unreadable = find_unreadable(compressed)
            for message, problem in unreadable:
                self._failure = UnreadableBody(f"{message.offset_id} of {message.queue}: {problem}")
                readable.pop()
            # A body that is too large cost as much work as the largest allowed one.
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
        self._progress.set()
        if self._assigned.stream is not None:
            self._assigned.stream.wake()

    def _require_open(self) -> None:
        self._session.require_usable()
        self._require_not_closed()

    def _require_not_closed(self) -> None:
        if self.is_closed:
            raise UsageError("this puller is closed", hint="make another one")

    def _subscription(self, topic: str) -> Subscription:
        tags, sql, function = self._filter
        return Subscription.of(topic, tags=tags, sql=sql, function=function)

    async def _start_offset(self, queue: Queue) -> int:
        if self._offsets is not None:
            committed = await self._offsets.read(queue)
            if committed is not None and committed >= 0:
                return committed
        return await resolve_position(self._session, queue, self._start)
