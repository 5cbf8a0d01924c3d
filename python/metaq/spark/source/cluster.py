"""The cluster as the driver sees it: topics and their queues, ends, times, groups, sizes.

Everything here waits, and what may pass by itself is tried again until the time is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

from metaq.client.consumer.offsets import BrokerOffsets, earliest_offset, latest_offset, offset_at
from metaq.client.portal import Portal
from metaq.client.session.routes import MASTER_ID, Queue, Route
from metaq.client.session.session import Session
from metaq.errors import MetaqError, NoRoute
from metaq.protocol import names
from metaq.protocol.bodies import ConsumeQueueLines, TopicList
from metaq.protocol.codes import ResponseCode
from metaq.protocol.messages import MeasureQueue, QueryConsumeQueue, QueueMeasured
from metaq.protocol.offsets import GetMaxOffset, QueueOffset
from metaq.protocol.routes import GetAllTopicListFromNameServer
from metaq.spark.errors import OptionError, SparkError
from metaq.spark.sink.markers import TOPIC_PREFIX as MARKERS_PREFIX
from metaq.spark.source.offsets import OFFSET_MAX
from metaq.spark.source.options import Subscribed

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

PAUSE_S: Final = 0.2
_GONE: Final = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.INVALID_PARAMETER)
"""What a broker says of a topic or a queue that it has no more, while the route still shows it."""
LINES: Final = 1000
"""Lines of a queue that are asked for at once, where a broker cannot measure."""
DELAY_UNKNOWN: Final = -1
"""How long a message waits where a broker does not tell."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The messages that a queue holds."""

    first: int
    end: int


