"""RocketMQ's own message trace, written to a topic in the encoding of the Java client.

An entry is a line of text. 0x01 separates its fields, 0x02 ends it, and a field without a value is the word
null. Entries are collected and sent in the background. The keys of a trace message are the ids and keys of
the messages that it describes. Entries that cannot be sent in time are dropped and counted, so that tracing
never slows a client down.
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

if TYPE_CHECKING:
    from metaq.client.message import Message, Outgoing
    from metaq.client.session.session import Session
    from metaq.protocol.messages import EndTransaction

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

_NORMAL, _HALF, _DECIDED, _DELAYED = range(4)
"""The kinds of messages, as numbered in Java's enum."""
_SUCCESS, _EXCEPTION, _FAILED = 0, 2, 4
"""The results of a handler, as numbered in Java's enum."""
_STATES: Final = {8: "COMMIT_MESSAGE", 12: "ROLLBACK_MESSAGE"}
_SEPARATORS: Final = str.maketrans("", "", "\x01\x02")


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
        kind = _NORMAL
        if TRANSACTION in properties:
            kind = _HALF
        elif DELAY_MS in properties or DELIVER_MS in properties:
            kind = _DELAYED
        tags, keys = properties.get(TAGS), properties.get(KEYS)
        about = (message.topic, message.id, tags, keys, address, body_bytes, cost_ms, kind, result.offset_id)
        is_stored = result.status is SendStatus.STORED
        self._put(keys, message.id, "Pub", started_ms, DEFAULT_REGION, group, *about, is_stored)

    def processing(self, group: str, messages: Sequence[Message]) -> str:
        """Adds entries for messages that go to a handler. Returns an id to pass to `processed`."""
        request_id = self._session.unique_ids.next()
        started_ms = now_ms()
        for message in self._traced(messages):
            region = message.system_properties.get(REGION, DEFAULT_REGION)
            keys = " ".join(message.keys)
            about = (message.id, message.reconsume_times, keys)
            self._put(keys, message.id, "SubBefore", started_ms, region, group, request_id, *about)
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
            about = (message.id, cost_ms, error is None, keys, how, ended_ms, group)
            self._put(keys, message.id, "SubAfter", request_id, *about)

    def ended_transaction(self, command: EndTransaction, address: str, properties: Mapping[str, str]) -> None:
        """Adds an entry for the end of a transaction, which was sent to that address."""
        keys = properties.get(KEYS)
        state = _STATES.get(command.commit_or_rollback, "UNKNOW")
        about = (command.producer_group, command.topic, command.msg_id, properties.get(TAGS), keys, address)
        end = (_DECIDED, command.transaction_id, state, command.from_transaction_check)
        self._put(keys, command.msg_id, "EndTransaction", now_ms(), DEFAULT_REGION, *about, *end)

    def _traced(self, messages: Iterable[Message]) -> Iterable[Message]:
        """Leaves out messages whose broker wants no trace, and trace messages, which would never end."""
        return (
            message
            for message in messages
            if message.topic != self.name and message.system_properties.get(TRACE_ON) != "false"
        )

    def _put(self, keys: str | None, message_id: str, *fields: object) -> None:
        if len(self._waiting) >= ENTRIES_MAX:
            self._drop(1)
            return
        words = (message_id, *(keys or "").split())
        self._waiting.append(Entry(_line(fields), tuple(word.translate(_SEPARATORS) for word in words)))

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


def _line(fields: Iterable[object]) -> str:
    return "\x01".join(_text(field) for field in fields) + "\x02"


def _text(field: object) -> str:
    if field is None or field == "":
        # An empty field at the end of a line would be lost.
        return "null"
    if isinstance(field, bool):
        return "true" if field else "false"
    return str(field).translate(_SEPARATORS)
