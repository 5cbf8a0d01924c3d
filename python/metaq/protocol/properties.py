"""Properties of a message: the names that belong to the system, and their form on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TAGS: Final = "TAGS"
KEYS: Final = "KEYS"
WAIT: Final = "WAIT"
UNIQUE_KEY: Final = "UNIQ_KEY"
SHARDING_KEY: Final = "__SHARDINGKEY"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
DELAY_MS: Final = "TIMER_DELAY_MS"
DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_DUE_MS: Final = "TIMER_OUT_MS"
TIMER_ROLLS: Final = "TIMER_ROLL_TIMES"
TIMER_DELETES: Final = "TIMER_DEL_UNIQKEY"
"""The delayed message that this one cancels."""
TRANSACTION: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO: Final = "REPLY_TO_CLIENT"
REPLY_PUSHED_MS: Final = "PUSH_REPLY_TIME"
TIME_TO_LIVE: Final = "TTL"
MESSAGE_TYPE: Final = "MSG_TYPE"
CLUSTER: Final = "CLUSTER"
REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
"""The topic that a message goes to when it is due or committed."""
REAL_QUEUE_ID: Final = "REAL_QID"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
DEAD_LETTER_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
"""The topic of a dead letter before its first failure."""
DEAD_LETTER_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
DEAD_LETTER_REASON: Final = "DLQ_REASON"
"""Why a consumer has given the message up, in its own words. MetaQ's brokers store it."""
DEAD_LETTER_ERROR: Final = "DLQ_ERROR_TYPE"
"""The class of the exception."""
LEFT_OUT: Final = "METAQ_LEFT_OUT"
"""On a copy of a message that was sent back: how many of its properties found no room beside those that the
broker adds."""
RESENT_LETTER: Final = "DLQ_RESENT_ID"
"""The offset id of the dead letter that a message was sent again from."""
DELAY_LEVEL: Final = "DELAY"
RECONSUME_TIMES_MAX: Final = "MAX_RECONSUME_TIMES"
CONSUME_STARTED_MS: Final = "CONSUME_START_TIME"
TRANSACTION_CHECKS: Final = "TRANSACTION_CHECK_TIMES"
TRANSACTION_ID: Final = "__transactionId__"

SYSTEM_NAMES: Final = frozenset(
    (
        KEYS,
        TAGS,
        WAIT,
        DELAY_LEVEL,
        RETRY_TOPIC,
        REAL_TOPIC,
        REAL_QUEUE_ID,
        TRANSACTION,
        PRODUCER_GROUP,
        "MIN_OFFSET",
        "MAX_OFFSET",
        "BUYER_ID",
        ORIGIN_MESSAGE_ID,
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "RECONSUME_TIME",
        REGION,
        TRACE_ON,
        UNIQUE_KEY,
        "EXTEND_UNIQ_INFO",
        RECONSUME_TIMES_MAX,
        CONSUME_STARTED_MS,
        "INNER_NUM",
        "INNER_BASE",
        "DUP_INFO",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "TRAN_PREPARED_QUEUE_OFFSET",
        TRANSACTION_ID,
        TRANSACTION_CHECKS,
        "INSTANCE_ID",
        CORRELATION_ID,
        REPLY_TO,
        TIME_TO_LIVE,
        "ARRIVE_TIME",
        REPLY_PUSHED_MS,
        CLUSTER,
        MESSAGE_TYPE,
        "POP_CK",
        "POP_CK_OFFSET",
        "1ST_POP_TIME",
        SHARDING_KEY,
        "PROPERTY_FORWARD_QUEUE_ID",
        "REDIRECT",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "TRACE_CONTEXT",
        "TIMER_DELAY_SEC",
        DELAY_MS,
        DELIVER_MS,
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        TIMER_ROLLS,
        TIMER_DUE_MS,
        TIMER_DELETES,
        "TIMER_DELAY_LEVEL",
        "__BORNHOST",
        "BORN_TIMESTAMP",
        "__CRC32#",
        DEAD_LETTER_TOPIC,
        DEAD_LETTER_MESSAGE_ID,
        DEAD_LETTER_REASON,
        DEAD_LETTER_ERROR,
        LEFT_OUT,
        RESENT_LETTER,
        PRIORITY,
        "__LITE_TOPIC",
        "ORIGIN_GROUP",
        "TRANS_OFFSET",
        "TIMER_ROLL_LABEL",
        "E_T",
    )
)
"""Names that users can neither set nor see among their own properties."""


NUMBER_DIGITS_MAX: Final = 18
"""A longer number is not one of the system's, and Python refuses to read very long ones."""


def number_of(value: str | None) -> int:
    """The number in a property that senders may have written; 0 if it is none."""
    if value is None or len(value) > NUMBER_DIGITS_MAX or not (value.isascii() and value.isdecimal()):
        return 0
    return int(value)


def encode_properties(properties: Mapping[str, str]) -> str:
    """Writes `name 0x01 value 0x02` for each property."""
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def decode_properties(text: str) -> dict[str, str]:
    """Reads what `encode_properties` wrote; skips entries without a name or a value."""
    pairs = (entry.partition("\x01") for entry in text.split("\x02"))
    return {name: value for name, _, value in pairs if name and value}
