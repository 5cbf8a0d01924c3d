"""Reading the messages of a topic from all its queues, without consuming them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from metaq.admin.calls import Calls, in_parallel
from metaq.admin.messages.answered_records import messages_in
from metaq.admin.messages.selection import Selection
from metaq.admin.offsets import Offsets
from metaq.admin.positions import Position
from metaq.client.message import Message
from metaq.client.session.routes import Queue
from metaq.errors import MetaqError, NoRoute, UsageError
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.messages import PULL_HAS_SUBSCRIPTION, PULL_SUSPENDS, Pulled, PullMessage
from metaq.protocol.errors import Refused, Unreachable
from metaq.protocol.names import TOOLS_GROUP
from metaq.retry import Retry

_PULL_MESSAGES_MAX: Final = 32
HOLD_S: Final = 15.0
PULL_TIMEOUT_S: Final = 30.0
_ARRIVED_MAX: Final = 1_024
_LAST_STEP: Final = 256
"""Offsets of a queue that the search for the last messages reads first; each further step is larger."""
_NOTHING: Final = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
_AWAY: Final = (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.GO_AWAY, ResponseCode.SYSTEM_BUSY)
"""Refusals of a broker that starts, stops or changes its role."""
_SAME_WAIT_S: Final = 10.0
"""A broker that stops or starts may answer in between: failures within this time are one absence."""

_DAMAGED: Final = "[DAMAGED]"
"""How a broker's remark begins if it cannot serve the message at the offset."""

OnWait = Callable[[str, MetaqError], None]
"""Called with a broker and the reason when a reader begins to wait for it."""


class MessageDamaged(MetaqError):
    """A message is damaged on the broker that was asked, and no reader gets past it before its repair."""

    retriable = True


@dataclass(slots=True)
class QueueCursor:
    """How far one queue has been read."""

    queue: Queue
    next_offset: int
    end_offset: int
    """Reading ends here, unless it follows the topic."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The part of a topic that is wanted."""

    topic: str
    start: Position = "earliest"
    end: Position = "latest"
    follow: bool = False
    last: int | None = None
    """Only the last messages before the end, instead of those from `start` on."""
    queues: tuple[Queue, ...] | None = None
    selection: Selection = field(default_factory=Selection)
    on_wait: OnWait | None = None


async def read(calls: Calls, offsets: Offsets, wanted: Reading) -> AsyncGenerator[Message, None]:
    """Yields the messages between two positions in the order in which they were stored; then, to follow the
    topic, those that arrive."""
    queues = await _queues(calls, wanted)
    ends = await offsets.at(queues, wanted.end)
    if wanted.last is not None:
        firsts = await offsets.at(queues, "earliest")
        for message in await _last(calls, wanted, firsts, ends):
            yield message
        cursors = [QueueCursor(queue, ends[queue], ends[queue]) for queue in queues]
    else:
        starts = await offsets.at(queues, wanted.start)
        cursors = [QueueCursor(queue, starts[queue], ends[queue]) for queue in queues]
        async for message in _stored(calls, cursors, wanted.selection):
            yield message
    if wanted.follow:
        async for message in _arriving(calls, cursors, wanted):
            yield message


async def pull(
    calls: Calls,
    cursor: QueueCursor,
    *,
    hold_s: float = 0.0,
    selection: Selection | None = None,
    messages_max: int = _PULL_MESSAGES_MAX,
    timeout_s: float = PULL_TIMEOUT_S,
) -> bytes:
    """Pulls once and moves the cursor to where the next pull begins. Returns the stored records, of which the
    broker may leave out some that are not selected."""
    broker = cursor.queue.broker
    selection = selection or Selection()
    while True:
        expression, expression_type = selection.subscription(broker)
        command = PullMessage(
            consumer_group=TOOLS_GROUP,
            topic=cursor.queue.topic,
            queue_id=cursor.queue.id,
            queue_offset=cursor.next_offset,
            max_msg_nums=min(messages_max, _PULL_MESSAGES_MAX),
            sys_flag=PULL_HAS_SUBSCRIPTION | (PULL_SUSPENDS if hold_s else 0),
            suspend_timeout_millis=int(hold_s * 1000),
            subscription=expression,
            expression_type=expression_type,
        )
        try:
            reply = await calls.ask(broker, command, accept=_NOTHING, any_node=True, timeout_s=timeout_s)
        except Refused as error:
            if not selection.evaluates_instead_of(broker, error):
                raise
            continue
        pulled = reply.header(Pulled)
        if not hold_s and (reply.remark or "").startswith(_DAMAGED):
            # Nobody knows when it is repaired, and without it the answer would be wrong.
            raise MessageDamaged(
                f"{cursor.queue.topic}: the message with offset {cursor.next_offset} of queue "
                f"{cursor.queue.broker}:{cursor.queue.id} is damaged and waits for its repair",
                hint="see metaq doctor",
            )
        cursor.next_offset = pulled.next_begin_offset
        return reply.body if reply.code == ResponseCode.SUCCESS else b""


