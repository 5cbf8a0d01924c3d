"""A broker and its messages: send, pull, held pulls, queries, restarts."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from metaq._core import Clock, StoreFailure, decode_records
from metaq.broker import Broker
from metaq.journal.files import JournalDamaged
from metaq.metadata import MetadataDamaged
from metaq.protocol.bodies import ConsumerOffsets, ConsumeStats, KVTable, TopicConfigTable, TopicStatsTable
from metaq.protocol.commands.admin import GetBrokerRuntimeInfo, UpdateBrokerConfig
from metaq.protocol.commands.groups import DeleteSubscriptionGroup
from metaq.protocol.commands.messages import QueryMessage, ViewMessageById
from metaq.protocol.commands.offsets import (
    GetAllConsumerOffset,
    GetConsumeStats,
    GetEarliestMessageStoreTime,
    QueryConsumerOffset,
    QueueOffset,
    StoreTime,
    UpdateConsumerOffset,
)
from metaq.protocol.commands.topics import (
    DeleteTopicInBroker,
    GetAllTopicConfig,
    GetTopicStatsInfo,
    UpdateAndCreateTopic,
)
from metaq.protocol.errors import Refused
from metaq.protocol.java_json import MessageQueue
from tests.support.broker_cluster import broker_options, connected, started_broker, started_nameserver
from tests.support.waiting import run, until

DAY_MS = 86_400_000


@pytest.mark.parametrize("binary", [False, True])
def test_a_message_to_a_new_topic_arrives(tmp_path: Path, binary: bool) -> None:
    async def scenario() -> None:
        async with (
            started_nameserver() as nameserver,
            started_broker(broker_options(tmp_path, nameserver.address)) as broker,
            connected(broker.address, binary=binary) as client,
        ):
            sent = await client.send("orders", b"hello", TAGS="a", KEYS="k1")
            assert (sent.queue_id, sent.queue_offset) == (0, 0)
            assert "orders" in nameserver.routes.topics(), "known when the send is answered"
            await client.heartbeat("g", "orders")
            code, records, next_offset = await client.pull("g", "orders")
            assert (code, next_offset) == (0, 1)
            assert [record.body for record in records] == [b"hello"]
            assert records[0].properties["TAGS"] == "a"
            assert records[0].store_host == broker.address

    run(scenario)


def test_an_invalid_priority_is_passed_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            for priority, queue_id in (("-1", 1), ("high", 1), ("", 1), ("9" * 20, 1), ("2", 2), ("99", 3)):
                sent = await client.send("orders", b"x", queue_id=1, _SYS_MSG_PRIORITY_=priority)
                assert sent.queue_id == queue_id, priority
            await client.heartbeat("g", "orders")
            (record,) = (await client.pull("g", "orders", queue_id=3))[1]
            assert record.properties["_SYS_MSG_PRIORITY_"] == "99"

    run(scenario)


def test_many_producers_of_one_new_topic_lose_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            await asyncio.gather(*(client.send("orders", b"%d" % number) for number in range(100)))
            await client.heartbeat("g", "orders")
            assert sorted(map(int, await client.bodies("g", "orders"))) == list(range(100))

    run(scenario)


@pytest.mark.parametrize(
    ("topic", "code", "says"),
    [
        ("a b", 13, "other than"),
        ("x" * 128, 13, "127"),
        ("SCHEDULE_TOPIC_XXXX", 16, "system"),
        ("TBW102", 16, "system"),
        ("rmq_sys_mine", 16, "system"),
    ],
)
def test_bad_topics_are_refused(tmp_path: Path, topic: str, code: int, says: str) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            with pytest.raises(Refused) as raised:
                await client.send(topic, b"x")
            assert raised.value.code == code
            assert says in raised.value.remark

    run(scenario)


def test_unknown_topics_and_groups_without_auto_creation(tmp_path: Path) -> None:
    async def scenario() -> None:
        options = broker_options(tmp_path, auto_create_topic=False, auto_create_group=False)
        async with started_broker(options) as broker, connected(broker.address) as client:
            with pytest.raises(Refused) as raised:
                await client.send("orders", b"x")
            assert raised.value.code == 17
            (await client.connection.call(UpdateAndCreateTopic(topic="orders"))).check()
            await client.send("orders", b"x")
            await client.heartbeat("g", "orders")
            with pytest.raises(Refused) as raised:
                await client.pull("g", "orders")
            assert raised.value.code == 26

    run(scenario)


def test_a_subscription_must_be_known_and_an_outdated_one_hides_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            for tag in ("a", "b"):
                await client.send("orders", tag.encode(), TAGS=tag)
            with pytest.raises(Refused) as raised:
                await client.pull("g", "orders")
            assert raised.value.code == 24
            await client.heartbeat("g", "orders", expression="a", version=5)
            code, records = (await client.pull("g", "orders", version=6))[:2]
            assert (code, [record.body for record in records]) == (0, [b"a", b"b"])
            code, records = (await client.pull("g", "orders", version=5))[:2]
            assert (code, [record.body for record in records]) == (0, [b"a"])

    run(scenario)


def test_only_wanted_tags_arrive(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            for tag in ("a", "b", "c", "a"):
                await client.send("orders", tag.encode(), TAGS=tag)
            await client.heartbeat("g", "orders", expression="a || c")
            assert await client.bodies("g", "orders") == [b"a", b"c", b"a"]
            await client.heartbeat("g", "orders", expression="b", version=2)
            assert await client.bodies("g", "orders") == [b"b"]

    run(scenario)


def test_a_waiting_consumer_gets_the_message_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address) as consumer,
            connected(broker.address) as producer,
        ):
            (await producer.connection.call(UpdateAndCreateTopic(topic="orders"))).check()
            await consumer.heartbeat("g", "orders")
            waiting = asyncio.create_task(consumer.pull("g", "orders", hold_ms=120_000))
            await until(lambda: broker.listener.figures().held == 1)
            assert not waiting.done()
            began = time.monotonic()
            await producer.send("orders", b"now")
            code, records, _ = await waiting
            assert (code, [record.body for record in records]) == (0, [b"now"])
            assert time.monotonic() - began < 60, "woken, not expired after two minutes"

    run(scenario)


def test_topics_messages_and_offsets_survive_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        options = broker_options(tmp_path)
        async with started_broker(options) as broker, connected(broker.address) as client:
            for number in range(10):
                await client.send("orders", b"%d" % number)
            await client.heartbeat("g", "orders")
            commit = UpdateConsumerOffset(consumer_group="g", topic="orders", queue_id=0, commit_offset=7)
            (await client.connection.call(commit)).check()
        async with started_broker(options) as broker, connected(broker.address) as client:
            assert broker.master.state.topics.get("orders") is not None
            assert broker.master.state.topics.get("%RETRY%g") is not None
            query = QueryConsumerOffset(consumer_group="g", topic="orders", queue_id=0)
            assert (await client.connection.call(query)).header(QueueOffset).queue_offset == 7
            await client.heartbeat("g", "orders")
            _, records, _ = await client.pull("g", "orders", 7)
            assert [record.body for record in records] == [b"7", b"8", b"9"]
            assert (await client.send("orders", b"10")).queue_offset == 10

    run(scenario)


def test_offsets_reach_the_disk_by_themselves(tmp_path: Path) -> None:
    async def scenario() -> None:
        options = broker_options(tmp_path, offsets_persist_interval_s=0.1)
        async with started_broker(options) as broker, connected(broker.address) as client:
            await client.send("orders", b"x")
            await client.heartbeat("g", "orders")
            commit = UpdateConsumerOffset(consumer_group="g", topic="orders", queue_id=0, commit_offset=1)
            await client.connection.send_oneway(commit)
            await until(lambda: broker.node.journal.get("offsets", "orders@g@0") == b'{"0":1}')
            reply = await client.connection.call(GetAllConsumerOffset())
            assert ConsumerOffsets.decode(reply.body).offset_table == {"orders@g": {0: 1}}
            (await client.connection.call(DeleteSubscriptionGroup(group_name="g"))).check()
            reply = await client.connection.call(GetAllConsumerOffset())
            kept = ConsumerOffsets.decode(reply.body).offset_table
            assert kept == {"orders@g": {0: 1}}, "as a broker of Apache answers"

    run(scenario)


def test_messages_are_found_by_place_by_key_and_by_unique_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            began_ms = broker.clock.now_ms()
            await client.send("orders", b"one", KEYS="k1 k2", UNIQ_KEY="U1")
            sent = await client.send("orders", b"two", KEYS="k2", UNIQ_KEY="U2")
            physical_offset = int(sent.msg_id[-16:], 16)
            reply = await client.connection.call(ViewMessageById(physical_offset=physical_offset))
            assert [record.body for record in decode_records(reply.check().body)] == [b"two"]
            refused = await client.connection.call(ViewMessageById(physical_offset=physical_offset + 1))
            assert refused.code == 1

            async def found(key: str, *, unique: bool = False, end_ms: int = 0) -> list[bytes]:
                query = QueryMessage(
                    topic="orders",
                    key=key,
                    max_num=10,
                    begin_timestamp=began_ms - DAY_MS,
                    end_timestamp=end_ms or began_ms + DAY_MS,
                    unique_key=unique,
                )
                reply = await client.connection.call(query)
                return [record.body for record in decode_records(reply.body)] if reply.code == 0 else []

            async def indexed() -> bool:
                return sorted(await found("k2")) == [b"one", b"two"]

            await until(indexed)
            assert await found("k1") == [b"one"]
            assert await found("U2", unique=True) == [b"two"]
            assert await found("k3") == []
            assert await found("k2", end_ms=began_ms - DAY_MS + 1) == []
            earliest = await client.connection.call(GetEarliestMessageStoreTime(topic="orders", queue_id=0))
            assert began_ms <= earliest.header(StoreTime).timestamp <= broker.clock.now_ms()
            nothing = await client.connection.call(GetEarliestMessageStoreTime(topic="orders", queue_id=3))
            assert nothing.header(StoreTime).timestamp == -1

    run(scenario)


def test_figures_of_topics_groups_and_the_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            for _ in range(3):
                await client.send("orders", b"x", queue_id=1)
            await client.heartbeat("g", "orders")
            commit = UpdateConsumerOffset(consumer_group="g", topic="orders", queue_id=1, commit_offset=2)
            (await client.connection.call(commit)).check()
            reply = await client.connection.call(GetTopicStatsInfo(topic="orders"))
            table = TopicStatsTable.decode(reply.check().body).offset_table
            assert len(table) == 4
            queue = MessageQueue("broker-a", 1, "orders")
            assert (table[queue].min_offset, table[queue].max_offset) == (0, 3)
            assert table[queue].last_update_timestamp > 0
            reply = await client.connection.call(GetConsumeStats(consumer_group="g", topic="orders"))
            progress = ConsumeStats.decode(reply.check().body).offset_table[queue]
            assert (progress.broker_offset, progress.consumer_offset) == (3, 2)
            reply = await client.connection.call(GetBrokerRuntimeInfo())
            assert int(KVTable.decode(reply.check().body).table["commitLogMaxOffset"]) > 0
            reply = await client.connection.call(GetAllTopicConfig())
            assert "orders" in TopicConfigTable.decode(reply.check().body).topic_config_table

    run(scenario)


def test_a_broker_can_be_closed_to_producers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            await client.send("orders", b"x")
            await client.heartbeat("g", "orders")
            (await client.connection.call(UpdateBrokerConfig(), b"brokerPermission=4\n")).check()
            with pytest.raises(Refused) as raised:
                await client.send("orders", b"y")
            assert raised.value.code == 16
            assert await client.bodies("g", "orders") == [b"x"]
            (await client.connection.call(UpdateBrokerConfig(), b"brokerPermission=6\n")).check()
            await client.send("orders", b"y")

    run(scenario)


def test_a_deleted_topic_and_a_deleted_group_leave_no_offsets(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            await client.send("orders", b"x")
            for group in ("g", "h"):
                await client.heartbeat(group, "orders")
                commit = UpdateConsumerOffset(
                    consumer_group=group, topic="orders", queue_id=0, commit_offset=1
                )
                (await client.connection.call(commit)).check()
            delete = DeleteSubscriptionGroup(group_name="g", clean_offset=True)
            (await client.connection.call(delete)).check()
            assert set(broker.master.plane.offsets()) == {"orders@h"}
            (await client.connection.call(DeleteTopicInBroker(topic="orders"))).check()
            assert broker.master.plane.offsets() == {}
            sent = await client.send("orders", b"again")
            assert sent.queue_offset == 0, "a topic made anew begins anew"
            await client.heartbeat("g", "orders")
            assert await client.bodies("g", "orders") == [b"again"]

    run(scenario)


def test_a_failed_start_leaves_nothing_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        options = broker_options(tmp_path)
        async with started_broker(options):
            pass
        for path in (tmp_path / "journal").iterdir():
            path.write_bytes(b"?")
        broker = Broker(options, Clock())
        with pytest.raises(MetadataDamaged):
            await broker.start()
        shutil.rmtree(tmp_path / "journal")
        with pytest.raises(JournalDamaged):
            await Broker(options, Clock()).start()
        (tmp_path / "journal.mark").unlink()
        async with started_broker(options):
            with pytest.raises(StoreFailure):
                await Broker(options, Clock()).start()

    run(scenario)
