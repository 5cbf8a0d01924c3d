"""The search for messages of a topic, as the address of a page describes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Final

from starlette.requests import Request

from metaq.admin.messages.newest_messages import EndOfSearch
from metaq.admin.messages.selection import Selection
from metaq.admin.messages.stored_messages import LIMIT
from metaq.admin.positions import parse_position
from metaq.admin.results import BrokerFailure, NewestMessages
from metaq.client.message import Message
from metaq.client.session.routes import Queue
from metaq.console.console import Console
from metaq.console.pages.body_reading import BodyReader, MessageRow
from metaq.console.rendering import utc_offset_min
from metaq.errors import UsageError

SHOWN: Final = 50
"""Messages on a page."""
SPANS: Final = ("-15m", "-1h", "-24h", "-7d")
_TEXT_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class MessageQuery:
    """The messages of a topic that a reader wants to see. The texts are those of the form."""

    topic: str
    begin_text: str = ""
    end_text: str = ""
    queue: str = ""
    tag: str = ""
    key: str = ""
    sql: str = ""
    text: str = ""
    before: str = ""
    utc_offset_min: int = 0
    """The zone of the reader, in which times without a zone are."""

    @property
    def begin(self) -> datetime | None:
        """Raises UsageError."""
        return self._moment(self.begin_text)

    @property
    def end(self) -> datetime | None:
        """Raises UsageError."""
        return self._moment(self.end_text)

    @property
    def is_filtered(self) -> bool:
        return any(self.parameters.values())

    @property
    def parameters(self) -> dict[str, str]:
        """The fields as they are in an address, without the place in the list."""
        return {
            "from": self.begin_text,
            "to": self.end_text,
            "queue": self.queue,
            "tag": self.tag,
            "key": self.key,
            "sql": self.sql,
            "text": self.text,
        }

    @property
    def queues(self) -> tuple[Queue, ...] | None:
        """Raises UsageError."""
        if not self.queue:
            return None
        broker, _, number = self.queue.rpartition(":")
        if not broker or not (number.isascii() and number.isdecimal()) or len(number) > 6:
            raise UsageError(f'"{self.queue}" is not a queue', hint="write it as broker-a:3")
        return (Queue(self.topic, broker, int(number)),)

    def matches(self, message: Message, reader: BodyReader) -> bool:
        """Whether the body holds the text. Raises EndOfSearch if the reader may read nothing more."""
        return reader.has_text(message, self.text)

    def _moment(self, text: str) -> datetime | None:
        """Reads `-15m`, or a time as the browser's field writes it."""
        position = parse_position(text) if text else None
        if position is None or not isinstance(position, datetime):
            if text:
                raise UsageError(f'"{text}" is not a time', hint="use -15m or 2026-01-31T12:00")
            return None
        return position if position.tzinfo else position.replace(tzinfo=_zone(self.utc_offset_min))


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """The result of a search, and what it may lack."""

    rows: tuple[MessageRow, ...] = ()
    before: str | None = None
    is_truncated: bool = False
    scanned: int | None = None
    """None if an index found them."""
    unseen: int | None = None
    is_index_full: bool = False
    """The brokers' index returned as many as it can: there may be more."""
    queues_left_out: int = 0
    failures: tuple[BrokerFailure, ...] = field(default=())

    @property
    def unread(self) -> int:
        """Rows whose bodies were not read: nobody knows whether they have the wanted text."""
        return sum(1 for row in self.rows if not row.is_read)


def message_query(request: Request, topic: str) -> MessageQuery:
    """Reads the search from an address. What is wrong with it shows when it is made."""

    def given(name: str) -> str:
        return request.query_params.get(name, "").strip()[:_TEXT_MAX]

    return MessageQuery(
        topic,
        given("from"),
        given("to"),
        given("queue"),
        given("tag"),
        given("key"),
        given("sql"),
        given("text"),
        given("before"),
        utc_offset_min(request),
    )


async def search(console: Console, query: MessageQuery, limit: int = SHOWN) -> FoundMessages:
    """Returns the newest messages that match. Raises UsageError, NoRoute and other errors of the cluster."""
    reader = BodyReader()
    if query.key:
        return await _search_by_key(console, query, reader)
    found = await console.admin.messages.newest(
        query.topic,
        limit=limit,
        begin=query.begin,
        end=query.end,
        before=query.before or None,
        tags=query.tag or None,
        sql=query.sql or None,
        matches=(lambda message: query.matches(message, reader)) if query.text else None,
        queues=query.queues,
    )
    return found_messages(found, _silent(console, query.topic), reader)


def found_messages(
    found: NewestMessages, silent: tuple[BrokerFailure, ...], reader: BodyReader
) -> FoundMessages:
    """Adds the brokers that the name servers do not list any more to those that did not answer."""
    asked = {failure.broker for failure in found.failures}
    return FoundMessages(
        tuple(reader.row(message) for message in found.messages),
        found.before,
        found.is_truncated,
        found.scanned,
        found.unseen,
        queues_left_out=found.queues_left_out,
        failures=(*found.failures, *(one for one in silent if one.broker not in asked)),
    )


async def _search_by_key(console: Console, query: MessageQuery, reader: BodyReader) -> FoundMessages:
    """Asks the index of the brokers, which knows all messages that they hold."""
    selection = Selection(query.tag or None, query.sql or None)
    found = await console.admin.messages.by_key(query.topic, query.key, begin=query.begin, end=query.end)
    queues = query.queues
    rows = [
        reader.row(message)
        for message in reversed(found)
        if selection.matches(message)
        and (queues is None or message.queue in queues)
        and (not query.text or _may_match(query, message, reader))
    ]
    silent = _silent(console, query.topic)
    return FoundMessages(tuple(rows), is_index_full=len(found) >= LIMIT, failures=silent)


def _silent(console: Console, topic: str) -> tuple[BrokerFailure, ...]:
    return tuple(BrokerFailure(broker, "") for broker in silent_brokers(console, topic))


def silent_brokers(console: Console, topic: str) -> tuple[str, ...]:
    """Returns the brokers of a topic that did not answer in the newest look."""
    table = console.live.topics.value
    row = None if table is None else table.rows.get(topic)
    return () if row is None else row.missing


def _may_match(query: MessageQuery, message: Message, reader: BodyReader) -> bool:
    """Returns True for a body that may not be read any more: its row says so."""
    try:
        return query.matches(message, reader)
    except EndOfSearch:
        return True


def _zone(offset_min: int) -> timezone:
    return timezone(timedelta(minutes=offset_min))
