"""Reading a topic from all its queues: first what is there, in the order it was stored, then what arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from metaq._core import Record, decode_records
from metaq.cli.cluster import Cluster, Queue, readable_queues
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Unreachable
from metaq.protocol.messages import Pulled, PullMessage
from metaq.protocol.offsets import GetMaxOffset, GetMinOffset, QueueOffset, SearchOffsetByTimestamp

CONSUMER_GROUP = "TOOLS_CONSUMER"
SUSPEND = 2
SUBSCRIPTION = 4
HOLD_MS = 15_000
PULL_TIMEOUT_S = 30.0
RETRY_PAUSE_S = 1.0


@dataclass(slots=True)
class Position:
    """How far one queue has been read."""

    queue: Queue
    queue_offset: int
    backlog_end: int
    """Where the queue ended when reading began."""


async def tail(
    cluster: Cluster, topic: str, start: str | int, *, follow: bool
) -> AsyncGenerator[Record, None]:
    """`start` is begin, end or a time in milliseconds."""
    route = await cluster.route_required(topic)
    positions = [await _position(cluster, topic, queue, start) for queue in readable_queues(route)]
    async for record in _backlog(cluster, topic, positions):
        yield record
    if follow:
        async for record in _arriving(cluster, topic, positions):
            yield record


async def _position(cluster: Cluster, topic: str, queue: Queue, start: str | int) -> Position:
    async def ask(command: GetMaxOffset | GetMinOffset | SearchOffsetByTimestamp) -> int:
        reply = await cluster.ask_broker(queue.address, command)
        return reply.check().header(QueueOffset).queue_offset

    end = await ask(GetMaxOffset(topic=topic, queue_id=queue.queue_id))
    if start == "end":
        first = end
    elif start == "begin":
        first = await ask(GetMinOffset(topic=topic, queue_id=queue.queue_id))
    else:
        first = await ask(SearchOffsetByTimestamp(topic=topic, queue_id=queue.queue_id, timestamp=int(start)))
    return Position(queue, first, end)


async def _backlog(cluster: Cluster, topic: str, positions: list[Position]) -> AsyncGenerator[Record, None]:
    """Merges the queues by store time, holding one pull's worth of each."""
    waiting: dict[int, list[Record]] = {}
    while True:
        for number, position in enumerate(positions):
            while not waiting.get(number) and position.queue_offset < position.backlog_end:
                before = position.queue_offset
                pulled = await pull(cluster, topic, position, hold_ms=0)
                # What arrived meanwhile may come along; it is read again, in its turn, by what follows.
                waiting[number] = [record for record in pulled if record.queue_offset < position.backlog_end]
                position.queue_offset = min(position.queue_offset, position.backlog_end)
                if position.queue_offset <= before:
                    break  # The queue is shorter than it was said to be.
        heads = [number for number, records in waiting.items() if records]
        if not heads:
            return
        earliest = min(heads, key=lambda number: waiting[number][0].store_timestamp_ms)
        yield waiting[earliest].pop(0)


async def _arriving(cluster: Cluster, topic: str, positions: list[Position]) -> AsyncGenerator[Record, None]:
    """Holds a pull on every queue; the first that finds something is told first."""
    arrived: asyncio.Queue[Record | Exception] = asyncio.Queue(maxsize=1024)

    async def watch(position: Position) -> None:
        try:
            while True:
                try:
                    pulled = await pull(cluster, topic, position, hold_ms=HOLD_MS)
                except Unreachable:
                    # The broker may be restarting: what it has is still to come.
                    await asyncio.sleep(RETRY_PAUSE_S)
                    continue
                for record in pulled:
                    await arrived.put(record)
        except Exception as error:
            await arrived.put(error)

    watchers = [asyncio.create_task(watch(position)) for position in positions]
    try:
        while True:
            record = await arrived.get()
            if isinstance(record, Exception):
                raise record
            yield record
    finally:
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)


async def pull(cluster: Cluster, topic: str, position: Position, *, hold_ms: int) -> list[Record]:
    """One pull, after which the position stands where the next one begins."""
    command = PullMessage(
        consumer_group=CONSUMER_GROUP,
        topic=topic,
        queue_id=position.queue.queue_id,
        queue_offset=position.queue_offset,
        max_msg_nums=32,
        sys_flag=SUBSCRIPTION | (SUSPEND if hold_ms else 0),
        suspend_timeout_millis=hold_ms,
        subscription="*",
        expression_type="TAG",
    )
    reply = await cluster.ask_broker(position.queue.address, command, timeout=PULL_TIMEOUT_S)
    empty = (
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    )
    if reply.code not in empty:
        reply.check()
    position.queue_offset = reply.header(Pulled).next_begin_offset
    return decode_records(reply.body) if reply.code == ResponseCode.SUCCESS else []
