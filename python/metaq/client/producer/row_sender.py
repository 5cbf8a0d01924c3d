"""Sends rows of tables through the data plane's buffer, for plain code, without a Python object per row."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import NamedTuple

from metaq.client.message import check_topic
from metaq.client.producer.arrow_rows import Rows
from metaq.client.producer.options import ProducerOptions
from metaq.client.producer.results import physical_offset
from metaq.client.producer.send_buffer import BufferedSender
from metaq.client.producer.sending import Sender
from metaq.client.producer.waiting_sends import buffer_full
from metaq.client.session.routes import Route
from metaq.client.session.session import Session
from metaq.client.sync import Client
from metaq.errors import ClientClosed, InvalidMessage, MetaqError
from metaq.retry import retry


class HalfBatch(NamedTuple):
    """A half message that holds many messages."""

    topic: str
    is_ordered: bool
    """Whether its place among the other half messages of its queue matters."""
    broker: str
    queue_id: int
    half_offset: int
    physical_offset: int
    message_count: int


class RowSender:
    """Sends rows over a client's connections, as a producer of its own. Not thread-safe."""

    def __init__(self, client: Client, options: ProducerOptions) -> None:
        self._portal = client._portal
        self._session = client._client._session
        self._options = options
        self._buffered: BufferedSender | None = None
        self._known: set[str] = set()

    def start(self) -> None:
        """Joins the producer group."""
        self._portal.run(self._start)

    async def _start(self) -> None:
        self._buffered = BufferedSender(self._session, Sender(self._session, self._options), self._options)
        await self._session.add_producer(self._options.group)

    def know(self, topics: Iterable[str]) -> None:
        """Finds the routes of topics before their first rows. Raises InvalidMessage, NoRoute, Unreachable."""
        new = [topic for topic in topics if topic not in self._known]
        if new:
            self._portal.run(self._know, new)

    async def _know(self, topics: list[str]) -> None:
        for topic in topics:
            check_topic(topic)
            await route_of(self._session, topic, self._options.timeout_s)
            self._require_open().track_route(topic)
            self._known.add(topic)

    def put(self, rows: Rows) -> None:
        """Puts rows into the buffer and waits while it is full.

        Raises InvalidMessage, which names the row, and NotSent if the buffer stays full for too long.
        """
        try:
            taken = self._require_open().buffer.put_rows(rows, self._options.timeout_s)
        except ValueError as error:
            row, problem = error.args
            raise InvalidMessage(f"row {row}: {problem}") from None
        except TimeoutError:
            raise buffer_full(self._options, self._options.timeout_s) from None
        if not taken:
            raise ClientClosed("this sender is closed", hint="make another one")

    def flush(self) -> None:
        """Waits until every row is acknowledged. Raises NotDelivered."""
        self._portal.run(self._require_open().flush)

    def take_half_batches(self) -> list[HalfBatch]:
        """Returns the half messages that were stored since the last call, in the order of their rows."""
        return [
            HalfBatch(topic, is_ordered, broker, queue_id, half_offset, physical_offset(offset_id), count)
            for topic, is_ordered, broker, queue_id, half_offset, offset_id, count in (
                self._require_open().buffer.take_half_batches()
            )
        ]

    def close(self, timeout: float) -> None:
        """Gives up rows that are not sent within the timeout. Safe to call twice."""
        if self._buffered is not None and self._portal.usable:
            self._portal.run(self._close, timeout)

    async def _close(self, timeout: float) -> None:
        buffered, self._buffered = self._buffered, None
        if buffered is None:
            return
        try:
            # Callers who need to know about failures call flush before.
            with contextlib.suppress(MetaqError):
                await buffered.close(timeout)
        finally:
            await self._session.remove_producer(self._options.group)

    def _require_open(self) -> BufferedSender:
        if self._buffered is None:
            raise ClientClosed("this sender is closed or was not started", hint="call start first")
        return self._buffered


async def route_of(session: Session, topic: str, timeout_s: float) -> Route:
    """Returns the route of a topic; waits for brokers and name servers that are away.

    Raises NoRoute or Unreachable: after the timeout, or at once if the brokers do not have the topic.
    """
    return await retry(lambda: session.routes.get(topic, refresh=True, creatable=True), timeout_s)
