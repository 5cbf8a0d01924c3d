"""RocketMQ's own message trace, written to a topic in the encoding of the Java client.

`protocol/trace_entries.py` has the encoding. Entries are collected and sent in the background. The keys of a
trace message are the ids and keys of the messages that it describes. Entries that cannot be sent in time are
dropped and counted, so that tracing never slows a client down.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from metaq.client.clock import now_ms
from metaq.client.consumer.subscription import Reject, Retry
from metaq.client.message import outgoing
from metaq.client.producer.options import ProducerOptions
from metaq.client.producer.results import SendResult, SendStatus
from metaq.client.producer.sending import Sender
from metaq.errors import MetaqError
from metaq.protocol.names import TRACE_PRODUCER_GROUP, TRACE_TOPIC
from metaq.protocol.properties import (
    DELAY_MS,
    DELIVER_MS,
    KEYS,
    REGION,
    TAGS,
    TRACE_ON,
    TRANSACTION,
)
from metaq.protocol.trace_entries import (
    DECIDED,
    DELAYED,
    HALF,
    NORMAL,
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceEntry,
    encode,
    without_separators,
)

if TYPE_CHECKING:
    from metaq.client.message import Message, Outgoing
    from metaq.client.session.session import Session
    from metaq.protocol.commands.messages import EndTransaction

_log = logging.getLogger(__name__)

DEFAULT_REGION: Final = "DefaultRegion"

ENTRIES_MAX: Final = 10_000
"""The entries that may wait, of about 300 bytes each."""
SEND_INTERVAL_S: Final = 0.2
SEND_TIMEOUT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 3.0
BATCH_ENTRIES_MAX: Final = 100
BATCH_CHARACTERS_MAX: Final = 100_000
KEYS_CHARACTERS_MAX: Final = 8_000

_SUCCESS, _EXCEPTION, _FAILED = 0, 2, 4
"""The results of a handler, as numbered in Java's enum."""
_STATES: Final = {8: "COMMIT_MESSAGE", 12: "ROLLBACK_MESSAGE"}


class Entry(NamedTuple):
    """One line, and the keys by which it can be found."""

    line: str
    keys: tuple[str, ...]


