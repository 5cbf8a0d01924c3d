"""MetaQ in the test's own process; the fixtures come from the installed plugin, as they do for users."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import metaq
from metaq.broker.state.locks import LEASE_MS
from metaq.errors import ConfigError
from metaq.protocol.bodies import ConsumerList, LockBatchRequestBody, LockBatchResponseBody, TopicRouteData
from metaq.protocol.commands.clients import GetConsumerListByGroup, LockBatchQueues
from metaq.protocol.commands.messages import ConsumerSendMsgBack, EndTransaction, SendMessageV2, Sent
from metaq.protocol.commands.routes import GetRouteInfoByTopic
from metaq.protocol.errors import Refused
from metaq.protocol.java_json import MessageQueue
from metaq.settings import DELAY_LEVELS_MS
from metaq.testing import AsyncLocalMetaq, LocalMetaq
from tests.support.broker_cluster import Client, connected
from tests.support.waiting import run

CHECK = 39
COMMIT = 8
COMPRESSED = 1
TWO_HOURS = timedelta(hours=2)


def speak(metaq: LocalMetaq, scenario: Callable[[Client], Awaitable[None]]) -> None:
    """Runs a scenario with a connected consumer of `orders` in the group g that also produces as p."""

    async def connect_and_run() -> None:
        async with connected(metaq.broker) as client:
            await client.heartbeat("g", "orders", "%RETRY%g", producers=("p",))
            await scenario(client)

    run(connect_and_run)


async def route(nameserver: str, topic: str) -> TopicRouteData:
    async with connected(nameserver) as client:
        reply = await client.connection.call(GetRouteInfoByTopic(topic=topic))
        return TopicRouteData.decode(reply.check().body)


def milliseconds_of(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def test_sixteen_retries_and_the_dead_letters(metaq_server: LocalMetaq) -> None:
    async def scenario(client: Client) -> None:
        await client.send("orders", b"poison", TAGS="t", KEYS="k1 k2")
        _, (record,), _ = await client.pull("g", "orders")
        for times in range(17):
            command = ConsumerSendMsgBack(physical_offset=record.physical_offset, group="g", delay_level=0)
            (await client.connection.call(command)).check()
            assert bool(metaq_server.dead_letters("g")) == (times == 16)
            if times < 16:
                level = min(3 + times, len(DELAY_LEVELS_MS))
                metaq_server.clock.advance(DELAY_LEVELS_MS[level - 1] / 1000)
                _, (record,), _ = await client.pull("g", "%RETRY%g", times)
                assert record.reconsume_times == times + 1

    speak(metaq_server, scenario)
    (dead,) = metaq_server.dead_letters("g")
    assert (dead.body, dead.tag, dead.keys, dead.reconsume_times) == (b"poison", "t", ("k1", "k2"), 17)
    assert dead.topic == "%DLQ%g"


def test_a_delay_of_two_hours(metaq_server: LocalMetaq) -> None:
    async def scenario(client: Client) -> None:
        await client.send("orders", b"later", DELAY="18")
        async with asyncio.TaskGroup() as group:
            held = group.create_task(client.pull("g", "orders", hold_ms=60_000))
            await asyncio.sleep(0)
            await client.heartbeat("g", "orders")  # After the pull, on the same connection.
            metaq_server.clock.advance(TWO_HOURS - timedelta(minutes=1))
            assert metaq_server.messages("orders") == []
            metaq_server.clock.advance(60)
            assert [message.body for message in metaq_server.messages("orders")] == [b"later"]
        _, (record,), _ = held.result()
        assert record.body == b"later"

    speak(metaq_server, scenario)
    (message,) = metaq_server.messages("orders")
    assert message.stored_time - datetime.now(UTC) > timedelta(minutes=110)
    assert metaq_server.clock.now() >= message.stored_time


def test_any_moment_within_a_month() -> None:
    with LocalMetaq(frozen=True) as metaq:
        moment = metaq.clock.now() + timedelta(days=39, milliseconds=7)

        async def scenario(client: Client) -> None:
            await client.send("orders", b"later", TIMER_DELIVER_MS=str(milliseconds_of(moment)))
            for number in range(20):
                await client.send("orders", b"%d" % number, TIMER_DELAY_MS=str(20_000 - number * 1_000))

        speak(metaq, scenario)
        for number in reversed(range(20)):
            assert len(metaq.messages("orders")) == 19 - number
            metaq.clock.advance(1)
        assert [message.body for message in metaq.messages("orders")] == [
            b"%d" % number for number in reversed(range(20))
        ]
        metaq.clock.advance(moment - metaq.clock.now() - timedelta(milliseconds=1))
        assert len(metaq.messages("orders")) == 20
        metaq.clock.advance(0.001)
        *_, last = metaq.messages("orders")
        assert (last.body, last.stored_time) == (b"later", moment)


def test_a_transaction_check(metaq_server: LocalMetaq) -> None:
    async def scenario(client: Client) -> None:
        command = SendMessageV2(
            producer_group="p",
            topic="orders",
            queue_id=0,
            sys_flag=4,
            born_timestamp=milliseconds_of(metaq_server.clock.now()),
            properties="TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01K\x02",
        )
        half = (await client.connection.call(command, b"paid")).check().header(Sent)
        metaq_server.clock.advance(30)
        assert metaq_server.messages("orders") == []
        await client.heartbeat("g", "orders", producers=("p",))  # After the check, on the same connection.
        (asked,) = [frame for frame in client.told if frame.code == CHECK]
        assert asked.fields["transactionId"] == half.transaction_id
        answer = EndTransaction(
            producer_group="p",
            tran_state_table_offset=int(asked.fields["tranStateTableOffset"]),
            commit_log_offset=int(asked.fields["commitLogOffset"]),
            commit_or_rollback=COMMIT,
            msg_id="",
            from_transaction_check=True,
        )
        (await client.connection.call(answer)).check()

    speak(metaq_server, scenario)
    assert [message.body for message in metaq_server.messages("orders")] == [b"paid"]


def test_leases_end_but_clients_are_heard_unless_they_are_silent(metaq_server: LocalMetaq) -> None:
    metaq_server.create_topic("orders", queues=1, ordered=True)

    async def scenario(client: Client) -> None:
        async def lock(client_id: str) -> int:
            queue = MessageQueue(broker_name="broker-a", queue_id=0, topic="orders")
            body = LockBatchRequestBody(client_id=client_id, consumer_group="g", mq_set=[queue])
            reply = await client.connection.call(LockBatchQueues(), body.encode())
            return len(LockBatchResponseBody.decode(reply.check().body).lock_ok_mq_set)

        async def members() -> list[str]:
            reply = await client.connection.call(GetConsumerListByGroup(consumer_group="g"))
            return ConsumerList.decode(reply.body).consumer_id_list if reply.code == 0 else []

        assert [await lock("one"), await lock("other")] == [1, 0]
        metaq_server.clock.advance(LEASE_MS / 1000)
        assert await lock("other") == 1
        metaq_server.clock.advance(timedelta(days=1))
        assert await members() == ["client"]
        metaq_server.clock.advance(121, silent=True)
        assert await members() == []

    speak(metaq_server, scenario)


def test_a_topic_keeps_its_route_however_far_the_clock_moves(metaq_server: LocalMetaq) -> None:
    async def scenario() -> None:
        metaq_server.create_topic("shop", queues=3)
        for _ in range(3):
            found = await route(metaq_server.nameserver, "shop")
            assert [queue.write_queue_nums for queue in found.queue_datas] == [3]
            assert [broker.broker_addrs for broker in found.broker_datas] == [{0: metaq_server.broker}]
            metaq_server.clock.advance(timedelta(days=30))

    run(scenario)
    with pytest.raises(Refused, match="queues"):
        metaq_server.create_topic("shop", queues=-1)


def test_everything_stored_is_read_in_its_order_and_bodies_as_they_were_sent(
    metaq_session_server: LocalMetaq,
) -> None:
    metaq_session_server.create_topic("stored", queues=4)

    async def scenario(client: Client) -> None:
        for number in range(1_200):
            await client.send("stored", b"%d" % number, queue_id=number % 3)
        command = SendMessageV2(producer_group="p", topic="stored", queue_id=3, sys_flag=COMPRESSED)
        (await client.connection.call(command, zlib.compress(b"long " * 1_000))).check()

    speak(metaq_session_server, scenario)
    *plain, compressed = metaq_session_server.messages("stored")
    assert [message.body for message in plain] == [b"%d" % number for number in range(1_200)]
    assert [(message.queue, message.queue_offset) for message in plain[:4]] == [
        (0, 0),
        (1, 0),
        (2, 0),
        (0, 1),
    ]
    assert compressed.body == b"long " * 1_000
    assert metaq_session_server.messages("never-sent-to") == []


def test_a_restart_keeps_addresses_messages_and_time(metaq_server: LocalMetaq) -> None:
    async def before(client: Client) -> None:
        await client.send("orders", b"now")
        await client.send("orders", b"later", DELAY="18")

    speak(metaq_server, before)
    metaq_server.clock.advance(60)
    addresses, time_before = (metaq_server.nameserver, metaq_server.broker), metaq_server.clock.now()
    metaq_server.restart()
    assert (metaq_server.nameserver, metaq_server.broker) == addresses
    assert metaq_server.clock.now() >= time_before
    assert [message.body for message in metaq_server.messages("orders")] == [b"now"]
    metaq_server.clock.advance(TWO_HOURS)
    assert [message.body for message in metaq_server.messages("orders")] == [b"now", b"later"]

    async def after() -> None:
        assert (await route(metaq_server.nameserver, "orders")).queue_datas

    run(after)


def test_the_asynchronous_server_runs_in_the_loop_of_the_test(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with AsyncLocalMetaq(tmp_path / "kept", frozen=True, settings={"delay_levels": "1d"}) as metaq:
            start = metaq.clock.now()
            await metaq.create_topic("orders", queues=1)
            async with connected(metaq.broker) as client:
                await client.send("orders", b"tomorrow", DELAY="1")
            await metaq.clock.advance(timedelta(days=1, milliseconds=-1))
            assert await metaq.messages("orders") == []
            await metaq.clock.advance(timedelta(milliseconds=1))
            (message,) = await metaq.messages("orders")
            assert message.stored_time - start == timedelta(days=1)
            await metaq.restart()
            assert await metaq.messages("orders") == [message]
            assert await metaq.dead_letters("g") == []
            assert (await route(metaq.nameserver, "orders")).queue_datas
        with pytest.raises(RuntimeError, match="is not running"):
            await metaq.clock.advance(1)

    run(scenario)
    assert (tmp_path / "kept" / "commitlog").exists()
    assert not (tmp_path / "kept" / "abort").exists()


def test_a_store_nobody_asked_to_keep_is_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with LocalMetaq() as metaq:
        assert [path.name.startswith("metaq-") for path in tmp_path.iterdir()] == [True]
        with pytest.raises(RuntimeError, match="already"):
            metaq.__enter__()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError, match="is not running"):
        metaq.messages("orders")
    with metaq:
        assert metaq.messages("orders") == []
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="did you mean auto_create_topic"):
        LocalMetaq(settings={"auto_create_topics": False})
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with LocalMetaq() as first:
        before = list(tmp_path.iterdir())
        taken = LocalMetaq(settings={"broker_port": int(first.broker.rpartition(":")[2])})
        with pytest.raises(OSError, match="in use"), taken:
            pass
        assert list(tmp_path.iterdir()) == before


def test_settings_of_the_environment_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAQ_NAME", "from-the-environment")

    async def scenario() -> None:
        async with AsyncLocalMetaq(settings={"auto_create_topic": False}) as metaq:
            async with connected(metaq.broker) as client:
                with pytest.raises(Refused, match="does not exist"):
                    await client.send("orders", b"x")
            found = await route(metaq.nameserver, "DefaultCluster")
            assert [broker.broker_name for broker in found.broker_datas] == ["broker-a"]

    run(scenario)


def test_older_names_of_stored_messages_still_work(metaq_session_server: LocalMetaq) -> None:
    with metaq.Client(metaq_session_server.nameserver) as client, client.producer("p") as producer:
        producer.send("older-names", b"x")
    (stored,) = metaq_session_server.messages("older-names")
    with pytest.warns(DeprecationWarning, match="is called reconsume_times now"):
        assert stored.retries == stored.reconsume_times == 0
    with pytest.warns(DeprecationWarning, match="is called stored_time now"):
        assert stored.stored_at == stored.stored_time
