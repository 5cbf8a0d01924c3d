"""Reading the messages of a topic from all its queues, without consuming them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from metaq._core import decode_messages
from metaq.admin.calls import Calls
from metaq.admin.offsets import Offsets
from metaq.admin.positions import Position
from metaq.client.message import Message
from metaq.client.session.routes import Queue
from metaq.errors import NoRoute
from metaq.protocol.bodies import ALL_TAGS, TAG
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Unreachable
from metaq.protocol.messages import PULL_HAS_SUBSCRIPTION, PULL_SUSPENDS, Pulled, PullMessage
from metaq.protocol.names import TOOLS_GROUP
from metaq.retry import Retry

"""Every broker has this group."""
_PULL_MESSAGES_MAX: Final = 32
HOLD_S: Final = 15.0
PULL_TIMEOUT_S: Final = 30.0
_ARRIVED_MAX: Final = 1_024
_NOTHING: Final = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


@dataclass(slots=True)
class QueueCursor:
    """How far one queue has been read."""

    queue: Queue
    next_offset: int
    end_offset: int
    """Reading ends here, unless it follows the topic."""


async def read(
    calls: Calls, offsets: Offsets, topic: str, start: Position, end: Position, *, follow: bool
) -> AsyncGenerator[Message, None]:
    """Yields the messages between two positions in the order in which they were stored; then, to follow the
    topic, those that arrive."""
    queues = (await calls.route(topic)).readable
    ends = await offsets.at(queues, end)
    starts = await offsets.at(queues, start)
    cursors = [QueueCursor(queue, starts[queue], ends[queue]) for queue in queues]
    async for message in _stored(calls, cursors):
        yield message
    if follow:
        async for message in _arriving(calls, cursors):
            yield message


async def pull(calls: Calls, cursor: QueueCursor, *, hold_s: float = 0.0) -> bytes:
    """Pulls once and moves the cursor to where the next pull begins. Returns the stored records."""
    command = PullMessage(
        consumer_group=TOOLS_GROUP,
        topic=cursor.queue.topic,
        queue_id=cursor.queue.id,
        queue_offset=cursor.next_offset,
        max_msg_nums=_PULL_MESSAGES_MAX,
        sys_flag=PULL_HAS_SUBSCRIPTION | (PULL_SUSPENDS if hold_s else 0),
        suspend_timeout_millis=int(hold_s * 1000),
        subscription=ALL_TAGS,
        expression_type=TAG,
    )
    reply = await calls.ask(
        cursor.queue.broker, command, accept=_NOTHING, any_node=True, timeout_s=PULL_TIMEOUT_S
    )
    cursor.next_offset = reply.header(Pulled).next_begin_offset
    return reply.body if reply.code == ResponseCode.SUCCESS else b""


async def pull_messages(calls: Calls, cursor: QueueCursor, *, hold_s: float = 0.0) -> list[Message]:
    """Pulls once; a message of a retry topic shows that topic and not the one it had first."""
    body = await pull(calls, cursor, hold_s=hold_s)
    return decode_messages(body, cursor.queue, shows_first_topic=False)[0]


async def _stored(calls: Calls, cursors: list[QueueCursor]) -> AsyncGenerator[Message, None]:
    """Merges the queues by store time and holds one pull of each."""
    waiting: dict[int, list[Message]] = {}
    while True:
        for number, cursor in enumerate(cursors):
            while not waiting.get(number) and cursor.next_offset < cursor.end_offset:
                before = cursor.next_offset
                pulled = await pull_messages(calls, cursor)
                # A pull may return messages beyond the end. They are left for `follow`.
                waiting[number] = [message for message in pulled if message.queue_offset < cursor.end_offset]
                cursor.next_offset = min(cursor.next_offset, cursor.end_offset)
                if cursor.next_offset <= before:
                    cursor.end_offset = cursor.next_offset  # The queue has become shorter.
        heads = [number for number, messages in waiting.items() if messages]
        if not heads:
            return
        earliest = min(heads, key=lambda number: _age(waiting[number][0]))
        yield waiting[earliest].pop(0)


def _age(message: Message) -> tuple[int, int]:
    """Orders messages as they were stored, also those that one broker stored in the same millisecond."""
    return message.stored_at, message.physical_offset


async def _arriving(calls: Calls, cursors: list[QueueCursor]) -> AsyncGenerator[Message, None]:
    """Holds a pull on every queue and yields messages as they come."""
    arrived: asyncio.Queue[Message | Exception] = asyncio.Queue(_ARRIVED_MAX)

    async def watch(cursor: QueueCursor) -> None:
        tries = Retry(None)
        try:
            while True:
                try:
                    pulled = await pull_messages(calls, cursor, hold_s=HOLD_S)
                except (Unreachable, NoRoute) as error:
                    # The broker may be restarting, and its messages come later.
                    if not error.retriable:
                        raise
                    await tries.pause()
                    continue
                tries = Retry(None)
                for message in pulled:
                    await arrived.put(message)
        except Exception as error:
            await arrived.put(error)

    watchers = [asyncio.create_task(watch(cursor)) for cursor in cursors]
    try:
        while True:
            message = await arrived.get()
            if isinstance(message, Exception):
                raise message
            yield message
    finally:
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