class TraceTopic:
    """The trace of one client."""

    def __init__(self, session: Session, name: str = TRACE_TOPIC) -> None:
        self.name = name
        self.dropped = 0
        """The number of entries that were not sent."""
        self._session = session
        self._sender = Sender(session, ProducerOptions(TRACE_PRODUCER_GROUP, timeout_s=SEND_TIMEOUT_S))
        self._waiting: deque[Entry] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    # Entries

    def sent(
        self,
        group: str,
        message: Outgoing,
        result: SendResult,
        address: str | None,
        body_bytes: int,
        started_ms: int,
        cost_ms: int,
    ) -> None:
        """Adds an entry for a message that was stored."""
        properties = message.properties
        kind = NORMAL
        if TRANSACTION in properties:
            kind = HALF
        elif DELAY_MS in properties or DELIVER_MS in properties:
            kind = DELAYED
        self._put(
            PubTrace(
                started_ms,
                DEFAULT_REGION,
                group,
                message.topic,
                message.id,
                properties.get(TAGS),
                properties.get(KEYS),
                address,
                body_bytes,
                cost_ms,
                kind,
                result.offset_id,
                result.status is SendStatus.STORED,
            )
        )

    def processing(self, group: str, messages: Sequence[Message]) -> str:
        """Adds entries for messages that go to a handler. Returns an id to pass to `processed`."""
        request_id = self._session.unique_ids.next()
        started_ms = now_ms()
        for message in self._traced(messages):
            region = message.system_properties.get(REGION, DEFAULT_REGION)
            keys, retries = " ".join(message.keys), message.reconsume_times
            self._put(SubBeforeTrace(started_ms, region, group, request_id, message.id, retries, keys))
        return request_id

    def processed(
        self,
        group: str,
        request_id: str,
        messages: Sequence[Message],
        seconds: float,
        error: BaseException | None,
    ) -> None:
        """Adds entries for messages whose handler has ended."""
        ended_ms = now_ms()
        cost_ms = int(seconds * 1000 / len(messages))
        how = _SUCCESS
        if error is not None:
            how = _FAILED if isinstance(error, (Retry, Reject)) else _EXCEPTION
        for message in self._traced(messages):
            keys = " ".join(message.keys)
            is_success = error is None
            self._put(SubAfterTrace(request_id, message.id, cost_ms, is_success, keys, how, ended_ms, group))

    def ended_transaction(self, command: EndTransaction, address: str, properties: Mapping[str, str]) -> None:
        """Adds an entry for the end of a transaction, which was sent to that address."""
        self._put(
            EndTransactionTrace(
                now_ms(),
                DEFAULT_REGION,
                command.producer_group,
                command.topic,
                command.msg_id,
                properties.get(TAGS),
                properties.get(KEYS),
                address,
                DECIDED,
                command.transaction_id,
                _STATES.get(command.commit_or_rollback, "UNKNOW"),
                command.from_transaction_check,
            )
        )

    def recalled(self, group: str, topic: str, message_id: str) -> None:
        """Adds an entry for a delayed message that was cancelled."""
        self._put(RecallTrace(now_ms(), DEFAULT_REGION, group, topic, message_id, True))

    def _traced(self, messages: Iterable[Message]) -> Iterable[Message]:
        """Leaves out messages whose broker wants no trace, and trace messages, which would never end."""
        return (
            message
            for message in messages
            if message.topic != self.name and message.system_properties.get(TRACE_ON) != "false"
        )

    def _put(self, entry: TraceEntry) -> None:
        if len(self._waiting) >= ENTRIES_MAX:
            self._drop(1)
            return
        keys = None if isinstance(entry, RecallTrace) else entry.keys
        words = (entry.id, *(keys or "").split())
        self._waiting.append(Entry(encode(entry), tuple(map(without_separators, words))))

    # Sending

    def start(self) -> None:
        """Starts to send entries, on the event loop of the client. Safe to call twice."""
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="metaq trace topic")

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Sends the remaining entries, for a short while. Safe to call twice."""
        self._is_closing = True
        if self._task is None:
            return
        await asyncio.wait((self._task,), timeout=min(timeout, CLOSE_TIMEOUT_S))
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        self._drop(len(self._waiting))
        self._waiting.clear()
        if self.dropped:
            _log.warning("%d trace entries were dropped", self.dropped)

    async def _work(self) -> None:
        # It polls, because entries also come from other threads, and far too often to wake up for each.
        while self._waiting or not self._is_closing:
            if not self._waiting:
                await asyncio.sleep(SEND_INTERVAL_S)
            entries = self._take()
            if entries:
                await self._send(entries)

    def _take(self) -> list[Entry]:
        entries: list[Entry] = []
        characters = keys_characters = 0
        while self._waiting and len(entries) < BATCH_ENTRIES_MAX:
            first = self._waiting[0]
            characters += len(first.line)
            keys_characters += sum(len(key) + 1 for key in first.keys)
            if entries and (characters > BATCH_CHARACTERS_MAX or keys_characters > KEYS_CHARACTERS_MAX):
                break
            entries.append(self._waiting.popleft())
        return entries

    async def _send(self, entries: list[Entry]) -> None:
        body = "".join(entry.line for entry in entries).encode()
        keys = dict.fromkeys(key for entry in entries for key in entry.keys)
        try:
            message = outgoing(self.name, body, self._session.unique_ids.next(), keys=keys)
            await self._sender.send(message, SEND_TIMEOUT_S)
        except MetaqError as error:
            self._drop(len(entries))
            _log.info("%d trace entries are dropped: %s", len(entries), error)
        except BaseException as error:  # This includes a cancellation by close.
            self._drop(len(entries))
            if not isinstance(error, Exception):
                raise
            _log.exception("%d trace entries are dropped", len(entries))

    def _drop(self, count: int) -> None:
        if count:
            self.dropped += count
            self._session.telemetry.trace_dropped(count)
