"""Configuration at run time: a short list of settings and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq._core import Server, Store
from metaq.broker.admin import Admin, Parts, parse_properties
from metaq.broker.clients import Clients, Member
from metaq.broker.options import BrokerOptions
from metaq.protocol.admin import GetBrokerConfig, GetBrokerRuntimeInfo, UpdateBrokerConfig
from metaq.protocol.bodies import (
    ConsumerData,
    ConsumeStats,
    GroupList,
    KVTable,
    SubscriptionAnswer,
    SubscriptionData,
    TopicConfig,
    TopicList,
)
from metaq.protocol.errors import Refused
from metaq.protocol.groups import QuerySubscriptionByConsumer, QueryTopicConsumeByWho, QueryTopicsByConsumer
from metaq.protocol.java_json import MessageQueue
from metaq.protocol.offsets import GetConsumeStats
from metaq.settings import BrokerSettings, ServerSettings, StoreSettings


class FakeServer:
    port = 10911
    permission = 6

    def set_permission(self, permission: int) -> None:
        self.permission = permission

    def offsets(self) -> dict[str, dict[int, int]]:
        return {"orders@billing": {0: 5}, "history@billing": {0: 1}, "orders@audit": {0: 1}}

    def counters(self) -> dict[str, int]:
        return {"messages_in": 3}


class FakeStore:
    def figures(self) -> dict[str, int]:
        return {"commit_log_max_offset": 100, "flushed_offset": 60, "dispatched_offset": 100}

    def max_offset(self, topic: str, queue_id: int) -> int:
        return 9

    def store_time_ms(self, topic: str, queue_id: int, queue_offset: int) -> int:
        return 1_000 + queue_offset if queue_offset >= 0 else -1


class Desk:
    def __init__(self, tables: Any, directory: Path) -> None:
        self.tables = tables
        self.server = FakeServer()
        self.clients = Clients(tables.clock, 120.0, lambda group, change: None)
        options = BrokerOptions(
            broker=BrokerSettings(cluster="c", name="b", broker_id=0, store_host="127.0.0.1:0"),
            server=ServerSettings(host="127.0.0.1", port=0),
            store=StoreSettings(directory=str(directory)),
        )
        self.admin = Admin(
            Parts(
                options=options,
                clock=tables.clock,
                server=cast(Server, self.server),
                store=cast(Store, FakeStore()),
                topics=tables.topics,
                groups=tables.groups,
                clients=self.clients,
                address=lambda: "127.0.0.1:10911",
            )
        )


@pytest.fixture
def desk(tables: Any, tmp_path: Path) -> Desk:
    return Desk(tables, tmp_path)


def update(desk: Desk, request: Any) -> None:
    asyncio.run(desk.admin.update_broker_config(UpdateBrokerConfig(), request))


def test_the_configuration_is_told_in_upstreams_names(desk: Desk, request_with: Any) -> None:
    answer = desk.admin.get_broker_config(GetBrokerConfig(), request_with())
    told = parse_properties(answer.body)
    assert told["brokerName"] == "b"
    assert told["flushDiskType"] == "SYNC_FLUSH"
    assert told["autoCreateTopicEnable"] == "true"
    assert '"counter":0' in answer.header()["version"]


def test_what_may_change_changes(desk: Desk, request_with: Any) -> None:
    body = (
        b"# comment\nbrokerPermission=4\nautoCreateTopicEnable = false\nautoCreateSubscriptionGroup=false\n"
    )
    update(desk, request_with(body))
    assert desk.server.permission == desk.admin.permission == 4
    assert not desk.tables.topics.auto_create
    assert not desk.tables.groups.auto_create
    assert desk.tables.published, "the name servers are told"
    assert desk.admin.config()["brokerPermission"] == "4"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"storePathRootDir=/elsewhere", 16),
        (b"brokerPermission=4\nnamesrvAddr=1.2.3.4:5", 16),
        (b"brokerPermission=8", 29),
        (b"brokerPermission=-1", 29),
        (b"autoCreateTopicEnable=perhaps", 29),
        (b"nonsense", 29),
        (b"x" * 70_000, 29),
    ],
)
def test_anything_else_is_refused_and_nothing_is_half_done(
    desk: Desk, request_with: Any, body: bytes, code: int
) -> None:
    with pytest.raises(Refused) as raised:
        update(desk, request_with(body))
    assert raised.value.code == code
    assert desk.server.permission == 6


@given(body=st.binary(max_size=100))
def test_no_bytes_do_harm(body: bytes) -> None:
    try:
        values = parse_properties(body)
    except Refused:
        return
    assert all(isinstance(value, str) for value in values.values())


def test_figures_are_true(desk: Desk, request_with: Any) -> None:
    answer = asyncio.run(desk.admin.get_broker_runtime_info(GetBrokerRuntimeInfo(), request_with()))
    table = KVTable.decode(answer.body).table
    assert table["brokerVersion"] == "513"
    assert table["dispatchBehindBytes"] == "0"
    assert table["remainHowManyDataToFlush"] == "40 B"
    assert table["msgPutTotalTodayNow"] == "3"


def test_who_consumes_what(desk: Desk, request_with: Any) -> None:
    subscription = SubscriptionData(topic="orders", sub_string="a")
    data = ConsumerData(group_name="live", subscription_data_set=[subscription])
    desk.clients.put_consumer(data, Member(1, "c", 0, 513, "h:1", 0))
    groups = desk.admin.query_topic_consume_by_who(QueryTopicConsumeByWho(topic="orders"), request_with())
    assert GroupList.decode(groups.body).group_list == ["audit", "billing", "live"]
    topics = desk.admin.query_topics_by_consumer(QueryTopicsByConsumer(group="billing"), request_with())
    assert TopicList.decode(topics.body).topic_list == ["history", "orders"]
    answer = desk.admin.query_subscription_by_consumer(
        QuerySubscriptionByConsumer(group="live", topic="orders"), request_with()
    )
    told = SubscriptionAnswer.decode(answer.body).subscription_data
    assert told is not None and told.sub_string == "a"


def stats(desk: Desk, request: Any, **fields: str) -> ConsumeStats:
    command = GetConsumeStats(consumer_group="billing", **fields)
    return ConsumeStats.decode(asyncio.run(desk.admin.get_consume_stats(command, request)).body)


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
