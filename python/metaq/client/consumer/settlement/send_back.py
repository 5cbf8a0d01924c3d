"""Returns messages to their broker, which delivers them again later or stores them as dead letters."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from metaq.client.consumer.subscription import DEAD_LETTER_LEVEL
from metaq.protocol.errors import Refused
from metaq.protocol.messages import ConsumerSendMsgBack, SendMessageV2
from metaq.protocol.names import INNER_PRODUCER_GROUP
from metaq.protocol.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC, encode_properties

if TYPE_CHECKING:
    from metaq.client.consumer.options import ConsumerOptions
    from metaq.client.message import Message
    from metaq.client.session.session import Session

_log = logging.getLogger(__name__)


async def send_back(session: Session, options: ConsumerOptions, message: Message, level: int) -> None:
    """Asks the broker to deliver a message again after a delay level, or to make it a dead letter.

    Raises MetaqError.
    """
    command = ConsumerSendMsgBack(
        physical_offset=message.physical_offset,
        group=options.group,
        delay_level=level,
        origin_msg_id=message.offset_id,
        origin_topic=message.topic,
        max_reconsume_times=options.retries_max,
    )
    (await session.call(_broker(message), command)).check()
    if level == DEAD_LETTER_LEVEL:
        session.telemetry.dead_lettered(options.group, message)
    else:
        session.telemetry.retried(options.group, message, "broker")


async def send_to_dead_letters(session: Session, options: ConsumerOptions, message: Message) -> None:
    """Makes a message a dead letter even if its broker has deleted it already. Raises MetaqError."""
    try:
        await send_back(session, options, message, DEAD_LETTER_LEVEL)
        return
    except Refused as error:
        _log.info("group %s: %s is sent as a new message: %s", options.group, message.id, error)
    properties = {
        **message.properties,
        **message.system_properties,
        RETRY_TOPIC: message.topic,
        ORIGIN_MESSAGE_ID: message.offset_id,
    }
    # The broker makes a dead letter of a message that reaches the retry topic with no attempts left.
    command = SendMessageV2(
        producer_group=INNER_PRODUCER_GROUP,
        topic=options.retry_topic,
        born_timestamp=message.born_at,
        flag=message.flag,
        properties=encode_properties(properties),
        reconsume_times=max(message.reconsume_times, 1),
        max_reconsume_times=0,
    )
    (await session.call(_broker(message), command, message.body)).check()
    session.telemetry.dead_lettered(options.group, message)


def _broker(message: Message) -> str:
    assert message.queue is not None, "a consumed message has a queue"
    return message.queue.broker
