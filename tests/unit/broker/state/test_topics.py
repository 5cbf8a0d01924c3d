"""The table of topics: built-in topics, topics that can be created, and refused ones."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaq._core import Clock
from metaq.broker.requests.spaced_work import UPDATES_AT_ONCE
from metaq.broker.state.attributes import altered, parsed
from metaq.broker.state.topics import Topics
from metaq.journal.journal import NotWritten
from metaq.protocol.bodies import TopicConfig
from metaq.protocol.errors import Refused
from tests.unit.broker.conftest import options_for

# As Apache's broker writes it: pretty, with tabs, and with a field that is not ours.
APACHE_FILE = """{
\t"dataVersion":{
\t\t"counter":3,
\t\t"stateVersion":0,
\t\t"timestamp":1700000000000
\t},
\t"topicConfigTable":{
\t\t"orders":{
\t\t\t"attributes":{"message.type":"FIFO"},
\t\t\t"multiPerm":null,
\t\t\t"order":true,
\t\t\t"perm":6,
\t\t\t"readQueueNums":4,
\t\t\t"topicFilterType":"SINGLE_TAG",
\t\t\t"topicName":"orders",
\t\t\t"topicSysFlag":0,
\t\t\t"writeQueueNums":4
\t\t}
\t}
}"""

SYSTEM_TOPICS = {
    "TBW102": (8, 7),
    "SELF_TEST_TOPIC": (1, 6),
    "BenchmarkTest": (1024, 6),
    "DefaultCluster": (16, 7),
    "broker-a": (1, 7),
    "OFFSET_MOVED_EVENT": (1, 6),
    "SCHEDULE_TOPIC_XXXX": (18, 6),
    "RMQ_SYS_TRACE_TOPIC": (1, 6),
    "DefaultCluster_REPLY_TOPIC": (1, 6),
    "rmq_sys_REVIVE_LOG_DefaultCluster": (8, 6),
    "rmq_sys_SYNC_BROKER_MEMBER_broker-a": (1, 1),
    "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
    "rmq_sys_wheel_timer": (1, 6),
}


def test_system_topics_are_always_there(tables: Any) -> None:
    for name, (queues, perm) in SYSTEM_TOPICS.items():
        topic = tables.topics.get(name)
        assert (topic.write_queue_nums, topic.read_queue_nums, topic.perm) == (queues, queues, perm), name
        assert tables.topics.is_system(name)


def test_apaches_file_is_read_and_ours_has_its_form(tmp_path: Path, make_tables: Callable[..., Any]) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text(APACHE_FILE)
    topics: Topics = make_tables().topics
    orders = topics.get("orders")
    assert orders is not None
    assert orders.order and orders.attributes == {"message.type": "FIFO"}
    assert topics.data_version.counter == 4
    ours = json.loads(topics.table().encode())
    assert set(ours) == {"dataVersion", "topicConfigTable"}
    theirs = json.loads(APACHE_FILE)["topicConfigTable"]["orders"]
    del theirs["multiPerm"]
    assert ours["topicConfigTable"]["orders"] == theirs


def test_topics_survive_a_restart(make_tables: Callable[..., Any]) -> None:
    topics: Topics = make_tables().topics

    async def create() -> None:
        topics.update(TopicConfig(topic_name="orders", read_queue_nums=3, write_queue_nums=3), {})
        await topics.publish(["orders"])

    asyncio.run(create())
    again = make_tables().topics
    assert again.get("orders").write_queue_nums == 3
    assert len(again) == len(SYSTEM_TOPICS) + 2


def test_publishing_writes_first_and_tells_afterwards(tables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(28, "full")

    async def scenario() -> None:
        tables.topics.put(TopicConfig(topic_name="orders"))
        monkeypatch.setattr(os, "pwrite", refuse)
        with pytest.raises(NotWritten, match="full") as refused:
            await tables.topics.publish(["orders"])
        assert refused.value.code == 14 and "make room" in refused.value.remark
        assert tables.published == []
        monkeypatch.undo()
        await tables.topics.publish(["orders"])
        assert tables.published == ["orders"]

    asyncio.run(scenario())


@pytest.mark.parametrize(("wanted", "given_"), [(4, 4), (16, 8), (8, 8), (0, 8), (-3, 8)])
def test_a_created_topic_has_no_more_queues_than_the_template(tables: Any, wanted: int, given_: int) -> None:
    made = tables.topics.create_from_template("new", "TBW102", wanted)
    assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (given_, given_, 6)


def test_a_missing_template_name_means_the_usual_one(tables: Any) -> None:
    assert tables.topics.create_from_template("new", "", 4).write_queue_nums == 4


@pytest.mark.parametrize("template", ["nowhere", "SELF_TEST_TOPIC"])
def test_only_a_topic_that_lets_inherit_is_a_template(tables: Any, template: str) -> None:
    with pytest.raises(Refused) as raised:
        tables.topics.create_from_template("new", template, 4)
    assert raised.value.code == 17
    assert "metaq topic create new" in raised.value.remark


def test_creation_by_sending_can_be_switched(make_tables: Callable[..., Any]) -> None:
    topics: Topics = make_tables(auto_create_topic=False).topics
    assert "TBW102" not in topics
    with pytest.raises(Refused):
        topics.create_from_template("new", "TBW102", 4)
    topics.set_auto_create(True)
    assert topics.create_from_template("new", "TBW102", 4).perm == 6
    topics.set_auto_create(False)
    assert "TBW102" not in topics


def test_every_change_has_a_new_version(tables: Any, clock: Clock) -> None:
    topics: Topics = tables.topics
    before = topics.data_version
    clock.advance_ms(5)
    topics.put(TopicConfig(topic_name="a"))
    assert topics.data_version.counter == before.counter + 1
    assert topics.data_version.timestamp == before.timestamp + 5
    assert not topics.update(topics.get("a") or TopicConfig(), {})
    assert topics.data_version.counter == before.counter + 1, "no change, no new version"
    assert topics.remove("a")
    assert not topics.remove("a")
    assert topics.data_version.counter == before.counter + 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"topic_name": "a b"}, "other than"),
        ({"topic_name": "TBW102"}, "the system's own"),
        ({"topic_name": "rmq_sys_x"}, "the system's own"),
        ({"read_queue_nums": -1}, "limit is 0 to 10000"),
        ({"write_queue_nums": 10_001}, "limit is 0 to 10000"),
        ({"perm": 8}, "not a sum of"),
        ({"topic_filter_type": "x"}, "SINGLE_TAG"),
    ],
)
def test_bad_topics_are_refused_by_name(tables: Any, change: dict[str, Any], says: str) -> None:
    wanted = {"topic_name": "orders", "read_queue_nums": 4, "write_queue_nums": 4, **change}
    with pytest.raises(Refused) as raised:
        tables.topics.update(TopicConfig(**wanted), {})
    assert raised.value.code == 29
    assert says in raised.value.remark


def test_the_number_of_topics_is_bounded(make_tables: Callable[..., Any]) -> None:
    tables = make_tables(topics_max=len(make_tables().topics) + 1, topics_reserved_percent=0)
    tables.topics.create_from_template("last", "TBW102", 1)
    with pytest.raises(Refused, match="topics_max"):
        tables.topics.create_from_template("too-many", "TBW102", 1)
    tables.topics.create_from_template("last", "TBW102", 1)


def test_what_groups_need_has_room_that_nobody_else_fills(make_tables: Callable[..., Any]) -> None:
    topics: Topics = make_tables(topics_max=40, topics_reserved_percent=25).topics

    def fill(prefix: str) -> None:
        for number in range(40):
            wanted = TopicConfig(topic_name=f"{prefix}{number}", read_queue_nums=1, write_queue_nums=1)
            topics.update(wanted, {})

    with pytest.raises(Refused, match=r"the limit is 30 \(topics_max, less topics_reserved_percent"):
        fill("stranger-")
    for prefix in ("%RETRY%invented-", "%DLQ%invented-"):
        with pytest.raises(Refused, match="topics_reserved_percent"):
            fill(prefix)
    with pytest.raises(Refused, match="topics_reserved_percent"):
        topics.create_from_template("by-sending", "TBW102", 1)
    assert len(topics) == 30
    for number in range(5):
        topics.ensure_retry_topic(f"g{number}", 1)
        topics.ensure_dead_letter_topic(f"g{number}")
    with pytest.raises(Refused, match=r"the limit is 40 \(topics_max\)"):
        topics.ensure_retry_topic("one-more", 1)
    # Topics that exist may change in any case.
    assert topics.ensure_retry_topic("g0", 1, order=True) is not None


def test_retry_topics_follow_the_group(tables: Any) -> None:
    topics: Topics = tables.topics
    made = topics.ensure_retry_topic("g", 1)
    assert made is not None and (made.topic_name, made.write_queue_nums, made.perm) == ("%RETRY%g", 1, 6)
    assert topics.ensure_retry_topic("g", 1) is None
    assert topics.ensure_retry_topic("g", 1, order=True) is not None
    assert topics.ensure_retry_topic("g", 1, order=None) is None


def test_attributes_are_set_changed_and_removed(tables: Any) -> None:
    topics: Topics = tables.topics
    topics.update(TopicConfig(topic_name="t"), parsed("+message.type=FIFO,+reserve.time=3"))
    assert topics.get("t").attributes == {"message.type": "FIFO", "reserve.time": "3"}  # type: ignore[union-attr]
    topics.update(TopicConfig(topic_name="t"), parsed("+message.type=NORMAL,-reserve.time"))
    assert topics.get("t").attributes == {"message.type": "NORMAL"}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("+message.type", "write +key=value"),
        ("message.type=NORMAL", "write +key=value"),
        ("-message.type", "not set"),
        ("+nonsense=1", "unknown"),
        ("+message.type=LOUD", "cannot be"),
        ("+queue.type=BatchCQ", "cannot be"),
        ("+reserve.time=soon", "whole number"),
        ("+reserve.time=" + "9" * 21, "whole number"),
        ("+reserve.time=--1", "whole number"),
        ("+reserve.time=1,+reserve.time=2", "twice"),
        ("+a=" + "x" * 5000, "the limit is 4096"),
    ],
)
def test_bad_attributes_say_why(text: str, says: str) -> None:
    with pytest.raises(Refused) as raised:
        altered({}, parsed(text), creating=True)
    assert says in raised.value.remark


def test_some_attributes_are_fixed_once_the_topic_exists() -> None:
    with pytest.raises(Refused, match="fixed"):
        altered({}, {"+queue.type": "SimpleCQ"}, creating=False)


name = st.text("abcXYZ019%|_-", min_size=1, max_size=20)
config = st.builds(
    TopicConfig,
    topic_name=name,
    read_queue_nums=st.integers(0, 64),
    write_queue_nums=st.integers(0, 64),
    perm=st.integers(0, 7),
    order=st.booleans(),
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(configs=st.lists(config, max_size=10))
def test_any_table_reads_back_as_it_was(tables: Any, configs: list[TopicConfig]) -> None:
    topics: Topics = tables.topics
    for entry in configs:
        topics.put(entry)
    asyncio.run(topics.publish(()))
    again = Topics(options_for(Path("unused")), tables.clock, tables.journal, topics._changed)
    again.load()
    assert again.table().topic_config_table == topics.table().topic_config_table


def test_a_new_topic_is_in_no_route_before_it_is_kept(tables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    topics: Topics = tables.topics
    asyncio.run(topics.publish(()))
    topics.put(TopicConfig(topic_name="orders", read_queue_nums=1, write_queue_nums=1))
    told = topics.served()
    assert "orders" in topics and "orders" not in told.topic_config_table

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", full)
        with pytest.raises(NotWritten, match="No space"):
            asyncio.run(topics.publish(["orders"]))
    assert "orders" not in topics.served().topic_config_table
    asyncio.run(topics.publish(["orders"]))
    now = topics.served()
    assert "orders" in now.topic_config_table
    assert now.data_version.counter > told.data_version.counter, "a name server ignores what it has"
    # A changed topic keeps its place.
    topics.put(TopicConfig(topic_name="orders", read_queue_nums=2, write_queue_nums=2))
    assert topics.served().topic_config_table["orders"].read_queue_nums == 2


def test_a_list_is_taken_whole_or_not_at_all_in_many_turns(make_tables: Callable[..., Any]) -> None:
    count = len(make_tables().topics)
    topics: Topics = make_tables(topics_max=count + 200, topics_reserved_percent=0).topics
    checked: list[str] = []
    topics._convert = lambda config: checked.append(config.topic_name)
    listed = [TopicConfig(topic_name=f"t{number}") for number in range(200)]

    async def take() -> list[int]:
        update = asyncio.create_task(topics.update_all(listed))
        by_turn, before = [], 0
        while not update.done():
            await asyncio.sleep(0)
            by_turn.append(len(checked) - before)
            before = len(checked)
        await update
        return by_turn

    listed.append(TopicConfig(topic_name="bad", perm=99))
    with pytest.raises(Refused, match="permission 99"):
        asyncio.run(take())
    listed[-1] = TopicConfig(topic_name="t200")
    with pytest.raises(Refused, match="topics_max"):
        asyncio.run(take())
    assert len(topics) == count
    listed.pop()
    checked.clear()
    assert max(asyncio.run(take())) <= UPDATES_AT_ONCE
    assert len(topics) == count + 200
