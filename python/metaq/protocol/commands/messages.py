"""Sending, pulling and finding messages."""

from __future__ import annotations

from typing import Final

import msgspec

from metaq.protocol.command import AnswerMax, Command, Fields
from metaq.protocol.ranges import Int32, Int64, LongText, Name, ShortText, Text
from metaq.settings import MIB

PULL_SUSPENDS: Final = 2
"""Bit of a pull's `sys_flag`: the broker may hold the pull until a message arrives."""
PULL_HAS_SUBSCRIPTION: Final = 4
"""Bit of a pull's `sys_flag`: it carries its own subscription."""


class Sent(Fields):
    """Header of the answer to every kind of send."""

    msg_id: LongText
    queue_id: Int32
    queue_offset: Int64
    transaction_id: LongText | None = None
    batch_uniq_id: LongText | None = None
    recall_handle: ShortText | None = None


class SendMessage(Command, code=10, permission="write", resources={"topic": "topic"}, hot=True, reply=Sent):
    """Body: the body of the message."""

    producer_group: Name
    topic: Name
    default_topic: Name = "TBW102"
    default_topic_queue_nums: Int32 = 4
    queue_id: Int32 = 0
    sys_flag: Int32 = 0
    born_timestamp: Int64 = 0
    flag: Int32 = 0
    properties: LongText | None = None
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    batch: bool = False
    max_reconsume_times: Int32 | None = None


class SendMessageV2(
    Command, code=310, permission="write", resources={"topic": "topic"}, hot=True, reply=Sent
):
    """The same command with one-letter names."""

    producer_group: Name = msgspec.field(name="a")
    topic: Name = msgspec.field(name="b")
    default_topic: Name = msgspec.field(default="TBW102", name="c")
    default_topic_queue_nums: Int32 = msgspec.field(default=4, name="d")
    queue_id: Int32 = msgspec.field(default=0, name="e")
    sys_flag: Int32 = msgspec.field(default=0, name="f")
    born_timestamp: Int64 = msgspec.field(default=0, name="g")
    flag: Int32 = msgspec.field(default=0, name="h")
    properties: LongText | None = msgspec.field(default=None, name="i")
    reconsume_times: Int32 = msgspec.field(default=0, name="j")
    unit_mode: bool = msgspec.field(default=False, name="k")
    max_reconsume_times: Int32 | None = msgspec.field(default=None, name="l")
    batch: bool = msgspec.field(default=False, name="m")
    broker_name: Name | None = msgspec.field(default=None, name="n")


class SendBatchMessage(SendMessageV2, code=320, hot=True, reply=Sent):
    """Body: client batch records, one after the other; `msgId` of the answer is a comma-separated list."""


class SendReplyMessage(SendMessage, code=324, reply=Sent, hot=False, body_bytes_max=16 * MIB):
    """The answer to a request; goes to the producer that property REPLY_TO_CLIENT names."""


class SendReplyMessageV2(SendMessageV2, code=325, reply=Sent, hot=False, body_bytes_max=16 * MIB):
    """The same command with one-letter names."""


class Pulled(Fields):
    """Header of the answer to a pull, also of one that found nothing."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64


class PullMessage(
    Command,
    code=11,
    permission="read",
    resources={"topic": "topic", "consumer_group": "group"},
    hot=True,
    reply=Pulled,
):
    """Body of the answer: stored records."""

    consumer_group: Name
    topic: Name
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32 = 32
    sys_flag: Int32 = 0
    commit_offset: Int64 = 0
    suspend_timeout_millis: Int64 = 0
    subscription: LongText | None = None
    sub_version: Int64 = 0
    expression_type: ShortText | None = None
    max_msg_bytes: Int32 | None = None


class LitePullMessage(PullMessage, code=361, hot=True, reply=Pulled):
    """A pull of a lite pull consumer from 5.0 on."""


class TakenBack(Fields):
    """Header of the answer to a message that a consumer returns. Apache's brokers send no fields."""

    is_dead_letter: bool = False


class ConsumerSendMsgBack(Command, code=36, permission="read", resources={"group": "group"}, reply=TakenBack):
    """Give this message to the group again later, or to its dead-letter topic."""

    physical_offset: Int64 = msgspec.field(name="offset")
    group: Name
    delay_level: Int32
    origin_msg_id: ShortText | None = None
    origin_topic: Name | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    failure_reason: Text | None = None
    """Why the consumer failed on it; only MetaQ's clients send this and the next field."""
    failure_type: ShortText | None = None


class EndTransaction(Command, code=37, permission="write", resources={"topic": "topic"}, hot=True):
    """`commit_or_rollback`: 8 commit, 12 roll back, 0 not known yet."""

    producer_group: Name
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: LongText
    topic: Name | None = None
    from_transaction_check: bool = False
    transaction_id: LongText | None = None


class Recalled(Fields):
    """The unique key of the message that was recalled."""

    msg_id: LongText


class RecallMessage(Command, code=370, permission="write", resources={"topic": "topic"}, reply=Recalled):
    """Recall a message that waits for its time. Its send was answered with `recall_handle`."""

    topic: Name
    recall_handle: ShortText
    producer_group: Name = ""


class ResumeCheckHalfMessage(Command, code=323, permission="admin", resources={"topic": "topic"}):
    """Reopen a transaction that was given up, by the offset id of its message in the topic for those."""

    msg_id: LongText
    topic: Name | None = None


class ViewMessageById(
    Command, code=33, permission="read", resources={"topic": "topic"}, ends_with_connection=True
):
    """Body of the answer: one stored record."""

    physical_offset: Int64 = msgspec.field(name="offset")
    topic: Name | None = None


QUERY_COUNT_MAX: Final = 64


class MessagesFound(Fields):
    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class QueryMessage(
    Command,
    code=12,
    permission="read",
    resources={"topic": "topic"},
    reply=MessagesFound,
    answer_max=AnswerMax(lines=QUERY_COUNT_MAX),
):
    """Body of the answer: stored records."""

    topic: Name
    key: Text
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key: bool = msgspec.field(default=False, name="_UNIQUE_KEY_QUERY")


class QueueMeasured(Fields):
    """The measure of the part of a queue up to `end_offset`."""

    end_offset: Int64
    size_bytes: Int64
    """The size of its records as stored."""
    before_physical_offset: Int64 = -1
    """The record before the part; −1 if it is gone."""
    last_physical_offset: Int64 = -1
    delay_ms: Int64 = 0
    """The age of the record at `end_offset`; 0 if there is none."""
    ordered_since_ms: Int64 = -1
    """Records of this time or later are in the order of their store times; −1 if that is not known."""


class MeasureQueue(
    Command,
    code=30_321,
    permission="read",
    resources={"topic": "topic"},
    reply=QueueMeasured,
    ends_with_connection=True,
):
    """Measures how many messages from `queue_offset` on fit into a number of bytes. Only MetaQ's brokers know
    this command."""

    topic: Name
    queue_id: Int32
    queue_offset: Int64
    end_offset: Int64
    size_bytes_max: Int64 = 2**63 - 1


class QueryConsumeQueue(
    Command,
    code=321,
    permission="describe",
    resources={"topic": "topic", "consumer_group": "group"},
    answer_max=AnswerMax(lines=1_000),
):
    """Lines of a consume queue from `index` on; body of the answer: ConsumeQueueLines."""

    topic: Name
    queue_id: Int32
    queue_offset: Int64 = msgspec.field(name="index")
    count: Int32 = 32
    consumer_group: Name | None = None
