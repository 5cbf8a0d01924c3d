"""Offsets of queues and of groups."""

from __future__ import annotations

import msgspec

from metaq.protocol.command import AnswerMax, Command, Fields
from metaq.protocol.ranges import Int32, Int64, LongText, Name, ShortText

PREVIOUSLY_RESET = "Offset has been previously reset"
"""The remark if a reset of the group is open: on an UpdateConsumerOffset that was ignored, and, by MetaQ's
brokers, on the answer to a QueryConsumerOffset, whose offset is the target of the reset."""


class QueueOffset(Fields):
    queue_offset: Int64 = msgspec.field(name="offset")


class QueryConsumerOffset(
    Command,
    code=14,
    permission="read",
    resources={"topic": "topic", "consumer_group": "group"},
    hot=True,
    reply=QueueOffset,
):
    """Code 22 if the group has none."""

    consumer_group: Name
    topic: Name
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffset(
    Command, code=15, permission="read", resources={"topic": "topic", "consumer_group": "group"}, hot=True
):
    """Usually sent oneway."""

    consumer_group: Name
    topic: Name
    queue_id: Int32
    commit_offset: Int64


class SearchOffsetByTimestamp(
    Command, code=29, permission="describe", resources={"topic": "topic"}, hot=True, reply=QueueOffset
):
    """LOWER finds the first message stored at that time or later, UPPER the last at that time or earlier."""

    topic: Name
    queue_id: Int32
    timestamp: Int64
    boundary_type: ShortText | None = None


class GetMaxOffset(
    Command, code=30, permission="describe", resources={"topic": "topic"}, hot=True, reply=QueueOffset
):
    topic: Name
    queue_id: Int32


class GetMinOffset(
    Command, code=31, permission="describe", resources={"topic": "topic"}, hot=True, reply=QueueOffset
):
    topic: Name
    queue_id: Int32


class StoreTime(Fields):
    timestamp: Int64


class GetEarliestMessageStoreTime(
    Command,
    code=32,
    permission="describe",
    resources={"topic": "topic"},
    reply=StoreTime,
    ends_with_connection=True,
):
    """−1 if the queue is empty."""

    topic: Name
    queue_id: Int32


class GetAllConsumerOffset(
    Command, code=43, permission="cluster", resources={}, answer_max=AnswerMax(lines=1_000_000)
):
    """Body of the answer: ConsumerOffsets."""


class GetAllDelayOffset(
    Command, code=45, permission="cluster", resources={}, answer_max=AnswerMax(lines=1_000)
):
    """Body of the answer: the offsets of the delay levels."""


class GetTimerCheckPoint(Command, code=60, permission="cluster", resources={}):
    """Body of the answer: seven long integers (`broker/requests/timer_progress.py`)."""


class GetTimerMetrics(
    Command, code=61, permission="cluster", resources={}, answer_max=AnswerMax(lines=1_000)
):
    """Body of the answer: TimerMetrics."""


class GetConsumeStats(
    Command,
    code=208,
    permission="describe",
    resources={"topic": "topic", "consumer_group": "group"},
    answer_max=AnswerMax(instead="ask for fewer topics (topicList)"),
):
    """Body of the answer: ConsumeStats."""

    consumer_group: Name
    topic: Name | None = None
    topic_list: LongText | None = None
    """Semicolon-separated."""


class GetBrokerConsumeStats(
    Command,
    code=317,
    permission="describe",
    resources={},
    answer_max=AnswerMax(instead="ask for one group at a time (GetConsumeStats, 208)"),
):
    """Body of the answer: ConsumeStatsList."""

    is_order: bool = False


class QueryConsumeTimeSpan(
    Command,
    code=303,
    permission="describe",
    resources={"topic": "topic", "group": "group"},
    answer_max=AnswerMax(),
):
    """The progress of a group in each queue of a topic, in time; body of the answer: ConsumeTimeSpans."""

    topic: Name
    group: Name


class QueryCorrectionOffset(
    Command,
    code=308,
    permission="describe",
    resources={"topic": "topic", "compare_group": "group"},
    answer_max=AnswerMax(instead="leave groups out (filterGroups)"),
):
    """The lowest offset per queue of all groups but `filter_groups` (comma-separated), unless `compare_group`
    has a lower one; body of the answer: CorrectionOffsets."""

    topic: Name
    compare_group: Name
    filter_groups: LongText | None = None


class CloneGroupOffset(
    Command,
    code=314,
    permission="admin",
    resources={"topic": "topic", "src_group": "group", "dest_group": "group"},
    answer_max=AnswerMax(instead="copy one topic at a time (topic)"),
    ends_with_connection=False,
):
    """Copies one group's offsets, on one topic or on all, to another group."""

    src_group: Name
    dest_group: Name
    topic: Name | None = None
    offline: bool = False


class ResetConsumerOffset(
    Command,
    code=222,
    permission="admin",
    resources={"topic": "topic", "group": "group"},
    answer_max=AnswerMax(),
    ends_with_connection=False,
):
    """Body of the answer: ResetOffsetBody. `timestamp` −1 means the end."""

    topic: Name
    group: Name
    timestamp: Int64
    is_force: bool = False
    queue_id: Int32 | None = None
    queue_offset: Int64 | None = msgspec.field(default=None, name="offset")
