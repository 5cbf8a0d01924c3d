"""The progress of consumer groups, and how far behind they are."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from metaq._core import BrokerPlane, Listener, Store, tag_code
from metaq.broker.requests.consumption import Consumption, ConsumptionParts
from metaq.broker.state.clients import Clients
from metaq.broker.state.consumer_group import Member
from metaq.broker.state.stats import Statistics
from metaq.protocol.bodies import (
    ConsumeQueueLines,
    ConsumerData,
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpans,
    CorrectionOffsets,
    GroupList,
    SubscriptionAnswer,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicList,
)
from metaq.protocol.commands.groups import (
    QuerySubscriptionByConsumer,
    QueryTopicConsumeByWho,
    QueryTopicsByConsumer,
)
from metaq.protocol.commands.messages import MeasureQueue, QueryConsumeQueue, QueueMeasured
from metaq.protocol.commands.offsets import (
    GetBrokerConsumeStats,
    GetConsumeStats,
    QueryConsumeTimeSpan,
    QueryCorrectionOffset,
)
from metaq.protocol.errors import Refused
from metaq.protocol.java_json import MessageQueue
from metaq.work_pools import WorkPools


class FakePlane:
    """It has no `offsets()`: nothing here may copy the offsets of all groups."""

    def __init__(self) -> None:
        self.table = {"orders@billing": {0: 5}, "history@billing": {0: 1}, "orders@audit": {0: 1}}

    def offsets_of(self, group: str, topic: str) -> dict[int, int]:
        return self.table.get(f"{topic}@{group}", {})

    def topics_of_group(self, group: str) -> list[str]:
        return sorted(key.partition("@")[0] for key in self.table if key.endswith(f"@{group}"))

    def groups_of_topic(self, topic: str) -> list[str]:
        return sorted(key.partition("@")[2] for key in self.table if key.startswith(f"{topic}@"))


class FakeStore:
    """Every queue has messages 2 to 8; each was stored a millisecond after the one before."""

    def min_offset(self, topic: str, queue_id: int) -> int:
        return 2

    def max_offset(self, topic: str, queue_id: int) -> int:
        return 9

    def store_time_ms(self, topic: str, queue_id: int, queue_offset: int) -> int:
        return 1_000 + queue_offset if queue_offset >= 0 else -1

    def queue_entries(
        self, topic: str, queue_id: int, queue_offset: int, count_max: int
    ) -> list[tuple[int, int, int]]:
        return [(100, 10, tag_code("a")), (110, 10, tag_code("b"))][:count_max]

    def measure(
        self, topic: str, queue_id: int, from_offset: int, to_offset: int, bytes_max: int
    ) -> tuple[int, int, int | None, int | None]:
        count = min(to_offset - from_offset, bytes_max // 10)
        return from_offset + count, 10 * count, None, 100 if count else None


class Desk:
    def __init__(self, tables: Any) -> None:
        self.tables = tables
        self.clients = Clients(tables.clock, 120.0, lambda group, change: None)
        plane, store = cast(BrokerPlane, FakePlane()), cast(Store, FakeStore())
        self.consumption = Consumption(
            ConsumptionParts(
                broker_name="b",
                clock=tables.clock,
                plane=plane,
                store=store,
                topics=tables.topics,
                groups=tables.groups,
                clients=self.clients,
                statistics=Statistics(cast(Listener, None), store, tables.clock, "c"),
                address="127.0.0.1:10911",
                pools=WorkPools(),
            )
        )

    def make(self, *topics: str, order: bool = False) -> None:
        for topic in topics:
            self.tables.topics.put(
                TopicConfig(topic_name=topic, read_queue_nums=2, write_queue_nums=2, order=order)
            )


@pytest.fixture
def desk(tables: Any) -> Desk:
    return Desk(tables)


def test_who_consumes_what(desk: Desk, request_with: Any) -> None:
    subscription = SubscriptionData(topic="orders", sub_string="a")
    data = ConsumerData(group_name="live", subscription_data_set=[subscription])
    desk.clients.put_consumer(data, Member(1, "c", 0, 513, "h:1", 0))
    groups = asyncio.run(
        desk.consumption.query_topic_consume_by_who(QueryTopicConsumeByWho(topic="orders"), request_with())
    )
    assert GroupList.decode(groups.body).group_list == ["audit", "billing", "live"]
    topics = asyncio.run(
        desk.consumption.query_topics_by_consumer(QueryTopicsByConsumer(group="billing"), request_with())
    )
    assert TopicList.decode(topics.body).topic_list == ["history", "orders"]
    answer = desk.consumption.query_subscription_by_consumer(
        QuerySubscriptionByConsumer(group="live", topic="orders"), request_with()
    )
    told = SubscriptionAnswer.decode(answer.body).subscription_data
    assert told is not None and told.sub_string == "a"


def stats(desk: Desk, request: Any, **fields: str) -> ConsumeStats:
    command = GetConsumeStats(consumer_group="billing", **fields)
    return ConsumeStats.decode(asyncio.run(desk.consumption.get_consume_stats(command, request)).body)


def test_how_far_a_group_is(desk: Desk, request_with: Any) -> None:
    for topic in ("orders", "history"):
        desk.tables.topics.put(TopicConfig(topic_name=topic, read_queue_nums=2, write_queue_nums=2))
    table = stats(desk, request_with(), topic="orders").offset_table
    assert sorted(queue.queue_id for queue in table) == [0, 1]
    first = table[MessageQueue("b", 0, "orders")]
    assert (first.broker_offset, first.consumer_offset, first.last_timestamp) == (9, 5, 1004)
    assert table[MessageQueue("b", 1, "orders")].last_timestamp == 0
    assert {queue.topic for queue in stats(desk, request_with()).offset_table} == {"orders", "history"}
    data = ConsumerData(group_name="billing", subscription_data_set=[SubscriptionData(topic="orders")])
    desk.clients.put_consumer(data, Member(1, "c", 0, 513, "h:1", 0))
    assert {queue.topic for queue in stats(desk, request_with()).offset_table} == {"orders"}
    listed = stats(desk, request_with(), topic_list="history;nowhere;")
    assert {queue.topic for queue in listed.offset_table} == {"history"}


def test_the_backlog_of_all_groups(desk: Desk, request_with: Any) -> None:
    desk.make("orders")
    desk.make("history", order=True)
    for group in ("billing", "audit"):
        desk.tables.groups.put(SubscriptionGroupConfig(group_name=group))

    def told(is_order: bool) -> ConsumeStatsList:
        command = GetBrokerConsumeStats(is_order=is_order)
        answer = asyncio.run(desk.consumption.get_broker_consume_stats(command, request_with()))
        return ConsumeStatsList.decode(answer.body)

    everything = told(False)
    by_group = {group: stats for entry in everything.consume_stats_list for group, stats in entry.items()}
    assert len(by_group["billing"]) == 2 and len(by_group["audit"]) == 1
    assert by_group["TOOLS_CONSUMER"] == []
    # Two queues each, which begin at 2: orders and history of billing, orders of audit.
    assert everything.total_diff == (4 + 7) + (7 + 7) + (7 + 7)
    assert everything.broker_addr == "127.0.0.1:10911"
    assert told(True).total_diff == 7 + 7


def test_the_backlog_in_time(desk: Desk, request_with: Any) -> None:
    desk.make("orders")
    command = QueryConsumeTimeSpan(topic="orders", group="billing")
    answer = asyncio.run(desk.consumption.query_consume_time_span(command, request_with()))
    first, second = ConsumeTimeSpans.decode(answer.body).consume_time_span_set
    assert first.message_queue == MessageQueue("b", 0, "orders")
    assert (first.min_time_stamp, first.max_time_stamp, first.consume_time_stamp) == (1002, 1008, 1004)
    assert first.delay_time == desk.tables.clock.now_ms() - 1005
    assert second.consume_time_stamp == 1002, "nothing consumed yet: its first message counts"
    with pytest.raises(Refused, match="does not exist"):
        missing = QueryConsumeTimeSpan(topic="nowhere", group="billing")
        asyncio.run(desk.consumption.query_consume_time_span(missing, request_with()))


def test_the_slowest_group_of_a_topic(desk: Desk, request_with: Any) -> None:
    for group in ("billing", "audit"):
        desk.tables.groups.put(SubscriptionGroupConfig(group_name=group))

    def told(**fields: str) -> dict[int, int]:
        command = QueryCorrectionOffset(topic="orders", **fields)
        answer = asyncio.run(desk.consumption.query_correction_offset(command, request_with()))
        return CorrectionOffsets.decode(answer.body).correction_offsets

    assert told(compare_group="nobody") == {0: 1}
    assert told(compare_group="nobody", filter_groups="audit,x") == {0: 5}
    assert told(compare_group="audit", filter_groups="audit") == {0: 2**63 - 1}, "it is behind all others"


def test_lines_of_a_queue_and_which_a_group_wants(desk: Desk, request_with: Any) -> None:
    desk.make("orders")

    def told(**fields: Any) -> ConsumeQueueLines:
        command = QueryConsumeQueue(topic="orders", queue_id=0, queue_offset=2, **fields)
        answer = asyncio.run(desk.consumption.query_consume_queue(command, request_with()))
        return ConsumeQueueLines.decode(answer.body)

    lines = told(count=1)
    assert (lines.min_queue_index, lines.max_queue_index) == (2, 9)
    assert [(line.physic_offset, line.physic_size) for line in lines.queue_data] == [(100, 10)]
    assert told(consumer_group="live").filter_data == "live@orders is not online"
    subscription = SubscriptionData(topic="orders", sub_string="b")
    data = ConsumerData(group_name="live", subscription_data_set=[subscription])
    desk.clients.put_consumer(data, Member(1, "c", 0, 513, "h:1", 0))
    assert [line.eval for line in told(consumer_group="live").queue_data] == [False, True]
    with pytest.raises(Refused, match="no queue 7"):
        beyond = QueryConsumeQueue(topic="orders", queue_id=7, queue_offset=0)
        asyncio.run(desk.consumption.query_consume_queue(beyond, request_with()))


def test_a_part_of_a_queue_is_measured(desk: Desk, request_with: Any) -> None:
    desk.make("orders")

    def told(topic: str = "orders", queue_id: int = 0, **fields: int) -> QueueMeasured:
        command = MeasureQueue(topic=topic, queue_id=queue_id, queue_offset=2, end_offset=9, **fields)
        answer = asyncio.run(desk.consumption.measure_queue(command, request_with()))
        return QueueMeasured.parse(answer.header())

    now_ms = desk.tables.clock.now_ms()
    since_ms = told().ordered_since_ms
    assert now_ms - 60_000 < since_ms <= now_ms
    assert told(size_bytes_max=35) == QueueMeasured(5, 30, -1, 100, now_ms - 1_005, since_ms)
    assert told(size_bytes_max=-1) == QueueMeasured(2, 0, -1, -1, now_ms - 1_002, since_ms)
    for topic, queue_id, code in (("nothing", 0, 17), ("orders", 7, 29)):
        with pytest.raises(Refused) as refused:
            told(topic, queue_id)
        assert refused.value.code == code
