"""Sending a stored message again, on asyncio: to its topic, or to one group alone.

The copy keeps the body as it is stored, the id, the keys, the tag and the sender's properties. It loses
everything that brokers and consumers added: its delay, its transaction and the count of its tries.
"""

from __future__ import annotations

import random
from typing import Final

from metaq._core import Record
from metaq.admin.calls import Calls
from metaq.admin.messages.answered_records import records_in
from metaq.admin.results import MessageCopy
from metaq.client.message import Message
from metaq.client.producer.results import STATUSES
from metaq.client.session.routes import Queue
from metaq.errors import NoRoute, NoSuchMessage, UsageError
from metaq.protocol import names
from metaq.protocol.commands.messages import SendMessageV2, Sent, ViewMessageById
from metaq.protocol.properties import (
    KEYS,
    PRIORITY,
    RETRY_TOPIC,
    SHARDING_KEY,
    SYSTEM_NAMES,
    TAGS,
    UNIQUE_KEY,
    WAIT,
    encode_properties,
)

SEND_TIMEOUT_S: Final = 10.0
HOST_BITS: Final = 0b11_0000
"""Bits of the system flag that tell the kind of the addresses; a copy has addresses of its own."""
_TRANSACTION_BITS: Final = 0b1100
_DROPPED: Final = SYSTEM_NAMES - {KEYS, TAGS, WAIT, UNIQUE_KEY, SHARDING_KEY, PRIORITY}


def first_topic(message: Message) -> str:
    """Returns the topic that a message was sent to first. Raises UsageError for a dead letter."""
    if message.topic.startswith(names.DEAD_LETTER_PREFIX):
        group = message.topic.removeprefix(names.DEAD_LETTER_PREFIX)
        raise UsageError(
            f"message {message.id} is a dead letter of {group}",
            hint=f"`metaq dlq resend {group} --id {message.offset_id}` sends it again",
        )
    return message.system_properties.get(RETRY_TOPIC) or message.topic


async def send_copy(calls: Calls, message: Message, group: str | None) -> MessageCopy:
    """Sends a copy of a stored message. Raises NoRoute, NoSuchMessage, UsageError and Refused."""
    topic = first_topic(message)
    if message.queue is None:
        raise UsageError("only a stored message can be sent again")
    record = await _record(calls, message.queue.broker, message)
    properties = {name: value for name, value in record.properties.items() if name not in _DROPPED}
    if group is None:
        target = await _target(calls, topic, message.queue)
    else:
        properties[RETRY_TOPIC] = topic
        target = Queue(names.retry_topic(group), message.queue.broker, 0)
    command = SendMessageV2(
        producer_group=names.TOOLS_PRODUCER_GROUP,
        topic=target.topic,
        queue_id=target.id,
        sys_flag=record.system_flag & ~(HOST_BITS | _TRANSACTION_BITS),
        born_timestamp=record.born_timestamp_ms,
        flag=record.flag,
        properties=encode_properties(properties),
        broker_name=target.broker,
    )
    reply = await calls.change(
        target.broker, command, record.body, accept=tuple(STATUSES), timeout_s=SEND_TIMEOUT_S
    )
    sent = reply.header(Sent)
    stored = Queue(target.topic, target.broker, sent.queue_id)
    return MessageCopy(message.id, sent.msg_id, stored, sent.queue_offset)


async def _record(calls: Calls, broker: str, message: Message) -> Record:
    """Returns the message as it is stored: a compressed body stays compressed."""
    command = ViewMessageById(physical_offset=message.physical_offset, topic=message.topic)
    reply = await calls.ask(broker, command, any_node=True)
    for record in records_in(reply.body, broker):
        if record.topic == message.topic and record.physical_offset == message.physical_offset:
            return record
    raise NoSuchMessage(f"broker {broker} no longer has the message {message.offset_id}")


async def _target(calls: Calls, topic: str, stored: Queue) -> Queue:
    """The same queue if it can be written to, because the order of messages with one key depends on it."""
    writable = (await calls.route(topic)).writable
    same = Queue(topic, stored.broker, stored.id)
    if same in writable:
        return same
    if not writable:
        raise NoRoute(f"no queue of {topic} can be written to")
    return random.choice(list(writable))
