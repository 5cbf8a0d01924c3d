"""The JSON that commands carry.

Names and defaults are RocketMQ's. A body without a field gets that field's default, unknown fields are
ignored, and None is not written. A default from `always` is written all the same, because Java peers expect
every field that has a value.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Self

import msgspec

from metaq.protocol import java_json
from metaq.protocol.errors import ProtocolError
from metaq.protocol.java_json import MessageQueue as MessageQueue  # bodies are full of them
from metaq.protocol.ranges import (
    FRAME_CHARACTERS_MAX,
    OBJECTS_MAX,
    Bits,
    Entries,
    FewEntries,
    FewRows,
    Int32,
    Int64,
    LongText,
    Name,
    Rows,
    ShortText,
    Text,
)

READ: Final = 4
WRITE: Final = 2
INHERIT: Final = 1
"""Bits of `perm`, the permission of a topic or a broker."""

ALL_TAGS: Final = "*"
TAG: Final = "TAG"
SQL92: Final = "SQL92"
FUNCTION: Final = "FUNCTION"
"""Types of the expression that a subscription selects messages by; `FUNCTION` exists only on our brokers."""

CONSUME_PASSIVELY: Final = "CONSUME_PASSIVELY"
"""The consumer is called with messages; it does not ask for them."""
CONSUME_FROM_FIRST_OFFSET: Final = "CONSUME_FROM_FIRST_OFFSET"
CONSUME_FROM_LAST_OFFSET: Final = "CONSUME_FROM_LAST_OFFSET"
CONSUME_FROM_TIMESTAMP: Final = "CONSUME_FROM_TIMESTAMP"
CLUSTERING: Final = "CLUSTERING"
BROADCASTING: Final = "BROADCASTING"


def always(value: Any = None, factory: Any = None) -> Any:
    """A default that is written too: msgspec leaves out only defaults that it can tell from a given value."""
    return msgspec.field(default_factory=factory or (lambda: value))


def _mapping() -> dict[Any, Any]:
    return {}


def _sequence() -> list[Any]:
    return []


class Body(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """A body of a request or of an answer. No body refers to itself, not even through others, so the garbage
    collector need not look at it: a list may have very many, and each look at them stops all threads."""

    tolerant_bytes_max: ClassVar[int] = java_json.TOLERANT_BYTES_MAX
    """The longest one that is read in Java's way: with nulls, and with keys that are not text."""
    objects_max: ClassVar[int | None] = None
    """The most objects in one of a request. They are counted by their braces before the body is read."""

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises ProtocolError if the body cannot be read."""
        if cls.objects_max is not None and (objects := data.count(b"{")) > cls.objects_max:
            raise ProtocolError(
                f"the body has {objects} opening braces, the limit for {cls.__name__} is {cls.objects_max}"
            )
        return java_json.decode(data, cls, tolerant_bytes_max=cls.tolerant_bytes_max)

    def encode(self, *, bare_integer_keys: bool = False) -> bytes:
        return java_json.encode(self, bare_integer_keys=bare_integer_keys)


class AnswerBody(Body):
    """A body that only answers have. Tables by queue, and Apache's files, are as long as a frame."""

    tolerant_bytes_max: ClassVar[int] = FRAME_CHARACTERS_MAX


# Routes

ROUTE_BYTES_MAX: Final = 1024 * 1024
"""Apache's name servers write the ids of brokers as bare keys. These are routes of some thousand brokers."""


class BrokerData(Body):
    """The addresses of one broker name, by broker id; 0 is the master."""

    broker_addrs: Entries[Int64, ShortText] = always(factory=_mapping)
    broker_name: Name = always("")
    cluster: Name = always("")
    enable_acting_master: bool = always(False)
    zone_name: Name | None = None


class QueueData(Body):
    """How many queues of a topic one broker has."""

    broker_name: Name = always("")
    perm: Bits = always(READ | WRITE)
    read_queue_nums: Int32 = always(0)
    topic_sys_flag: Int32 = always(0)
    write_queue_nums: Int32 = always(0)


