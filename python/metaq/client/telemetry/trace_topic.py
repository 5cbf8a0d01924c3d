"""RocketMQ's own trace: what became of each message, written to a topic in the encoding of the Java client.

An entry is a line of text, its fields separated by 0x01, its end 0x02; where a field has no value there is
the word null. Entries are gathered and sent in the background, as messages whose keys are the ids and keys of
those that they tell of. What cannot be sent in time is dropped and counted: a trace slows nothing down.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from metaq.client.consumer.subscription import Reject, Retry
from metaq.client.message import outgoing
from metaq.client.producer.options import ProducerOptions
from metaq.client.producer.results import SendResult, SendStatus
from metaq.client.producer.sending import Sender
from metaq.client.properties import DELAY_MS, DELIVER_MS, KEYS, TAGS, TRANSACTION
from metaq.errors import MetaqError
from metaq.protocol.names import TRACE_TOPIC

if TYPE_CHECKING:
    from metaq.client.message import Message, Outgoing
    from metaq.client.session.session import Session
    from metaq.protocol.messages import EndTransaction

_log = logging.getLogger(__name__)

PRODUCER_GROUP: Final = "_INNER_TRACE_PRODUCER"
DEFAULT_REGION: Final = "DefaultRegion"

ENTRIES_MAX: Final = 10_000
"""That wait; of about 300 bytes each."""
SEND_INTERVAL_S: Final = 0.2
SEND_TIMEOUT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 3.0
BATCH_ENTRIES_MAX: Final = 100
BATCH_CHARACTERS_MAX: Final = 100_000
KEYS_CHARACTERS_MAX: Final = 8_000

_NORMAL, _HALF, _DECIDED, _DELAYED = range(4)
"""The kinds of messages, by the places that they have in Java's list."""
_SUCCESS, _EXCEPTION, _FAILED = 0, 2, 4
"""How a handler ended, likewise."""
_STATES: Final = {8: "COMMIT_MESSAGE", 12: "ROLLBACK_MESSAGE"}
_SEPARATORS: Final = str.maketrans("", "", "\x01\x02")


class Entry(NamedTuple):
    """One line and what it can be found by."""

    line: str
    keys: tuple[str, ...]


class TraceTopic:
    """The trace of one client."""

    def __init__(self, session: Session, name: str = TRACE_TOPIC) -> None:
        self.name = name
        self.dropped = 0
        """Entries that were not sent."""
        self._session = session
        self._sender = Sender(session, ProducerOptions(PRODUCER_GROUP, timeout_s=SEND_TIMEOUT_S))
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
        """A message is stored."""
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
        """Messages are given to a handler; the name of that, by which its end refers to it."""
        request_id = self._session.unique_ids.next()
        now_ms = time.time_ns() // 1_000_000
        for message in self._traced(messages):
            region = message.system_properties.get("MSG_REGION", DEFAULT_REGION)
            keys = " ".join(message.keys)
            about = (message.id, message.reconsume_times, keys)
            self._put(keys, message.id, "SubBefore", now_ms, region, group, request_id, *about)
        return request_id

    def processed(
        self,
        group: str,
        request_id: str,
        messages: Sequence[Message],
        seconds: float,
        error: BaseException | None,
    ) -> None:
        """The handler has ended."""
        now_ms = time.time_ns() // 1_000_000
        cost_ms = int(seconds * 1000 / len(messages))
        how = _SUCCESS
        if error is not None:
            how = _FAILED if isinstance(error, (Retry, Reject)) else _EXCEPTION
        for message in self._traced(messages):
            keys = " ".join(message.keys)
            about = (message.id, cost_ms, error is None, keys, how, now_ms, group)
            self._put(keys, message.id, "SubAfter", request_id, *about)

    def ended_transaction(self, command: EndTransaction, address: str, properties: Mapping[str, str]) -> None:
        """The broker at the address was told."""
        now_ms = time.time_ns() // 1_000_000
        keys = properties.get(KEYS)
        state = _STATES.get(command.commit_or_rollback, "UNKNOW")
        about = (command.producer_group, command.topic, command.msg_id, properties.get(TAGS), keys, address)
        end = (_DECIDED, command.transaction_id, state, command.from_transaction_check)
        self._put(keys, command.msg_id, "EndTransaction", now_ms, DEFAULT_REGION, *about, *end)

    def _traced(self, messages: Iterable[Message]) -> Iterable[Message]:
        """Without those whose broker wants no trace, and without traces: they would make more and more."""
        return (
            message
            for message in messages
            if message.topic != self.name and message.system_properties.get("TRACE_ON") != "false"
        )

    def _put(self, keys: str | None, message_id: str, *fields: object) -> None:
        if len(self._waiting) >= ENTRIES_MAX:
            self._drop(1)
            return
        words = (message_id, *(keys or "").split())
        self._waiting.append(Entry(_line(fields), tuple(word.translate(_SEPARATORS) for word in words)))

    # Sending them

    def start(self) -> None:
        """On the event loop of the client. Safe to call twice."""
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="metaq trace topic")

    async def close(self) -> None:
        """Sends what is left, for a short while. Safe to call twice."""
        self._is_closing = True
        if self._task is None:
            return
        await asyncio.wait((self._task,), timeout=CLOSE_TIMEOUT_S)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        self._drop(len(self._waiting))
        self._waiting.clear()
        if self.dropped:
            _log.warning("%d entries of the trace topic were dropped", self.dropped)

    async def _work(self) -> None:
        # By the clock: entries come from other threads too, so often that each would wake us for little.
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
            _log.info("%d entries of the trace topic are dropped: %s", len(entries), error)
        except BaseException as error:  # Cancelled by a close too.
            self._drop(len(entries))
            if not isinstance(error, Exception):
                raise
            _log.exception("%d entries of the trace topic are dropped", len(entries))

    def _drop(self, count: int) -> None:
        if count:
            self.dropped += count
            self._session.telemetry.trace_dropped(count)


def _line(fields: Iterable[object]) -> str:
    return "\x01".join(_text(field) for field in fields) + "\x02"


def _text(field: object) -> str:
    if field is None or field == "":
        # Also for an empty one, which at the end of a line would be lost.
        return "null"
    if isinstance(field, bool):
        return "true" if field else "false"
    return str(field).translate(_SEPARATORS)
