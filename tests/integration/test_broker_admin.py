"""Administration of a running broker: resets, requests to clients, replies, figures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from metaq._core import Clock, Frame, decode_records
from metaq.broker import Broker
from metaq.broker.state.stats import TOPIC_PUT
from metaq.protocol.bodies import (
    BrokerStatsData,
    ConsumeMessageDirectlyResult,
    ConsumeQueueLines,
    ConsumeStats,
    ConsumeTimeSpans,
    GetConsumerStatusBody,
    HaStatus,
    KVTable,
    ProducerTable,
)
from metaq.protocol.commands.admin import ViewBrokerStatsData
from metaq.protocol.commands.clients import (
    ConsumeMessageDirectly,
    GetAllProducerInfo,
    GetConsumerRunningInfo,
    GetConsumerStatus,
)
from metaq.protocol.commands.groups import UpdateAndGetGroupForbidden
from metaq.protocol.commands.messages import QueryConsumeQueue, SendReplyMessageV2, Sent
from metaq.protocol.commands.offsets import (
    CloneGroupOffset,
    GetConsumeStats,
    QueryConsumerOffset,
    QueryConsumeTimeSpan,
    QueueOffset,
    ResetConsumerOffset,
    UpdateConsumerOffset,
)
from metaq.protocol.commands.topics import CleanUnusedTopic
from metaq.protocol.dispatch import Response
from metaq.protocol.java_json import MessageQueue
from tests.support.broker_cluster import Client, broker_options, connected, started_broker
from tests.support.patient import Connection
from tests.support.waiting import run, until

MOVED = 21
NOW_MS = 1_750_000_000_000
T = "orders"


def in_broker(
    tmp_path: Path,
    scenario: Callable[[Broker, Client], object],
    clock: Clock | None = None,
    **changes: object,
) -> None:
    async def all_of_it() -> None:
        async with (
            started_broker(broker_options(tmp_path, **changes), clock) as broker,
            connected(broker.address) as client,
        ):
            await scenario(broker, client)  # type: ignore[misc]

    run(all_of_it)


async def committed(client: Client, group: str = "g") -> int:
    command = QueryConsumerOffset(consumer_group=group, topic=T, queue_id=0)
    return (await client.connection.call(command)).check().header(QueueOffset).queue_offset


async def commit(client: Client, committed_offset: int) -> None:
    command = UpdateConsumerOffset(consumer_group="g", topic=T, queue_id=0, commit_offset=committed_offset)
    (await client.connection.call(command)).check()


async def reset(client: Client, timestamp_ms: int = -1, group: str = "g") -> None:
    command = ResetConsumerOffset(topic=T, group=group, timestamp=timestamp_ms, is_force=True)
    (await client.connection.call(command)).check()


def test_a_running_group_is_sent_back_in_time_with_its_next_pull(tmp_path: Path) -> None:
    clock = Clock.manual(NOW_MS)

    async def scenario(broker: Broker, client: Client) -> None:
        for number in range(10):
            await client.send(T, b"%d" % number)
            clock.advance_ms(60_000)
        await client.heartbeat("g", T)
        await commit(client, 10)
        # Its consumer waits at the end of the queue; the reset reaches it there.
        waiting = asyncio.create_task(client.pull("g", T, 10, hold_ms=120_000))
        await until(lambda: broker.listener.figures().held > 0)
        await reset(client, NOW_MS + 4 * 60_000 - 1_000)
        assert await asyncio.wait_for(waiting, 60) == (MOVED, [], 4)
        assert await committed(client) == 4
        await commit(client, 10)
        assert await committed(client) == 4, "the consumer has not followed yet: what it says is of before"
        code, records, _ = await client.pull("g", T, 4)
        assert code == 0 and records[0].body == b"4"
        await commit(client, 5)
        assert await committed(client) == 5

    in_broker(tmp_path, scenario, clock)


def test_pulls_under_way_are_sent_to_the_offset_of_a_reset(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client) -> None:
        for _ in range(6):
            await client.send(T, b"x")
        await client.heartbeat("g", T)
        await client.heartbeat("other", T)
        await reset(client)
        assert (await client.pull("other", T, 2))[0] == 0, "another group is not touched"
        assert (await client.pull("g", T, 2))[::2] == (MOVED, 6)
        assert (await client.pull("g", T, 2))[::2] == (MOVED, 6), "it insists, with what it held before"

    in_broker(tmp_path, scenario)


def test_a_stopped_group_starts_at_its_reset_offset_even_after_a_restart(tmp_path: Path) -> None:
    async def first(broker: Broker, client: Client) -> None:
        for _ in range(3):
            await client.send(T, b"x")
        await client.heartbeat("g", T)
        await commit(client, 1)
        await reset(client)
        assert await committed(client) == 3, "the backlog is skipped"
        (await client.connection.call(CloneGroupOffset(src_group="g", dest_group="h", topic=T))).check()

    async def second(broker: Broker, client: Client) -> None:
        assert await committed(client) == 3
        assert await committed(client, "h") == 3

    in_broker(tmp_path, first)
    in_broker(tmp_path, second)


def test_a_reset_that_no_consumer_has_seen_survives_a_restart(tmp_path: Path) -> None:
    """A busy consumer may not pull for minutes: a restart must not undo the reset."""

    async def first(broker: Broker, client: Client) -> None:
        for number in range(6):
            await client.send(T, b"%d" % number)
        await client.heartbeat("g", T)
        await commit(client, 4)
        await reset(client, 0)

    async def second(broker: Broker, client: Client) -> None:
        await client.heartbeat("g", T)
        await commit(client, 5)
        assert await committed(client) == 0, "the consumer has not followed yet"
        assert (await client.pull("g", T, 5))[::2] == (MOVED, 0)
        code, records, _ = await client.pull("g", T, 0)
        assert code == 0 and records[0].body == b"0"
        await commit(client, 3)

    async def third(broker: Broker, client: Client) -> None:
        assert await committed(client) == 3
        await client.heartbeat("g", T)
        assert (await client.pull("g", T, 5))[0] == 0, "it has followed in the life before"

    for life in (first, second, third):
        in_broker(tmp_path, life)


def test_lag_in_messages_and_in_time(tmp_path: Path) -> None:
    clock = Clock.manual(NOW_MS)

    async def scenario(broker: Broker, client: Client) -> None:
        for _ in range(5):
            await client.send(T, b"x")
            clock.advance_ms(10_000)
        await client.heartbeat("g", T)
        await commit(client, 2)
        reply = (await client.connection.call(GetConsumeStats(consumer_group="g", topic=T))).check()
        place = ConsumeStats.decode(reply.body).offset_table[MessageQueue("broker-a", 0, T)]
        assert (place.broker_offset, place.consumer_offset) == (5, 2)
        assert place.last_timestamp == NOW_MS + 10_000
        reply = (await client.connection.call(QueryConsumeTimeSpan(topic=T, group="g"))).check()
        span = ConsumeTimeSpans.decode(reply.body).consume_time_span_set[0]
        assert (span.min_time_stamp, span.max_time_stamp) == (NOW_MS, NOW_MS + 40_000)
        assert span.delay_time == 30_000, "the first message not consumed was stored so long ago"

    in_broker(tmp_path, scenario, clock)


@asynccontextmanager
async def answering(
    address: str, answer: Callable[[Frame], Response | None], client_id: str = "answerer"
) -> AsyncIterator[Client]:
    told: list[Frame] = []

    def take(frame: Frame) -> Response | None:
        told.append(frame)
        return answer(frame)

    connection = await Connection.open(address, on_request=take)
    try:
        yield Client(connection, client_id, told)
    finally:
        await connection.close()


def test_requests_are_passed_on_to_the_client(tmp_path: Path) -> None:
    def answer(frame: Frame) -> Response | None:
        if frame.code == 307:
            return Response(
                body=b'{"jstack":"stack","mqTable":{{"brokerName":"b","queueId":0,"topic":"t"}:{}}}'
            )
        if frame.code == 309:
            (record,) = decode_records(frame.body)
            result = ConsumeMessageDirectlyResult(
                consume_result="CR_SUCCESS", remark=f"{record.body.decode()} of {frame.fields['brokerName']}"
            )
            return Response(body=result.encode())
        if frame.code == 221:
            table = {MessageQueue("broker-a", 0, T): 7}
            return Response(body=GetConsumerStatusBody(message_queue_table=table).encode())
        return None

    async def scenario(broker: Broker, client: Client) -> None:
        sent = await client.send(T, b"hello")
        async with answering(broker.address, answer) as consumer:
            await consumer.heartbeat("g", T)
            asked = GetConsumerRunningInfo(consumer_group="g", client_id="answerer", jstack_enable=True)
            reply = (await client.connection.call(asked)).check()
            assert b'"jstack":"stack"' in reply.body, "as the client wrote it, whatever it wrote"
            # A notice of the group may come before or after the request.
            (question,) = [frame for frame in consumer.told if frame.code == 307]
            assert question.fields["jstackEnable"] == "true"
            direct = ConsumeMessageDirectly(
                consumer_group="g", client_id="answerer", msg_id=sent.msg_id, topic=T
            )
            reply = (await client.connection.call(direct)).check()
            result = ConsumeMessageDirectlyResult.decode(reply.body)
            assert (result.consume_result, result.remark) == ("CR_SUCCESS", "hello of broker-a")
            reply = (await client.connection.call(GetConsumerStatus(topic=T, group="g"))).check()
            told = GetConsumerStatusBody.decode(reply.body).consumer_table
            assert told == {"answerer": {MessageQueue("broker-a", 0, T): 7}}
            for id_given, wrong in (("nobody", "not connected"), ("answerer", "not an offset message id")):
                bad = msgspec.structs.replace(direct, client_id=id_given, msg_id="7F")
                reply = await client.connection.call(bad)
                assert reply.code != 0 and wrong in (reply.remark or "")

    in_broker(tmp_path, scenario)


def test_the_broker_does_not_wait_for_ever_for_a_silent_client(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client) -> None:
        reader, writer = await asyncio.open_connection(*broker.address.split(":"))
        from metaq._core import encode_frame
        from metaq.protocol.bodies import ConsumerData, HeartbeatData, ProducerData

        heartbeat = HeartbeatData(
            client_id="mute",
            consumer_data_set=[ConsumerData(group_name="g")],
            producer_data_set=[ProducerData(group_name="asking")],
        )
        writer.write(encode_frame(34, opaque=1, body=heartbeat.encode()))
        await reader.read(1)
        asked = GetConsumerRunningInfo(consumer_group="g", client_id="mute")
        reply = await client.connection.call(asked)
        assert reply.code == 207 and "no answer within 0.2 s" in (reply.remark or "")
        reply = (await client.connection.call(GetConsumerStatus(topic=T, group="g"))).check()
        assert GetConsumerStatusBody.decode(reply.body).consumer_table == {}, "it is left out"
        reply = await client.connection.call(reply_to("mute"))
        assert reply.code == 1 and "did not take the reply: " in (reply.remark or "")
        writer.close()

    in_broker(
        tmp_path, scenario, client_answer_timeout_s=0.2, client_status_timeout_s=0.2, reply_timeout_s=0.2
    )


REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


def reply_to(client_id: str, **changes: object) -> SendReplyMessageV2:
    properties = f"REPLY_TO_CLIENT\x01{client_id}\x02CORRELATION_ID\x01c-1\x02MSG_TYPE\x01reply\x02"
    return SendReplyMessageV2(producer_group="p", topic=REPLY_TOPIC, properties=properties, **changes)  # type: ignore[arg-type]


def test_a_reply_goes_to_whoever_asked_and_is_kept(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client) -> None:
        async with connected(broker.address, "requester") as requester:
            await requester.heartbeat("", producers=("asking",))
            sent = (await client.connection.call(reply_to("requester"), b"answer")).check().header(Sent)
            (push,) = requester.told
            assert (push.code, push.body) == (326, b"answer")
            assert "CORRELATION_ID\x01c-1" in push.fields["properties"]
            assert "PUSH_REPLY_TIME\x01" in push.fields["properties"]
            assert push.fields["bornHost"] == client.connection.local_address
            assert push.fields["storeHost"] == broker.address
            stored = broker.store.record_at(int(sent.msg_id[-16:], 16))
            assert stored is not None and decode_records(stored)[0].body == b"answer"
            broker.switches.store_replies = False
            sent = (await client.connection.call(reply_to("requester"), b"again")).check().header(Sent)
            assert (sent.msg_id, sent.queue_offset) == ("0", 0)

    in_broker(tmp_path, scenario)


def test_a_reply_that_nobody_takes_is_refused(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client) -> None:
        reply = await client.connection.call(reply_to("gone"))
        assert reply.code == 1 and "gone, which asked, is not connected" in (reply.remark or "")
        nameless = SendReplyMessageV2(producer_group="p", topic=REPLY_TOPIC)
        reply = await client.connection.call(nameless)
        assert reply.code == 1 and "REPLY_TO_CLIENT" in (reply.remark or "")
        refuse = Response(code=1, remark="no one waits for it")
        async with answering(broker.address, lambda frame: refuse, "late") as requester:
            await requester.heartbeat("", producers=("asking",))
            reply = await client.connection.call(reply_to("late"))
            assert reply.code == 1 and "no one waits for it" in (reply.remark or "")

    in_broker(tmp_path, scenario)


def test_a_group_without_permission_for_a_topic(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client) -> None:
        await client.send(T, b"x")
        await client.heartbeat("g", T)
        assert (await client.pull("g", T))[0] == 0
        forbid = UpdateAndGetGroupForbidden(group="g", topic=T, readable=False)
        (await client.connection.call(forbid)).check()
        with pytest.raises(Exception, match="forbidden to consume topic"):
            await client.pull("g", T)
        (await client.connection.call(msgspec.structs.replace(forbid, readable=True))).check()
        assert (await client.pull("g", T))[0] == 0

    in_broker(tmp_path, scenario)


def test_figures_of_a_running_broker(tmp_path: Path) -> None:
    clock = Clock.manual(NOW_MS)

    async def scenario(broker: Broker, client: Client) -> None:
        for _ in range(20):
            await client.send(T, b"x", TAGS="a")
        clock.advance_ms(10_000)
        broker.master.state.statistics.sample()
        asked = ViewBrokerStatsData(stats_name=TOPIC_PUT, stats_key=T)
        data = BrokerStatsData.decode((await client.connection.call(asked)).check().body)
        assert (data.stats_minute.sum, data.stats_minute.tps) == (20, 2.0)
        lines = QueryConsumeQueue(topic=T, queue_id=0, queue_offset=18, count=10)
        found = ConsumeQueueLines.decode((await client.connection.call(lines)).check().body)
        assert found.max_queue_index == 20 and [line.tags_code for line in found.queue_data] == [97, 97]
        await client.heartbeat("", producers=("p",))
        table = ProducerTable.decode((await client.connection.call(GetAllProducerInfo())).check().body)
        assert [producer.client_id for producer in table.data["p"]] == ["client"]
        from metaq.protocol.commands.admin import GetBrokerHaStatus, GetBrokerRuntimeInfo

        ha = HaStatus.decode((await client.connection.call(GetBrokerHaStatus())).check().body)
        assert ha.master and ha.master_commit_log_max_offset > 0 and ha.ha_connection_info == []
        info = KVTable.decode((await client.connection.call(GetBrokerRuntimeInfo())).check().body).table
        assert info["putTps"].split()[0] == "2.0"
        assert info["earliestMessageTimeStamp"] == str(NOW_MS)

    in_broker(tmp_path, scenario, clock)


def test_queues_of_topics_that_are_gone_are_cleaned(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client) -> None:
        await client.send(T, b"x")
        await client.send("kept", b"x")
        broker.master.state.topics.remove(T)
        assert T in broker.store.topics()
        (await client.connection.call(CleanUnusedTopic())).check()
        assert T not in broker.store.topics()
        assert "kept" in broker.store.topics()

    in_broker(tmp_path, scenario)


def test_unsupported_requests_are_refused_with_a_reason(tmp_path: Path) -> None:
    from metaq.protocol.command import Command

    class UpdateStaticTopic(Command, code=513):
        """Requests that only tools send."""

    async def scenario(broker: Broker, client: Client) -> None:
        reply = await client.connection.call(UpdateStaticTopic())
        assert reply.code == 3 and "has no static topics" in (reply.remark or "")

    in_broker(tmp_path, scenario)
