"""Rows of tables into the buffer of the data plane, for plain code: no Python object for a row."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from metaq.client.message import check_topic
from metaq.client.producer.arrow_rows import Rows
from metaq.client.producer.options import ProducerOptions
from metaq.client.producer.send_buffer import Soon
from metaq.client.producer.sending import Sender
from metaq.client.session.routes import Route
from metaq.client.session.session import Session
from metaq.client.sync import Client
from metaq.errors import ClientClosed, InvalidMessage, MetaqError, NoRoute, NotSent
from metaq.protocol.errors import Unreachable

_OFFSET_DIGITS: Final = 16
PAUSE_S: Final = 0.2


class Part(NamedTuple):
    """A half message that holds many messages."""

    topic: str
    is_ordered: bool
    """It follows others in its queue."""
    broker: str
    queue_id: int
    half_offset: int
    physical_offset: int
    message_count: int


class RowSender:
    """Sends rows over a client's connections as a producer of its own. One thread at a time may use it."""

    def __init__(self, client: Client, options: ProducerOptions) -> None:
        self._portal = client._portal
        self._session = client._client._session
        self._options = options
        self._soon: Soon | None = None
        self._known: set[str] = set()

    def start(self) -> None:
        self._portal.run(self._start)

    async def _start(self) -> None:
        self._sender = Sender(self._session, self._options)
        self._soon = Soon(self._session, self._sender, self._options)
        await self._session.add_producer(self._options.group)

    def know(self, topics: Iterable[str]) -> None:
        """Before the first rows of a topic; raises InvalidMessage, NoRoute, Unreachable."""
        new = [topic for topic in topics if topic not in self._known]
        if new:
            self._portal.run(self._know, new)

    async def _know(self, topics: list[str]) -> None:
        for topic in topics:
            check_topic(topic)
            await route_of(self._session, topic, self._options.timeout_s)
            self._open().follow(topic)
            self._known.add(topic)

    def put(self, rows: Rows) -> None:
        """Takes them into the buffer and waits while that is full. Raises InvalidMessage, which names the
        row, and NotSent where brokers take nothing for too long."""
        try:
            taken = self._open().buffer.put_rows(rows, self._options.timeout_s)
        except ValueError as error:
            row, what = error.args
            raise InvalidMessage(f"row {row}: {what}") from None
        except TimeoutError:
            raise NotSent(
                f"the buffer of {self._options.buffer_bytes_max} bytes was full for"
                f" {self._options.timeout_s:g} s",
                hint="brokers do not take messages as fast as they are sent",
            ) from None
        if not taken:
            raise ClientClosed("this sender is closed", hint="make another one")

    def flush(self) -> None:
        """Waits until every row is acknowledged; raises NotDelivered."""
        self._portal.run(self._open().flush)

    def take_parts(self) -> list[Part]:
        """The half messages that were stored since the last time, in the order of their rows."""
        return [
            Part(topic, is_ordered, broker, queue_id, half_offset, _physical_offset(offset_id), count)
            for topic, is_ordered, broker, queue_id, half_offset, offset_id, count in (
                self._open().buffer.take_parts()
            )
        ]

    def close(self, timeout: float) -> None:
        """Gives up what is not sent after that time. Safe to call twice."""
        if self._soon is not None and self._portal.usable:
            self._portal.run(self._close, timeout)

    async def _close(self, timeout: float) -> None:
        soon, self._soon = self._soon, None
        if soon is None:
            return
        try:
            # Whoever wanted to know of failures has flushed.
            with contextlib.suppress(MetaqError):
                await soon.close(timeout)
        finally:
            await self._session.remove_producer(self._options.group)

    def _open(self) -> Soon:
        if self._soon is None:
            raise ClientClosed("this sender is closed or was not started", hint="call start first")
        return self._soon


async def route_of(session: Session, topic: str, timeout_s: float) -> Route:
    """Waits for brokers and name servers that are away; raises NoRoute, Unreachable where they stay away, or
    at once where brokers are there and do not have the topic."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        try:
            return await session.routes.get(topic, refresh=True, creatable=True)
        except (NoRoute, Unreachable) as error:
            if not error.retriable or loop.time() + PAUSE_S > deadline:
                raise
        await asyncio.sleep(PAUSE_S)


def _physical_offset(offset_id: str) -> int:
    return int(offset_id[-_OFFSET_DIGITS:], 16)
