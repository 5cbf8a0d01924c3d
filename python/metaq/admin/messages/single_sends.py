"""Sending one message by hand, on asyncio.

A producer keeps connections, heartbeats and a buffer. An operator who sends one message needs none of these,
and signs it like all other requests of the administration client.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta

from metaq.admin.calls import Calls
from metaq.admin.messages.message_copies import SEND_TIMEOUT_S
from metaq.admin.results import MessageCopy
from metaq.client.message import outgoing
from metaq.client.producer.results import STATUSES
from metaq.client.producer.unique_ids import unique_ids
from metaq.client.session.routes import Queue
from metaq.errors import InvalidMessage, NoRoute
from metaq.protocol.commands.messages import SendMessageV2, Sent
from metaq.protocol.names import TOOLS_PRODUCER_GROUP
from metaq.protocol.properties import DELAY_MS, encode_properties


async def send_one(
    calls: Calls,
    topic: str,
    body: bytes,
    *,
    tag: str | None = None,
    keys: Iterable[str] = (),
    properties: Mapping[str, str] | None = None,
    delay: timedelta | None = None,
) -> MessageCopy:
    """Sends a message to a queue of the topic. Raises InvalidMessage, NoRoute and Refused."""
    id = unique_ids("127.0.0.1").next()
    message = outgoing(topic, body, id, tag=tag, keys=keys, properties=properties)
    if not body:
        raise InvalidMessage("the message is empty", hint="RocketMQ clients refuse a message without a body")
    if delay is not None:
        message.properties[DELAY_MS] = str(round(delay.total_seconds() * 1000))
    writable = (await calls.route(topic)).writable
    if not writable:
        raise NoRoute(f"no queue of {topic} can be written to")
    queue = random.choice(writable)
    command = SendMessageV2(
        producer_group=TOOLS_PRODUCER_GROUP,
        topic=topic,
        queue_id=queue.id,
        sys_flag=message.system_flag,
        born_timestamp=int(time.time() * 1000),
        flag=message.flag,
        properties=encode_properties(message.properties),
        broker_name=queue.broker,
    )
    reply = await calls.change(
        queue.broker, command, message.body, accept=tuple(STATUSES), timeout_s=SEND_TIMEOUT_S
    )
    sent = reply.header(Sent)
    stored = Queue(topic, queue.broker, sent.queue_id)
    return MessageCopy(id, sent.msg_id, stored, sent.queue_offset)
