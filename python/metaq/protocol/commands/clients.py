"""Clients of one broker: heartbeats, members, queue locks, and commands from the broker to its clients."""

from __future__ import annotations

import msgspec

from metaq.protocol.command import AnswerMax, Command, Fields
from metaq.protocol.ranges import Int32, Int64, LongText, Name, ShortText
from metaq.settings import KIB, MIB


class HeartbeatTaken(Fields):
    is_support_heart_beat_v2: bool = msgspec.field(default=True, name="IS_SUPPORT_HEART_BEAT_V2")
    is_sub_change: bool = msgspec.field(default=True, name="IS_SUB_CHANGE")


class HeartBeat(
    Command,
    code=34,
    permission="read",
    resources="body",
    reply=HeartbeatTaken,
    body_bytes_max=MIB,
    has_reserved_slots=True,
):
    """Body: HeartbeatData."""


class UnregisterClient(
    Command, code=35, permission="read", resources={"consumer_group": "group"}, has_reserved_slots=True
):
    """The client leaves these groups."""

    client_id: ShortText = msgspec.field(name="clientID")
    producer_group: Name | None = None
    consumer_group: Name | None = None


class CheckClientConfig(
    Command,
    code=46,
    permission="read",
    resources="body",
    body_bytes_max=256 * KIB,
    ends_with_connection=True,
):
    """Body: CheckClientRequestBody. Asks whether the broker understands a filter."""


class GetConsumerListByGroup(
    Command,
    code=38,
    permission="read",
    resources={"consumer_group": "group"},
    answer_max=AnswerMax(),
    has_reserved_slots=True,
):
    """Body of the answer: ConsumerList."""

    consumer_group: Name


class LockBatchQueues(
    Command,
    code=41,
    permission="read",
    resources="body",
    body_bytes_max=MIB,
    answer_max=AnswerMax(),
    ends_with_connection=False,
    has_reserved_slots=True,
):
    """Body: LockBatchRequestBody; body of the answer: LockBatchResponseBody."""


class UnlockBatchQueues(
    Command, code=42, permission="read", resources="body", body_bytes_max=MIB, has_reserved_slots=True
):
    """Body: LockBatchRequestBody."""


class GetConsumerConnectionList(
    Command, code=203, permission="describe", resources={"consumer_group": "group"}, answer_max=AnswerMax()
):
    """Body of the answer: ConsumerConnection; code 206 if none is online."""

    consumer_group: Name


class GetProducerConnectionList(
    Command, code=204, permission="describe", resources={}, answer_max=AnswerMax()
):
    """Body of the answer: ProducerConnection."""

    producer_group: Name


class GetAllProducerInfo(
    Command,
    code=328,
    permission="describe",
    resources={},
    answer_max=AnswerMax(instead="ask for one group at a time (GetProducerConnectionList, 204)"),
):
    """Body of the answer: ProducerTable."""


class NotifyConsumerIdsChanged(Command, code=40, permission="none", resources={}, to="client"):
    """Oneway: rebalance now."""

    consumer_group: Name


class CheckTransactionState(Command, code=39, permission="none", resources={}, to="client"):
    """Oneway; body: the half message."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: LongText | None = None
    transaction_id: LongText | None = None
    offset_msg_id: ShortText | None = None
    topic: Name | None = None
    bname: Name | None = None


class ResetConsumerClientOffset(Command, code=220, permission="none", resources={}, to="client"):
    """Oneway; body: ResetOffsetBody, or ResetOffsetList for clients in C++."""

    topic: Name
    group: Name
    timestamp: Int64
    is_force: bool = False


class PushReplyMessageToClient(Command, code=326, permission="none", resources={}, to="client"):
    """Body: the body of the reply. The client answers once its requester has it."""

    producer_group: Name
    topic: Name
    default_topic: Name
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    born_host: ShortText
    store_host: ShortText
    store_timestamp: Int64
    properties: LongText | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False


class GetConsumerStatusFromClient(
    Command, code=221, permission="none", resources={}, to="client", answer_bytes_max=MIB
):
    """Body of the answer: GetConsumerStatusBody."""

    topic: Name
    group: Name


class GetConsumerStatus(
    Command,
    code=223,
    permission="describe",
    resources={"topic": "topic", "group": "group"},
    answer_max=AnswerMax(instead="ask for one client at a time (clientAddr)"),
):
    """Relayed to the group's clients as 221; body of the answer: GetConsumerStatusBody."""

    topic: Name
    group: Name
    client_addr: ShortText | None = None


class GetConsumerRunningInfo(
    Command,
    code=307,
    permission="describe",
    resources={"consumer_group": "group"},
    answer_bytes_max=4 * MIB,
    ends_with_connection=True,
):
    """Relayed to the client as it is; body of the answer: ConsumerRunningInfo."""

    consumer_group: Name
    client_id: ShortText
    jstack_enable: bool = False


class ConsumeMessageDirectly(
    Command,
    code=309,
    permission="admin",
    resources={"topic": "topic", "consumer_group": "group"},
    answer_bytes_max=256 * KIB,
):
    """Relayed to the client with the record as its body; body of the answer: ConsumeMessageDirectlyResult."""

    consumer_group: Name
    client_id: ShortText | None = None
    msg_id: LongText | None = None
    broker_name: Name | None = None
    topic: Name | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