class TopicRouteData(AnswerBody):
    """The route of a topic: its brokers and queues."""

    tolerant_bytes_max: ClassVar[int] = ROUTE_BYTES_MAX

    broker_datas: Rows[BrokerData] = always(factory=_sequence)
    filter_server_table: Entries[ShortText, Rows[ShortText]] = always(factory=_mapping)
    order_topic_conf: LongText | None = None
    queue_datas: Rows[QueueData] = always(factory=_sequence)


class ClusterInfo(AnswerBody):
    tolerant_bytes_max: ClassVar[int] = ROUTE_BYTES_MAX
    broker_addr_table: Entries[ShortText, BrokerData] = always(factory=_mapping)
    cluster_addr_table: Entries[ShortText, Rows[ShortText]] = always(factory=_mapping)


class TopicList(Body):
    broker_addr: ShortText | None = None
    topic_list: Rows[ShortText] = always(factory=_sequence)


class KVTable(AnswerBody):
    table: Entries[ShortText, LongText] = always(factory=_mapping)


class BrokerMemberGroup(Body):
    broker_addrs: Entries[Int64, ShortText] = always(factory=_mapping)
    broker_name: Name = always("")
    cluster: Name = always("")


class BrokerMemberGroupBody(Body):
    broker_member_group: BrokerMemberGroup = always(factory=BrokerMemberGroup)


# Topics, groups and registration


class DataVersion(Body):
    """The version of a table, which changes with it."""

    counter: Int64 = always(0)
    state_version: Int64 = always(0)
    timestamp: Int64 = always(0)

    def next(self, now_ms: int) -> DataVersion:
        """Returns the version after a change, as a new object: this one may be on its way to a peer."""
        return DataVersion(counter=self.counter + 1, state_version=self.state_version, timestamp=now_ms)


class TopicConfig(Body):
    attributes: FewEntries[ShortText, Text] = always(factory=_mapping)
    order: bool = always(False)
    perm: Bits = always(READ | WRITE)
    read_queue_nums: Int32 = always(16)
    topic_filter_type: ShortText = always("SINGLE_TAG")
    topic_name: Name = always("")
    topic_sys_flag: Int32 = always(0)
    write_queue_nums: Int32 = always(16)


class TopicConfigList(Body):
    objects_max: ClassVar[int | None] = OBJECTS_MAX

    topic_config_list: FewRows[TopicConfig] = always(factory=_sequence)


class TopicConfigTable(AnswerBody):
    """Apache's TopicConfigSerializeWrapper; topics.json has the same form."""

    data_version: DataVersion = always(factory=DataVersion)
    topic_config_table: Entries[ShortText, TopicConfig] = always(factory=_mapping)


class RegisterBrokerBody(Body):
    filter_server_list: Rows[ShortText] = always(factory=_sequence)
    topic_config_serialize_wrapper: TopicConfigTable = always(factory=TopicConfigTable)


class GroupRetryPolicy(Body):
    type: ShortText = always("CUSTOMIZED")


class SubscriptionGroupConfig(Body):
    attributes: FewEntries[ShortText, Text] = always(factory=_mapping)
    broker_id: Int64 = always(0)
    consume_broadcast_enable: bool = always(True)
    consume_enable: bool = always(True)
    consume_from_min_enable: bool = always(True)
    consume_message_orderly: bool = always(False)
    consume_timeout_minute: Int32 = always(15)
    group_name: Name = always("")
    group_retry_policy: GroupRetryPolicy = always(factory=GroupRetryPolicy)
    group_sys_flag: Int32 = always(0)
    notify_consumer_ids_changed_enable: bool = always(True)
    retry_max_times: Int32 = always(16)
    retry_queue_nums: Int32 = always(1)
    which_broker_when_consume_slowly: Int64 = always(1)


