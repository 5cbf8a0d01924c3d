"""Returns messages to their broker, which delivers them again later or stores them as dead letters."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from metaq.client.compression import COMPRESSED, FORMAT_BITS
from metaq.client.consumer.subscription import DEAD_LETTER_LEVEL
from metaq.client.stderr_fallback import once
from metaq.protocol.commands.messages import ConsumerSendMsgBack, SendMessageV2, TakenBack
from metaq.protocol.errors import Refused
from metaq.protocol.names import INNER_PRODUCER_GROUP
from metaq.protocol.properties import (
    DEAD_LETTER_ERROR,
    DEAD_LETTER_REASON,
    DELAY_LEVEL,
    DELAY_MS,
    DELIVER_MS,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    TIMER_DUE_MS,
    TIMER_ROLLS,
    encode_properties,
)

if TYPE_CHECKING:
    from metaq.client.consumer.options import ConsumerOptions
    from metaq.client.message import Message
    from metaq.client.session.session import Session

_log = logging.getLogger(__name__)

REASON_CHARACTERS_MAX: Final = 500
_DELAYS: Final = frozenset((DELAY_LEVEL, DELAY_MS, DELIVER_MS, TIMER_DUE_MS, TIMER_ROLLS, "TIMER_DELAY_SEC"))
"""Apache's brokers leave these on messages that they have delivered."""


async def send_back(
    session: Session,
    options: ConsumerOptions,
    message: Message,
    level: int,
    error: BaseException | None = None,
) -> None:
    """Asks the broker to deliver a message again after a delay level, or to make it a dead letter.

    A dead letter is logged, and MetaQ's brokers store the error with it. Raises MetaqError.
    """
    reason, kind = describe(error)
    command = ConsumerSendMsgBack(
        physical_offset=message.physical_offset,
        group=options.group,
        delay_level=level,
        origin_msg_id=message.offset_id,
        origin_topic=message.topic,
        max_reconsume_times=options.retries_max,
        failure_reason=reason or None,
        failure_type=kind or None,
    )
    taken = (await session.call(_broker(message), command)).check().header(TakenBack)
    tries_left = None if options.retries_max is None else options.retries_max - message.reconsume_times
    # Apache's broker does not say that the tries are used up.
    if level == DEAD_LETTER_LEVEL or taken.is_dead_letter or (tries_left is not None and tries_left <= 0):
        _dead_lettered(session, options, message, error)
    else:
        session.telemetry.retried(options.group, message, "broker")


def describe(error: BaseException | None) -> tuple[str, str]:
    """Returns what is stored about an error with a dead letter: its text and its class."""
    if error is None:
        return "", ""
    kind = type(error)
    is_known = kind.__module__ == "builtins" or kind.__module__.startswith("metaq.")
    name = kind.__qualname__ if is_known else f"{kind.__module__}.{kind.__qualname__}"
    # Lone surrogates cannot be encoded, and other characters would end a property.
    text = str(error).encode(errors="replace").decode()
    return "".join(c if c.isprintable() else " " for c in text)[:REASON_CHARACTERS_MAX], name


def _dead_lettered(
    session: Session, options: ConsumerOptions, message: Message, error: BaseException | None
) -> None:
    session.telemetry.dead_lettered(options.group, message)
    _log.warning(
        "group %s: %s of %s is a dead letter: %s",
        options.group,
        message.id,
        message.topic,
        ": ".join(filter(None, reversed(describe(error)))) or "no reason was given",
        extra=once("dead letter", options.group),
    )


async def send_to_dead_letters(
    session: Session, options: ConsumerOptions, message: Message, error: BaseException
) -> None:
    """Makes a message a dead letter even if its broker has deleted it already. Raises MetaqError."""
    try:
        await send_back(session, options, message, DEAD_LETTER_LEVEL, error)
        return
    except Refused as refused:
        _log.info("group %s: %s is sent as a new message: %s", options.group, message.id, refused)
    reason, kind = describe(error)
    properties = {DEAD_LETTER_REASON: reason or kind, DEAD_LETTER_ERROR: kind}
    # The broker makes a dead letter of a message that reaches the retry topic with no attempts left.
    await _send_copy(
        session,
        options,
        message,
        properties,
        reconsume_times=max(message.reconsume_times, 1),
        max_reconsume_times=0,
    )
    _dead_lettered(session, options, message, error)


async def send_again(session: Session, options: ConsumerOptions, message: Message, delay_s: float) -> None:
    """Sends a copy of a message to the group's retry topic, as a delayed message. Raises MetaqError.

    The caller has checked that retries are left: the copy must not become a dead letter without its reason.
    """
    await _send_copy(
        session,
        options,
        message,
        {DELAY_MS: str(round(delay_s * 1000))},
        reconsume_times=message.reconsume_times + 1,
        max_reconsume_times=message.reconsume_times + 2,
    )
    session.telemetry.retried(options.group, message, "broker")


async def _send_copy(
    session: Session,
    options: ConsumerOptions,
    message: Message,
    properties: dict[str, str],
    *,
    reconsume_times: int,
    max_reconsume_times: int | None,
) -> None:
    """Sends a message with all its properties, except its delays, to the group's retry topic."""
    body, system_flag = message.stored_body
    kept = {name: value for name, value in message.system_properties.items() if name not in _DELAYS}
    origin_id = kept.get(ORIGIN_MESSAGE_ID) or message.offset_id
    command = SendMessageV2(
        producer_group=INNER_PRODUCER_GROUP,
        topic=options.retry_topic,
        born_timestamp=message.born_at,
        flag=message.flag,
        sys_flag=system_flag & (COMPRESSED | FORMAT_BITS),
        properties=encode_properties(
            {
                **message.properties,
                **kept,
                RETRY_TOPIC: message.topic,
                ORIGIN_MESSAGE_ID: origin_id,
                **properties,
            }
        ),
        reconsume_times=reconsume_times,
        max_reconsume_times=max_reconsume_times,
    )
    (await session.call(_broker(message), command, body)).check()


def _broker(message: Message) -> str:
    assert message.queue is not None, "a consumed message has a queue"
    return message.queue.broker