class Cluster:
    """A context manager; `close` may be called twice."""

    def __init__(self, nameservers: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._portal = Portal()
        self._portal.start()
        try:
            self._session = self._portal.run(self._begin, nameservers)
        except BaseException:
            self._portal.close()
            raise

    @staticmethod
    async def _begin(nameservers: str) -> Session:
        session = Session(nameservers)
        await session.start()
        return session

    def close(self) -> None:
        if self._portal.usable:
            self._portal.run(self._session.close)
        self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Topics and queues

    def queues(self, subscribed: Subscribed, *, refresh: bool = False, strict: bool = True) -> list[Queue]:
        """Those that can be read now, in order. Raises OptionError for a topic or queue that is not there;
        where it is not strict, such are left out."""
        return self._portal.run(self._queues, subscribed, refresh, strict)

    async def _queues(self, subscribed: Subscribed, refresh: bool, strict: bool) -> list[Queue]:
        if subscribed.assigned is not None:
            option, topics = "assign", list(subscribed.assigned)
        elif subscribed.pattern is not None:
            option, topics = (
                "subscribePattern",
                await self._patiently(lambda: self._matching(subscribed.pattern or "")),
            )
        else:
            option, topics = "subscribe", list(subscribed.topics)
        routes = []
        for topic in topics:
            try:
                routes.append(await self._route(option, topic, refresh))
            except OptionError:
                if strict:
                    raise
        if subscribed.assigned is None:
            return sorted(queue for route in routes for queue in route.readable)
        wanted = [
            Queue(topic, broker, number)
            for topic, brokers in subscribed.assigned.items()
            for broker, numbers in brokers.items()
            for number in sorted(numbers)
        ]
        readable = {queue for route in routes for queue in route.readable}
        absent = [queue for queue in wanted if queue not in readable]
        if absent and strict:
            there = ", ".join(f"{queue.broker}:{queue.id}" for queue in sorted(readable))
            raise OptionError(
                f"option assign names queue {absent[0].id} of {absent[0].topic} on {absent[0].broker},"
                " which cannot be read",
                hint=f"there are {there}",
            )
        return sorted(readable.intersection(wanted))

    async def _matching(self, pattern: str) -> list[str]:
        reply = (await self._session.ask_nameserver(GetAllTopicListFromNameServer())).check()
        topics = TopicList.decode(reply.body).topic_list
        return sorted(topic for topic in topics if _is_a_users(topic) and re.fullmatch(pattern, topic))

    async def _route(self, option: str, topic: str, refresh: bool) -> Route:
        try:
            return await self._patiently(lambda: self._session.routes.get(topic, refresh=refresh))
        except NoRoute as error:
            raise OptionError(f"option {option}: there is no topic {topic}", hint=str(error)) from error

    def addresses(self, queue: Queue) -> dict[int, str]:
        """Of the queue's broker and its replicas, by broker id; 0 is the master."""
        return dict(self._session.routes.brokers().get(queue.broker, {}))

    # Offsets

    def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        async def one(queue: Queue) -> Bounds:
            first, end = await asyncio.gather(
                earliest_offset(self._session, queue), latest_offset(self._session, queue)
            )
            return Bounds(min(first, end), end)

        return self._of_each(queues, one)

    def ends(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        return self._of_each(queues, lambda queue: latest_offset(self._session, queue))

    def offsets_at(self, times_ms: Mapping[Queue, int]) -> dict[Queue, int]:
        """Of the first message stored then or later; the end where there is none."""
        return self._of_each(times_ms, lambda queue: offset_at(self._session, queue, times_ms[queue]))

    def committed(self, group: str, queues: Iterable[Queue]) -> dict[Queue, int | None]:
        offsets = BrokerOffsets(self._session, group)
        return self._of_each(queues, offsets.read)

    def commit(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Raises MetaqError where a broker did not take one; nothing is tried again."""
        self._portal.run(BrokerOffsets(self._session, group).commit, offsets)

    def replica_ends(self, queue: Queue) -> dict[int, int]:
        """How far each replica that answers is, by broker id; the master is not asked."""

        async def one(broker_id: int) -> int | None:
            with contextlib.suppress(MetaqError):
                command = GetMaxOffset(topic=queue.topic, queue_id=queue.id)
                reply = await self._session.call(queue.broker, command, broker_id=broker_id)
                return reply.check().header(QueueOffset).queue_offset
            return None

        async def every() -> dict[int, int]:
            ids = [broker_id for broker_id in self.addresses(queue) if broker_id != MASTER_ID]
            found = await asyncio.gather(*(one(broker_id) for broker_id in ids))
            return {number: end for number, end in zip(ids, found, strict=True) if end is not None}

        return self._portal.run(every)

    # Sizes

    def measure(
        self, parts: Mapping[Queue, tuple[int, int]], bytes_max: Mapping[Queue, int] | None = None
    ) -> dict[Queue, QueueMeasured]:
        """How far each part goes within its bytes, and what it holds up to there. A broker goes through a
        million messages at most: what is beyond is not counted. Where a broker cannot measure, and no bytes
        are given, it is a thousand, and it is not known how long they wait."""

        async def one(queue: Queue) -> QueueMeasured:
            first, end = parts[queue]
            most = OFFSET_MAX if bytes_max is None else bytes_max[queue]
            command = MeasureQueue(
                topic=queue.topic, queue_id=queue.id, queue_offset=first, end_offset=end, size_bytes_max=most
            )
            reply = await self._session.call(queue.broker, command)
            if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return await self._measure_lines(queue, first, end, most, counts=bytes_max is not None)
            if reply.code in _GONE:
                return QueueMeasured(first, 0)
            return reply.check().header(QueueMeasured)

        return self._of_each(parts, one)

    async def _measure_lines(
        self, queue: Queue, first: int, end: int, bytes_max: int, *, counts: bool
    ) -> QueueMeasured:
        """The same by the lines of the queue, which every broker shows; those that one answer has, unless it
        `counts`."""
        before = await self._line(queue, first - 1)
        measured = QueueMeasured(first, 0, before, delay_ms=DELAY_UNKNOWN)
        while measured.end_offset < end and bytes_max > 0:
            lines = await self._lines(queue, measured.end_offset, min(end - measured.end_offset, LINES))
            for place, size in lines:
                if measured.size_bytes + size > bytes_max:
                    return measured
                measured.size_bytes += size
                measured.end_offset += 1
                measured.last_physical_offset = place
            if not lines or not counts:
                break
        return measured

    async def _line(self, queue: Queue, queue_offset: int) -> int:
        lines = await self._lines(queue, queue_offset, 1) if queue_offset >= 0 else []
        return lines[0][0] if lines else -1

    async def _lines(self, queue: Queue, queue_offset: int, count: int) -> list[tuple[int, int]]:
        command = QueryConsumeQueue(
            topic=queue.topic, queue_id=queue.id, queue_offset=queue_offset, count=count
        )
        reply = (await self._session.call(queue.broker, command)).check()
        found = ConsumeQueueLines.decode(reply.body)
        if queue_offset < found.min_queue_index:
            return []
        return [(line.physic_offset, line.physic_size) for line in found.queue_data]

    # Inside

    def _of_each(self, queues: Iterable[Queue], ask: Callable[[Queue], Awaitable[_T]]) -> dict[Queue, _T]:
        wanted = list(queues)

        async def all_of_them() -> list[_T]:
            return await asyncio.gather(*(self._patiently(partial(ask, queue)) for queue in wanted))

        return dict(zip(wanted, self._portal.run(all_of_them), strict=True))

    async def _patiently(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return await ask()
            except MetaqError as error:
                if isinstance(error, SparkError) or not error.retriable or time.monotonic() >= deadline:
                    raise
                _log.info("trying again: %s", error)
            await asyncio.sleep(PAUSE_S)


def _is_a_users(topic: str) -> bool:
    if topic.startswith(MARKERS_PREFIX):
        return False
    return names.is_client_writable(topic) and topic not in names.RESERVED and names.group_of(topic) is None