class SubscriptionGroupList(Body):
    objects_max: ClassVar[int | None] = OBJECTS_MAX

    group_config_list: FewRows[SubscriptionGroupConfig] = always(factory=_sequence)


class SubscriptionGroupTable(AnswerBody):
    """Apache's SubscriptionGroupWrapper; subscriptionGroup.json has the same form."""

    data_version: DataVersion = always(factory=DataVersion)
    forbidden_table: Entries[ShortText, Entries[ShortText, Int32]] = always(factory=_mapping)
    subscription_group_table: Entries[ShortText, SubscriptionGroupConfig] = always(factory=_mapping)


class GroupList(Body):
    group_list: Rows[ShortText] = always(factory=_sequence)


# Clients


class SubscriptionData(Body):
    class_filter_mode: bool = always(False)
    code_set: FewRows[Int32] = always(factory=_sequence)
    expression_type: ShortText = always(TAG)
    sub_string: Text = always(ALL_TAGS)
    sub_version: Int64 = always(0)
    tags_set: FewRows[Text] = always(factory=_sequence)
    topic: Name = always("")


class ConsumerData(Body):
    consume_from_where: ShortText = always(CONSUME_FROM_LAST_OFFSET)
    consume_type: ShortText = always(CONSUME_PASSIVELY)
    group_name: Name = always("")
    message_model: ShortText = always(CLUSTERING)
    subscription_data_set: FewRows[SubscriptionData] = always(factory=_sequence)
    unit_mode: bool = always(False)


class ProducerData(Body):
    group_name: Name = always("")


class HeartbeatData(Body):
    objects_max: ClassVar[int | None] = OBJECTS_MAX

    client_id: ShortText = msgspec.field(default_factory=lambda: "", name="clientID")
    client_version: ShortText | None = None
    """The version of the client's own software, which only MetaQ's clients tell. The version in the header is
    the one of RocketMQ's protocol."""
    consumer_data_set: FewRows[ConsumerData] = always(factory=_sequence)
    heartbeat_fingerprint: Int32 = always(0)
    producer_data_set: FewRows[ProducerData] = always(factory=_sequence)
    without_sub: bool = always(False)


class CheckClientRequestBody(Body):
    objects_max: ClassVar[int | None] = OBJECTS_MAX

    client_id: ShortText = always("")
    group: Name = always("")
    namespace: Name | None = None
    subscription_data: SubscriptionData = always(factory=SubscriptionData)


class ConsumerList(Body):
    consumer_id_list: Rows[ShortText] = always(factory=_sequence)


class LockBatchRequestBody(Body):
    objects_max: ClassVar[int | None] = OBJECTS_MAX

    client_id: ShortText = always("")
    consumer_group: Name = always("")
    mq_set: FewRows[MessageQueue] = always(factory=_sequence)
    only_this_broker: bool = always(False)


class LockBatchResponseBody(Body):
    lock_ok_mq_set: Rows[MessageQueue] = msgspec.field(default_factory=lambda: [], name="lockOKMQSet")


class Connection(Body):
    client_addr: ShortText = always("")
    client_id: ShortText = always("")
    client_version: ShortText | None = None
    language: ShortText = always("OTHER")
    version: Int32 = always(0)


class ConsumerConnection(AnswerBody):
    connection_set: Rows[Connection] = always(factory=_sequence)
    consume_from_where: ShortText = always(CONSUME_FROM_LAST_OFFSET)
    consume_type: ShortText = always(CONSUME_PASSIVELY)
    message_model: ShortText = always(CLUSTERING)
    subscription_table: Entries[ShortText, SubscriptionData] = always(factory=_mapping)


class QueueProgress(Body):
    """The state of one queue in the report of a consumer. Nobody reads it here."""


