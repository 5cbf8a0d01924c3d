"""Finding stored messages, on asyncio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Final

from metaq.admin.calls import Calls
from metaq.admin.groups.group_settings import require_group
from metaq.admin.messages.answered_records import messages_in, records_in
from metaq.admin.messages.message_copies import send_copy
from metaq.admin.messages.newest_messages import newest, newest_query
from metaq.admin.messages.queue_reading import OnWait, read, reading_of
from metaq.admin.messages.single_sends import send_one
from metaq.admin.offsets import OFFSET_MAX, Offsets
from metaq.admin.positions import Position, milliseconds
from metaq.admin.results import BrokerFailure, MessageCopy, NewestMessages
from metaq.client.message import Message
from metaq.client.session.routes import Queue
from metaq.errors import NoSuchMessage, UsageError
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.messages import QueryMessage, ViewMessageById

LIMIT: Final = 64
"""Messages that are returned unless more are asked for; brokers return no more of one key."""
_OFFSET_DIGITS: Final = 16


class Messages:
    """Finds messages by id, by key and by time, reads topics, sends messages and sends stored ones again.
    Nothing is consumed by it."""

    def __init__(self, calls: Calls, offsets: Offsets) -> None:
        self._calls = calls
        self._offsets = offsets

    async def by_id(self, topic: str, id: str) -> tuple[Message, ...]:
        """Finds a message by the id that its producer got. There are several if it was sent again or stored
        again for a retry. Raises NoSuchMessage and NoRoute."""
        found = await self._query(topic, id, 0, OFFSET_MAX, LIMIT, is_id=True)
        if not found:
            raise NoSuchMessage(f"topic {topic} has no message with the id {id}")
        return found

    async def by_offset_id(self, offset_id: str) -> Message:
        """Finds a message by its offset id, which names its broker and its place there. Raises UsageError
        and NoSuchMessage."""
        physical_offset = _physical_offset(offset_id)
        missing = NoSuchMessage(f"no broker has a message with the offset id {offset_id}")
        if physical_offset > OFFSET_MAX:
            raise missing  # It is a unique id, which looks the same.
        command = ViewMessageById(physical_offset=physical_offset)

        async def one(broker: str) -> list[Message]:
            # A broker that has no message at this place answers with a general error.
            codes = (ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND)
            reply = await self._calls.ask(broker, command, accept=codes, any_node=True)
            return messages_of(broker, reply.body) if reply.code == ResponseCode.SUCCESS else []

        names = sorted((await self._calls.brokers()).broker_addr_table)
        found, _ = await self._calls.from_each(names, one)
        for messages in found.values():
            for message in messages:
                if message.offset_id == offset_id.upper():
                    return message
        raise missing

    async def by_key(
        self,
        topic: str,
        key: str,
        *,
        begin: datetime | None = None,
        end: datetime | None = None,
        limit: int = LIMIT,
    ) -> tuple[Message, ...]:
        """Finds the newest messages with a key, of all times or of those stored between two; the oldest
        first. Raises NoRoute."""
        begin_ms = 0 if begin is None else milliseconds(begin)
        end_ms = OFFSET_MAX if end is None else milliseconds(end)
        return await self._query(topic, key, begin_ms, end_ms, limit, is_id=False)

    async def by_time(
        self, topic: str, begin: datetime, end: datetime, *, limit: int = LIMIT
    ) -> tuple[Message, ...]:
        """Returns the first messages that were stored from one time on and before another. Raises NoRoute."""
        found: list[Message] = []
        async with aclosing(self.read(topic, begin, end)) as messages:
            async for message in messages:
                found.append(message)
                if len(found) >= limit:
                    break
        return tuple(found)

    def read(
        self,
        topic: str,
        start: Position = "earliest",
        end: Position = "latest",
        *,
        follow: bool = False,
        last: int | None = None,
        tags: str | Iterable[str] | None = None,
        sql: str | None = None,
        key: str | None = None,
        queues: Iterable[Queue] | None = None,
        on_wait: OnWait | None = None,
    ) -> AsyncGenerator[Message, None]:
        """Yields the messages of a topic between two positions in the order in which they were stored. With
        `follow` it goes on with those that arrive, and does not end.

        `last` yields only that many messages before the end. `tags`, `sql` and `key` select messages; tags
        and a SQL92 expression exclude each other. `queues` are the queues to read. While it follows, it waits
        for a broker that is away, and calls `on_wait` with its name and the error. Raises NoRoute and
        UsageError.
        """
        wanted = reading_of(
            topic,
            start,
            end,
            follow=follow,
            last=last,
            tags=tags,
            sql=sql,
            key=key,
            queues=queues,
            on_wait=on_wait,
        )
        return read(self._calls, self._offsets, wanted)

    async def newest(
        self,
        topic: str,
        *,
        limit: int = LIMIT,
        begin: datetime | None = None,
        end: datetime | None = None,
        before: str | None = None,
        after: Mapping[Queue, int] | None = None,
        tags: str | Iterable[str] | None = None,
        sql: str | None = None,
        key: str | None = None,
        matches: Callable[[Message], bool] | None = None,
        queues: Iterable[Queue] | None = None,
    ) -> NewestMessages:
        """Returns the newest messages of a topic, the newest first, and looks at a bounded number of them.

        `begin` and `end` are times. `tags`, `sql`, `key` and the function `matches` select messages. `before`
        is the field of an earlier result, and goes on where that ended. `after` has the first offsets to look
        at, by queue. Raises NoRoute and UsageError.
        """
        wanted = newest_query(
            topic,
            limit=limit,
            begin=begin,
            end=end,
            before=before,
            after=after,
            tags=tags,
            sql=sql,
            key=key,
            matches=matches,
            queues=queues,
        )
        return await newest(self._calls, self._offsets, wanted)

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        delay: timedelta | None = None,
    ) -> MessageCopy:
        """Sends one message, as a person does by hand: once, and without a second try. Raises InvalidMessage,
        NoRoute and Refused."""
        return await send_one(
            self._calls, topic, body, tag=tag, keys=keys, properties=properties, delay=delay
        )

    async def resend(self, message: Message, *, group: str | None = None) -> MessageCopy:
        """Sends a stored message again: to its topic, so that all groups get it, or to one group alone. The
        copy has the same id. Raises NoRoute, NoSuchGroup, NoSuchMessage and UsageError."""
        if group is not None:
            await require_group(self._calls, group)
        return await send_copy(self._calls, message, group)

    async def _query(
        self, topic: str, key: str, begin_ms: int, end_ms: int, limit: int, *, is_id: bool
    ) -> tuple[Message, ...]:
        found, _ = await query(
            self._calls, topic, key, begin_ms=begin_ms, end_ms=end_ms, limit=limit, is_id=is_id
        )
        return found


async def query(
    calls: Calls,
    topic: str,
    key: str,
    *,
    begin_ms: int = 0,
    end_ms: int = OFFSET_MAX,
    limit: int = LIMIT,
    is_id: bool = False,
) -> tuple[tuple[Message, ...], tuple[BrokerFailure, ...]]:
    """Finds the newest messages with a key or an id; the oldest first. Returns them, and the brokers that did
    not answer. Raises NoRoute."""
    route = await calls.route(topic)
    command = QueryMessage(
        topic=topic,
        key=key,
        max_num=min(limit, LIMIT),
        begin_timestamp=begin_ms,
        end_timestamp=end_ms,
        unique_key=is_id,
    )

    async def one(broker: str) -> list[Message]:
        reply = await calls.ask(broker, command, accept=(ResponseCode.QUERY_NOT_FOUND,), any_node=True)
        found = messages_of(broker, reply.body) if reply.code == ResponseCode.SUCCESS else []
        # The index knows keys by a hash: another key may have the same.
        return [message for message in found if (message.id == key if is_id else key in message.keys)]

    found, failures = await calls.from_each(route.brokers, one)
    messages = [message for of_broker in found.values() for message in of_broker]
    # Brokers answer with the newest first, and messages of one batch are stored at the same time.
    messages.sort(key=lambda message: (message.stored_at, message.physical_offset))
    return tuple(messages[-limit:]), failures


def messages_of(broker: str, body: bytes) -> list[Message]:
    """Returns the messages of an answer whose records may be of several queues."""
    found: list[Message] = []
    begin = 0
    for record in records_in(body, broker):
        size = int.from_bytes(body[begin : begin + 4], "big")
        queue = Queue(record.topic, broker, record.queue_id)
        found += messages_in(body[begin : begin + size], queue)
        begin += size
    return found


def _physical_offset(offset_id: str) -> int:
    try:
        if len(offset_id) < 2 * _OFFSET_DIGITS:
            raise ValueError
        return int(offset_id[-_OFFSET_DIGITS:], 16)
    except ValueError:
        raise UsageError(f"{offset_id!r} is not an offset id", hint="it has 32 hexadecimal digits") from None
