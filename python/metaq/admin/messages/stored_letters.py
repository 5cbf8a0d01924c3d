"""One dead letter as it is stored: whether it was sent again, and how it is sent again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from metaq._core import Record
from metaq.admin.calls import Calls
from metaq.admin.messages.answered_records import records_in
from metaq.admin.messages.message_copies import HOST_BITS, SEND_TIMEOUT_S
from metaq.admin.results import DeadLetter
from metaq.client.compression import COMPRESSED, FORMAT_BITS
from metaq.client.message import Message
from metaq.client.producer.results import STATUSES
from metaq.client.session.routes import Queue
from metaq.protocol import names
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.messages import QueryMessage, SendMessageV2
from metaq.protocol.properties import (
    CONSUME_STARTED_MS,
    DEAD_LETTER_ERROR,
    DEAD_LETTER_MESSAGE_ID,
    DEAD_LETTER_REASON,
    DEAD_LETTER_TOPIC,
    DELAY_LEVEL,
    RECONSUME_TIMES_MAX,
    RESENT_LETTER,
    RETRY_TOPIC,
    UNIQUE_KEY,
    encode_properties,
)

COPIES_MAX: Final = 64
"""How many messages with the same unique id are looked at: a message is retried 16 times by default."""
_LAST_TRY: Final = frozenset(
    {
        DEAD_LETTER_TOPIC,
        DEAD_LETTER_MESSAGE_ID,
        DEAD_LETTER_REASON,
        DEAD_LETTER_ERROR,
        DELAY_LEVEL,
        RECONSUME_TIMES_MAX,
        CONSUME_STARTED_MS,
    }
)
"""Properties that a message has from its last try, or because it was given up."""


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A dead letter as it is stored: a body that is compressed stays so when it is sent again."""

    queue: Queue
    message: Message
    record: Record

    @property
    def public(self) -> DeadLetter:
        properties = self.record.properties
        return DeadLetter(
            self.message,
            self.origin,
            reason=properties.get(DEAD_LETTER_REASON),
            error_type=properties.get(DEAD_LETTER_ERROR),
        )

    @property
    def origin(self) -> str:
        properties = self.record.properties
        return properties.get(RETRY_TOPIC) or properties.get(DEAD_LETTER_TOPIC) or ""


def letter_of(message: Message) -> DeadLetter:
    """Returns a message of a dead-letter topic as the letter that it is."""
    properties = {**message.properties, **message.system_properties}
    return DeadLetter(
        message,
        properties.get(RETRY_TOPIC) or properties.get(DEAD_LETTER_TOPIC) or "",
        reason=properties.get(DEAD_LETTER_REASON),
        error_type=properties.get(DEAD_LETTER_ERROR),
    )


async def has_copy(calls: Calls, group: str, letter: Message) -> bool:
    """Returns whether the group's retry topic has a copy that was sent from this letter."""
    unique_id = letter.system_properties.get(UNIQUE_KEY) or letter.properties.get(UNIQUE_KEY)
    if unique_id is None or letter.queue is None:
        return False
    query = QueryMessage(
        topic=names.retry_topic(group),
        key=unique_id,
        max_num=COPIES_MAX,
        begin_timestamp=0,
        end_timestamp=2**63 - 1,
        unique_key=True,
    )
    codes = (ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND)
    reply = await calls.ask(letter.queue.broker, query, accept=codes)
    copies = [] if reply.code in codes else records_in(reply.body, letter.queue.broker)
    return any(copy.properties.get(RESENT_LETTER) == letter.offset_id for copy in copies)


async def send_letter(calls: Calls, group: str, letter: StoredLetter, body: bytes | None = None) -> None:
    """Sends through the group's retry topic, so that no other group gets it; with `body` in place of the
    stored one."""
    record = letter.record
    system_flag = record.system_flag & ~HOST_BITS
    if body is not None:
        system_flag &= ~(COMPRESSED | FORMAT_BITS)
    properties = {name: value for name, value in record.properties.items() if name not in _LAST_TRY}
    properties[RETRY_TOPIC] = letter.origin
    properties[RESENT_LETTER] = letter.message.offset_id
    command = SendMessageV2(
        producer_group=names.TOOLS_PRODUCER_GROUP,
        topic=names.retry_topic(group),
        sys_flag=system_flag,
        born_timestamp=record.born_timestamp_ms,
        flag=record.flag,
        properties=encode_properties(properties),
        broker_name=letter.queue.broker,
    )
    accepted = tuple(STATUSES)
    stored = record.body if body is None else body
    await calls.change(letter.queue.broker, command, stored, accept=accepted, timeout_s=SEND_TIMEOUT_S)