class ConsumerRunningInfo(AnswerBody):
    """The part of a consumer's own report that tools show."""

    jstack: LongText | None = None
    mq_pop_table: Entries[MessageQueue, QueueProgress] = always(factory=_mapping)
    mq_table: Entries[MessageQueue, QueueProgress] = always(factory=_mapping)
    properties: Entries[ShortText, LongText] = always(factory=_mapping)
    subscription_set: Rows[SubscriptionData] = always(factory=_sequence)


class ProducerConnection(Body):
    connection_set: Rows[Connection] = always(factory=_sequence)


class SubscriptionAnswer(Body):
    """Answers a query for one group's subscription to one topic."""

    group: Name = always("")
    subscription_data: SubscriptionData | None = None
    topic: Name = always("")


# Offsets and figures


class ConsumerOffsets(AnswerBody):
    """`topic@group` → queue → committed offset; consumerOffset.json has the same form."""

    data_version: DataVersion | None = None
    offset_table: Entries[ShortText, Entries[Int32, Int64]] = always(factory=_mapping)
    reset_table: Entries[ShortText, Entries[Int32, Int64]] | None = None
    """Resets that consumers have not followed yet. Only our file has it; Apache ignores it."""


class DelayOffsets(AnswerBody):
    """Delay level → the offset at which its delivery goes on; delayOffset.json has the same form."""

    data_version: DataVersion | None = None
    offset_table: Entries[Int32, Int64] = always(factory=_mapping)


class TimerMetrics(Body):
    """Topic → how many of its messages wait for their moment."""

    data_version: DataVersion = always(factory=DataVersion)
    timing_count: Entries[ShortText, Int64] = always(factory=_mapping)


class OffsetWrapper(Body):
    """The progress of one group in one queue."""

    broker_offset: Int64 = always(0)
    consumer_offset: Int64 = always(0)
    last_timestamp: Int64 = always(0)
    pull_offset: Int64 = always(0)


class ConsumeStats(AnswerBody):
    consume_tps: float = always(0.0)
    offset_table: Entries[MessageQueue, OffsetWrapper] = always(factory=_mapping)


class ConsumeStatsList(AnswerBody):
    broker_addr: ShortText = always("")
    consume_stats_list: Rows[Entries[ShortText, Rows[ConsumeStats]]] = always(factory=_sequence)
    total_diff: Int64 = always(0)
    total_inflight_diff: Int64 = always(0)


class TopicOffset(Body):
    last_update_timestamp: Int64 = always(0)
    max_offset: Int64 = always(0)
    min_offset: Int64 = always(0)


class TopicStatsTable(AnswerBody):
    offset_table: Entries[MessageQueue, TopicOffset] = always(factory=_mapping)
    topic_put_tps: float = always(0.0)


class ResetOffsetBody(AnswerBody):
    offset_table: Entries[MessageQueue, Int64] = always(factory=_mapping)


class GetConsumerStatusBody(AnswerBody):
    """The offsets of one client, or (relayed) of every client of a group, by client id."""

    consumer_table: Entries[ShortText, Entries[MessageQueue, Int64]] = always(factory=_mapping)
    message_queue_table: Entries[MessageQueue, Int64] = always(factory=_mapping)


class BrokerStatsItem(Body):
    avgpt: float = always(0.0)
    sum: Int64 = always(0)
    tps: float = always(0.0)