async def pull_messages(
    calls: Calls, cursor: QueueCursor, *, hold_s: float = 0.0, selection: Selection | None = None
) -> list[Message]:
    """Pulls once and returns the selected messages; a message of a retry topic shows that topic and not the
    one it had first."""
    body = await pull(calls, cursor, hold_s=hold_s, selection=selection)
    pulled = messages_in(body, cursor.queue)
    return pulled if selection is None else [message for message in pulled if selection.matches(message)]


async def _queues(calls: Calls, wanted: Reading) -> tuple[Queue, ...]:
    readable = tuple((await calls.route(wanted.topic)).readable)
    if wanted.queues is None:
        return readable
    for queue in wanted.queues:
        if queue not in readable:
            known = ", ".join(sorted(f"{known.broker}:{known.id}" for known in readable)[:16])
            raise UsageError(
                f"topic {wanted.topic} has no queue {queue.id} on {queue.broker}", hint=f"it has {known}"
            )
    return wanted.queues


async def _stored(
    calls: Calls, cursors: list[QueueCursor], selection: Selection
) -> AsyncGenerator[Message, None]:
    """Merges the queues by store time and holds one pull of each."""
    waiting: dict[int, list[Message]] = {}
    while True:
        for number, cursor in enumerate(cursors):
            while not waiting.get(number) and cursor.next_offset < cursor.end_offset:
                waiting[number] = await _pull_before_end(calls, cursor, selection)
        heads = [number for number, messages in waiting.items() if messages]
        if not heads:
            return
        earliest = min(heads, key=lambda number: _age(waiting[number][0]))
        yield waiting[earliest].pop(0)


async def _pull_before_end(calls: Calls, cursor: QueueCursor, selection: Selection) -> list[Message]:
    before = cursor.next_offset
    pulled = await pull_messages(calls, cursor, selection=selection)
    # A pull may return messages beyond the end. They are left for those who follow.
    cursor.next_offset = min(cursor.next_offset, cursor.end_offset)
    if cursor.next_offset <= before:
        cursor.end_offset = cursor.next_offset  # The queue has become shorter.
    return [message for message in pulled if message.queue_offset < cursor.end_offset]


async def _last(
    calls: Calls, wanted: Reading, firsts: dict[Queue, int], ends: dict[Queue, int]
) -> list[Message]:
    """Returns the newest messages. It reads each queue backwards, in steps that grow while few are found."""
    count = wanted.last or 0
    newest: list[Message] = []

    async def one(queue: Queue) -> None:
        found: list[Message] = []
        upper, step = ends[queue], max(count, 1)
        while upper > firsts[queue] and len(found) < count:
            lower = max(firsts[queue], upper - step)
            cursor = QueueCursor(queue, lower, upper)
            part: list[Message] = []
            while cursor.next_offset < cursor.end_offset:
                part += await _pull_before_end(calls, cursor, wanted.selection)
                del part[:-count]
            found = [*part, *found][-count:]
            upper, step = lower, max(step * 4, _LAST_STEP)
        newest[:] = sorted([*newest, *found], key=_age)[-count:]

    await in_parallel(ends, one)
    return newest


def _age(message: Message) -> tuple[int, int]:
    """Orders messages as they were stored, also those that one broker stored in the same millisecond."""
    return message.stored_at, message.physical_offset


async def _arriving(
    calls: Calls, cursors: list[QueueCursor], wanted: Reading
) -> AsyncGenerator[Message, None]:
    """Holds a pull on every queue and yields messages as they come."""
    arrived: asyncio.Queue[Message | Exception] = asyncio.Queue(_ARRIVED_MAX)
    away_s: dict[str, float] = {}
    """When each broker was away last."""
    now_s = asyncio.get_running_loop().time

    async def watch(cursor: QueueCursor) -> None:
        tries = Retry(None)
        broker = cursor.queue.broker
        try:
            while True:
                try:
                    pulled = await pull_messages(calls, cursor, hold_s=HOLD_S, selection=wanted.selection)
                except (Unreachable, NoRoute, Refused) as error:
                    # The broker may be restarting, and its messages come later.
                    if not error.retriable or (isinstance(error, Refused) and error.code not in _AWAY):
                        raise
                    is_new = broker not in away_s or now_s() - away_s[broker] >= _SAME_WAIT_S
                    away_s[broker] = now_s()
                    if is_new and wanted.on_wait is not None:
                        wanted.on_wait(broker, error)
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


def reading_of(
    topic: str,
    start: Position,
    end: Position,
    *,
    follow: bool,
    last: int | None,
    tags: str | Iterable[str] | None,
    sql: str | None,
    key: str | None,
    queues: Iterable[Queue] | None,
    on_wait: OnWait | None,
) -> Reading:
    """Checks what is wanted. Raises UsageError."""
    if last is not None and last < 1:
        raise UsageError(f"last is {last}", hint="it is a number of messages, at least 1")
    return Reading(
        topic,
        start,
        end,
        follow=follow,
        last=last,
        queues=None if queues is None else tuple(queues),
        selection=Selection(tags, sql, key),
        on_wait=on_wait,
    )
