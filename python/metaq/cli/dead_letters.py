"""Dead letters of a group: which there are, and giving them to the group once more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from metaq._core import Record, decode_records
from metaq.cli.cluster import PRODUCER_GROUP, STATUSES, Cluster, Queue, readable_queues, write_properties
from metaq.cli.tailing import Position, pull
from metaq.errors import CommandError
from metaq.protocol.codes import ResponseCode
from metaq.protocol.messages import SendMessageV2, ViewMessageById
from metaq.protocol.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from metaq.protocol.offsets import (
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    QueueOffset,
    UpdateConsumerOffset,
)

OF_ITS_END = frozenset(
    {"DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "DELAY", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME"}
)
"""Properties that a message has because it was given up, or from its last try."""
OFFSET_DIGITS = 16


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One of them, and where it lies."""

    queue: Queue
    record: Record

    @property
    def origin(self) -> str:
        """The topic that the group consumed it from."""
        properties = self.record.properties
        return properties.get("RETRY_TOPIC") or properties.get("DLQ_ORIGIN_TOPIC") or ""


async def dead_letters(cluster: Cluster, group: str, *, again: bool = False) -> AsyncIterator[DeadLetter]:
    """Those that were not given to the group again yet; all that are left with `again`."""
    topic = DEAD_LETTER_PREFIX + group
    route = await cluster.route(topic)
    for queue in readable_queues(route) if route is not None else ():
        position = await _unsent(cluster, group, topic, queue, again=again)
        while position.queue_offset < position.backlog_end:
            before = position.queue_offset
            for record in await pull(cluster, topic, position, hold_ms=0):
                yield DeadLetter(queue, record)
            if position.queue_offset <= before:
                break


async def _unsent(cluster: Cluster, group: str, topic: str, queue: Queue, *, again: bool) -> Position:
    """How far they were re-sent is the group's committed offset on its dead letters."""

    async def ask(command: GetMaxOffset | GetMinOffset) -> int:
        return (await cluster.ask_broker(queue.address, command)).check().header(QueueOffset).queue_offset

    first = await ask(GetMinOffset(topic=topic, queue_id=queue.queue_id))
    end = await ask(GetMaxOffset(topic=topic, queue_id=queue.queue_id))
    query = QueryConsumerOffset(
        consumer_group=group, topic=topic, queue_id=queue.queue_id, set_zero_if_not_found=False
    )
    reply = await cluster.ask_broker(queue.address, query)
    if not again and reply.code != ResponseCode.QUERY_NOT_FOUND:
        first = max(first, reply.check().header(QueueOffset).queue_offset)
    return Position(queue, first, end)


async def resend_all(cluster: Cluster, group: str, rate: float) -> AsyncIterator[DeadLetter]:
    """Gives each to the group once more, `rate` a second, and remembers how far it came."""
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    async for letter in dead_letters(cluster, group):
        await asyncio.sleep(max(due_s - loop.time(), 0))
        due_s = max(due_s, loop.time() - 1) + 1 / rate
        await resend(cluster, group, letter)
        done = UpdateConsumerOffset(
            consumer_group=group,
            topic=letter.record.topic,
            queue_id=letter.queue.queue_id,
            commit_offset=letter.record.queue_offset + 1,
        )
        (await cluster.ask_broker(letter.queue.address, done)).check()
        yield letter


async def resend(cluster: Cluster, group: str, letter: DeadLetter) -> None:
    """Through the group's retry topic, so that no other group gets it; its tries are counted anew."""
    record = letter.record
    properties = {name: value for name, value in record.properties.items() if name not in OF_ITS_END}
    properties["RETRY_TOPIC"] = letter.origin
    command = SendMessageV2(
        producer_group=PRODUCER_GROUP,
        topic=RETRY_PREFIX + group,
        sys_flag=record.system_flag & ~0b11_0000,  # The addresses of the copy are its own.
        born_timestamp=record.born_timestamp_ms,
        flag=record.flag,
        properties=write_properties(properties),
        broker_name=letter.queue.broker,
    )
    reply = await cluster.ask_broker(letter.queue.address, command, body=record.body, timeout=10)
    if reply.code not in STATUSES:
        reply.check()


async def find(cluster: Cluster, group: str, message_id: str) -> DeadLetter:
    """By its offset message id; raises CommandError where it is none of the group's dead letters."""
    route = await cluster.route(DEAD_LETTER_PREFIX + group)
    try:
        physical_offset = int(message_id[-OFFSET_DIGITS:], 16)
    except ValueError:
        raise CommandError(f"{message_id} is no message id", hint="metaq dlq list prints them") from None
    for queue in readable_queues(route) if route is not None else ():
        reply = await cluster.ask_broker(queue.address, ViewMessageById(physical_offset=physical_offset))
        for record in decode_records(reply.body) if reply.code == ResponseCode.SUCCESS else ():
            if record.message_id == message_id.upper() and record.topic == DEAD_LETTER_PREFIX + group:
                return DeadLetter(queue, record)
    raise CommandError(
        f"{message_id} is no dead letter of {group}", hint=f"metaq dlq list {group} prints them"
    )