class BrokerStatsData(Body):
    stats_day: BrokerStatsItem = always(factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = always(factory=BrokerStatsItem)
    stats_minute: BrokerStatsItem = always(factory=BrokerStatsItem)


class ConsumeMessageDirectlyResult(Body):
    auto_commit: bool = always(True)
    consume_result: ShortText | None = None
    order: bool = always(False)
    remark: LongText | None = None
    spent_time_mills: Int64 = always(0)


class ProducerInfo(Body):
    client_id: ShortText = always("")
    client_version: ShortText | None = None
    language: ShortText = always("OTHER")
    last_update_timestamp: Int64 = always(0)
    remote_ip: ShortText = msgspec.field(default_factory=lambda: "", name="remoteIP")
    version: Int32 = always(0)


class ProducerTable(Body):
    """Apache's ProducerTableInfo: group → its producers."""

    data: Entries[ShortText, Rows[ProducerInfo]] = always(factory=_mapping)


class ListedOffset(Body):
    """One queue and the offset to go on from, for clients that cannot read objects as keys."""

    broker_name: Name = always("")
    offset: Int64 = always(0)
    queue_id: Int32 = always(0)
    topic: Name = always("")


class ResetOffsetList(Body):
    """Apache's ResetOffsetBodyForC."""

    offset_table: Rows[ListedOffset] = always(factory=_sequence)


class QueueTimeSpan(Body):
    consume_time_stamp: Int64 = always(0)
    delay_time: Int64 = always(0)
    max_time_stamp: Int64 = always(0)
    message_queue: MessageQueue = always(factory=MessageQueue)
    min_time_stamp: Int64 = always(0)


class ConsumeTimeSpans(AnswerBody):
    """Apache's QueryConsumeTimeSpanBody."""

    consume_time_span_set: Rows[QueueTimeSpan] = always(factory=_sequence)


class CorrectionOffsets(AnswerBody):
    correction_offsets: Entries[Int32, Int64] = always(factory=_mapping)


class ConsumeQueueLine(Body):
    eval: bool = always(False)
    msg: LongText | None = None
    physic_offset: Int64 = always(0)
    physic_size: Int32 = always(0)
    tags_code: Int64 = always(0)


class ConsumeQueueLines(AnswerBody):
    """Apache's QueryConsumeQueueResponseBody."""

    filter_data: LongText | None = None
    max_queue_index: Int64 = always(0)
    min_queue_index: Int64 = always(0)
    queue_data: Rows[ConsumeQueueLine] = always(factory=_sequence)
    subscription_data: SubscriptionData | None = None


class GroupForbidden(Body):
    group: Name = always("")
    readable: bool = always(True)
    topic: Name = always("")


class MessageRequestMode(Body):
    """Apache's SetMessageRequestModeRequestBody."""

    consumer_group: Name = always("")
    mode: ShortText = always("PULL")
    pop_share_queue_num: Int32 = always(0)
    topic: Name = always("")


class MessageRequestModes(AnswerBody):
    """Topic → group → mode, for those that do not pull."""

    message_request_mode_map: Entries[ShortText, Entries[ShortText, MessageRequestMode]] = always(
        factory=_mapping
    )


class HaReplica(Body):
    """One replica as its master sees it."""

    addr: ShortText = always("")
    diff: Int64 = always(0)
    in_sync: bool = always(False)
    slave_ack_offset: Int64 = always(0)
    transfer_from_where: Int64 = always(0)
    transferred_byte_in_second: Int64 = always(0)


class HaSource(Body):
    """The master as its replica sees it; Apache's HAClientRuntimeInfo. -1 stands for a figure that is not
    known."""

    activated: bool = always(False)
    last_read_timestamp: Int64 = always(0)
    last_write_timestamp: Int64 = always(0)
    master_addr: ShortText = always("")
    master_flush_offset: Int64 = always(-1)
    max_offset: Int64 = always(0)
    transferred_byte_in_second: Int64 = always(0)


class HaStatus(Body):
    """Apache's HARuntimeInfo. A replica has `ha_client_runtime_info`, a master the rest."""

    ha_client_runtime_info: HaSource | None = None
    ha_connection_info: Rows[HaReplica] = always(factory=_sequence)
    in_sync_slave_nums: Int32 = always(0)
    master: bool = always(True)
    master_commit_log_max_offset: Int64 = always(0)


class ColdDataInfo(Body):
    cold_data_flow_control_enable: bool = always(False)
    config_table: Entries[ShortText, Int64] = always(factory=_mapping)
    runtime_table: Entries[ShortText, Entries[ShortText, Int64]] = always(factory=_mapping)
