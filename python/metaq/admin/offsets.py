"""Offsets of single queues, on asyncio: what they hold, where a time is, and what groups have committed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Final, TypeVar

from metaq.admin.calls import Calls, in_parallel
from metaq.admin.positions import Position, milliseconds
from metaq.admin.results import Bounds, QueuePart
from metaq.client.session.routes import Queue
from metaq.errors import MetaqError, UsageError
from metaq.protocol.bodies import ConsumeQueueLines
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.commands.messages import MeasureQueue, QueryConsumeQueue, QueueMeasured
from metaq.protocol.commands.offsets import (
    PREVIOUSLY_RESET,
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    QueueOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)
from metaq.protocol.names import MASTER_ID
from metaq.protocol.reply import Reply

_T = TypeVar("_T")

OFFSET_MAX: Final = 2**63 - 1
QUEUES_AT_ONCE_MAX: Final = 64
LINES_MAX: Final = 1_000
"""Lines of a queue that one answer has."""
_GONE: Final = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.INVALID_PARAMETER)
"""A broker no longer has the topic or the queue, while the route still shows it."""


class Offsets:
    """Reads and commits offsets. Results are by queue. While a broker has no master, a replica answers."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._tables: set[tuple[str, str, str]] = set()
        """Brokers, topics and groups of which a broker has a table of offsets."""

    async def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        """Returns which messages queues hold."""

        async def one(queue: Queue) -> Bounds:
            first, end = await asyncio.gather(self._first(queue), self._end(queue))
            return Bounds(min(first, end), end)

        return await self._of_each(queues, one)

    async def ends(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        """Returns the offsets of the next messages to come."""
        return await self._of_each(queues, self._end)

    async def at(self, queues: Iterable[Queue], position: Position) -> dict[Queue, int]:
        """Returns the offsets of a position. Raises UsageError for an offset that a queue does not hold."""
        wanted = list(queues)
        if isinstance(position, datetime):
            return await self.at_times(dict.fromkeys(wanted, milliseconds(position)))
        bounds = await self.bounds(wanted)
        if isinstance(position, int):
            for queue, found in bounds.items():
                if not found.first <= position <= found.end:
                    raise UsageError(
                        f"offset {position} is outside queue {queue.id} of {queue.topic} on {queue.broker}",
                        hint=f"it holds {found.first} to {found.end}",
                    )
            return dict.fromkeys(wanted, position)
        if position == "earliest":
            return {queue: found.first for queue, found in bounds.items()}
        if position == "latest":
            return {queue: found.end for queue, found in bounds.items()}
        raise UsageError(
            f"{position!r} is not a position", hint='use "earliest", "latest", a datetime or an offset'
        )

    async def at_times(self, times_ms: Mapping[Queue, int]) -> dict[Queue, int]:
        """Returns the offsets of the first messages that were stored at these times or later; the end of a
        queue if there is none."""

        async def one(queue: Queue) -> int:
            command = SearchOffsetByTimestamp(topic=queue.topic, queue_id=queue.id, timestamp=times_ms[queue])
            return (await self._ask(queue, command)).header(QueueOffset).queue_offset

        return await self._of_each(times_ms, one)

    async def committed(self, group: str, queues: Iterable[Queue]) -> dict[Queue, int | None]:
        """Returns the offsets that a group has committed; None if it has not committed any."""

        async def one(queue: Queue) -> int | None:
            # Without the last field a broker may answer 0 for a young queue instead of "none".
            command = QueryConsumerOffset(
                consumer_group=group, topic=queue.topic, queue_id=queue.id, set_zero_if_not_found=False
            )
            reply = await self._ask(queue, command, accept=(ResponseCode.QUERY_NOT_FOUND,))
            if reply.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            return reply.header(QueueOffset).queue_offset

        return await self._of_each(queues, one)

    async def resets(self, group: str, queues: Iterable[Queue]) -> dict[Queue, int]:
        """Returns where a group was reset to, for each queue in which it has not moved yet. Only MetaQ's
        brokers tell that."""

        async def one(queue: Queue) -> int | None:
            command = QueryConsumerOffset(
                consumer_group=group, topic=queue.topic, queue_id=queue.id, set_zero_if_not_found=False
            )
            reply = await self._ask(queue, command, accept=(ResponseCode.QUERY_NOT_FOUND,))
            is_reset = reply.code == ResponseCode.SUCCESS and reply.remark == PREVIOUSLY_RESET
            return reply.header(QueueOffset).queue_offset if is_reset else None

        found = await self._of_each(queues, one)
        return {queue: queue_offset for queue, queue_offset in found.items() if queue_offset is not None}

    async def commit(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Commits offsets for a group, as its consumers do. Raises the first error after all were tried.

        A consumer that runs may commit others the next moment; `groups.reset` moves it too.
        """
        tables: dict[tuple[str, str], list[Queue]] = {}
        for queue in offsets:
            tables.setdefault((queue.broker, queue.topic), []).append(queue)

        async def commit_one(queue: Queue) -> MetaqError | None:
            command = UpdateConsumerOffset(
                consumer_group=group, topic=queue.topic, queue_id=queue.id, commit_offset=offsets[queue]
            )
            try:
                await self._calls.change(queue.broker, command, any_node=True)
            except MetaqError as error:
                return error
            return None

        async def commit_table(table: tuple[str, str]) -> list[MetaqError | None]:
            first, *rest = tables[table]
            outcomes: list[MetaqError | None] = []
            # Apache's broker makes the table when the first offset comes. Two that come together make one
            # each, and one of them is lost: so the first goes alone.
            if (*table, group) in self._tables:
                rest = tables[table]
            else:
                outcomes.append(await commit_one(first))
                if outcomes == [None]:
                    self._tables.add((*table, group))
            done = await in_parallel(rest, commit_one, at_once=QUEUES_AT_ONCE_MAX)
            return [*outcomes, *done.values()]

        for outcomes in (await in_parallel(tables, commit_table)).values():
            for error in outcomes:
                if error is not None:
                    raise error

    async def replica_ends(self, queue: Queue) -> dict[int, int]:
        """Returns how far each replica of a queue that answers is, by broker id; the master is not asked."""
        addresses = (await self._calls.route(queue.topic)).brokers.get(queue.broker, {})

        async def one(broker_id: int) -> int | None:
            command = GetMaxOffset(topic=queue.topic, queue_id=queue.id)
            with contextlib.suppress(MetaqError):
                reply = await self._calls.ask(queue.broker, command, broker_id=broker_id, retry_s=0)
                return reply.header(QueueOffset).queue_offset
            return None

        found = await in_parallel([number for number in addresses if number != MASTER_ID], one)
        return {broker_id: end for broker_id, end in found.items() if end is not None}

    async def measure(
        self, parts: Mapping[Queue, tuple[int, int]], bytes_max: Mapping[Queue, int] | None = None
    ) -> dict[Queue, QueuePart]:
        """Returns how far each part of a queue, from one offset up to another, reaches within its bytes.

        MetaQ's brokers look at a million messages at most. Others are asked for the lines of their queues: a
        thousand if no bytes are given, and they do not tell how long messages wait.
        """

        async def one(queue: Queue) -> QueuePart:
            first, end = parts[queue]
            most = OFFSET_MAX if bytes_max is None else bytes_max[queue]
            command = MeasureQueue(
                topic=queue.topic, queue_id=queue.id, queue_offset=first, end_offset=end, size_bytes_max=most
            )
            codes = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, *_GONE)
            reply = await self._ask(queue, command, accept=codes)
            if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return await self._measure_lines(queue, first, end, most, reads_all=bytes_max is not None)
            if reply.code in _GONE:
                return QueuePart(first, 0, delay_ms=0)
            found = reply.header(QueueMeasured)
            before = found.before_physical_offset
            return QueuePart(
                found.end_offset, found.size_bytes, before if before >= 0 else None, found.delay_ms
            )

        return await self._of_each(parts, one)

    async def ordered_since(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        """Returns since when the messages of queues are in the order of their store times, in milliseconds.

        Queues of other brokers than MetaQ's are left out: if their clock was set back, so were the times.
        """

        async def one(queue: Queue) -> int | None:
            command = MeasureQueue(
                topic=queue.topic, queue_id=queue.id, queue_offset=0, end_offset=0, size_bytes_max=0
            )
            codes = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, *_GONE)
            reply = await self._ask(queue, command, accept=codes)
            if reply.code != ResponseCode.SUCCESS:
                return None
            since_ms = reply.header(QueueMeasured).ordered_since_ms
            return since_ms if since_ms >= 0 else None

        found = await self._of_each(queues, one)
        return {queue: since_ms for queue, since_ms in found.items() if since_ms is not None}

    async def _measure_lines(
        self, queue: Queue, first: int, end: int, bytes_max: int, *, reads_all: bool
    ) -> QueuePart:
        """Measures by the lines of the queue, which every broker shows."""
        lines = await self._lines(queue, first - 1, 1) if first > 0 else []
        before = lines[0][0] if lines else None
        reached, size_bytes = first, 0
        while reached < end and bytes_max > 0:
            lines = await self._lines(queue, reached, min(end - reached, LINES_MAX))
            for _, line_bytes in lines:
                if size_bytes + line_bytes > bytes_max:
                    return QueuePart(reached, size_bytes, before)
                size_bytes += line_bytes
                reached += 1
            if not lines or not reads_all:
                break
        return QueuePart(reached, size_bytes, before)

    async def _lines(self, queue: Queue, queue_offset: int, count: int) -> list[tuple[int, int]]:
        """Physical offsets and sizes in bytes."""
        command = QueryConsumeQueue(
            topic=queue.topic, queue_id=queue.id, queue_offset=queue_offset, count=count
        )
        found = ConsumeQueueLines.decode((await self._ask(queue, command)).body)
        if queue_offset < found.min_queue_index:
            return []
        return [(line.physic_offset, line.physic_size) for line in found.queue_data]

    async def _first(self, queue: Queue) -> int:
        command = GetMinOffset(topic=queue.topic, queue_id=queue.id)
        return (await self._ask(queue, command)).header(QueueOffset).queue_offset

    async def _end(self, queue: Queue) -> int:
        command = GetMaxOffset(topic=queue.topic, queue_id=queue.id)
        return (await self._ask(queue, command)).header(QueueOffset).queue_offset

    async def _ask(self, queue: Queue, command: Command, *, accept: Collection[int] = ()) -> Reply:
        """Asks a queue's master, or a replica while there is none: replicas have the same queues."""
        return await self._calls.ask(queue.broker, command, accept=accept, any_node=True)

    async def _of_each(
        self, queues: Iterable[Queue], ask: Callable[[Queue], Awaitable[_T]]
    ) -> dict[Queue, _T]:
        return await in_parallel(queues, ask, at_once=QUEUES_AT_ONCE_MAX)
