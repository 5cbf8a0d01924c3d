"""Clients that ask for too much: the broker goes on serving the others, and remembers little."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from metaq._core import Frame, encode_frame
from metaq.broker import Broker
from metaq.protocol.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.commands.clients import (
    GetConsumerListByGroup,
    GetConsumerRunningInfo,
    GetConsumerStatus,
    HeartBeat,
)
from metaq.protocol.commands.messages import PullMessage, SendReplyMessageV2
from metaq.protocol.commands.topics import GetTopicConfig, UpdateAndCreateTopic
from metaq.settings import MIB
from tests.support.broker_cluster import Client, broker_options, connected, started_broker
from tests.support.patient import Connection
from tests.support.waiting import run, until
from tests.support.wire import Wire

NEVER_S = 3_600.0
BUSY = 2
FLOOD = 1_200
"""More than the control plane handles at the same time."""


@asynccontextmanager
async def mute_client(directory: Path) -> AsyncIterator[tuple[Broker, Client, Client]]:
    """A broker that waits for clients for an hour, a client that never answers, and a healthy one."""
    options = broker_options(
        directory,
        client_answer_timeout_s=NEVER_S,
        client_status_timeout_s=NEVER_S,
        reply_timeout_s=NEVER_S,
    )
    ended = asyncio.Event()

    async def hear(frame: Frame) -> None:
        await ended.wait()

    async with started_broker(options) as broker, connected(broker.address, "healthy") as healthy:
        connection = await Connection.open(broker.address, on_request=hear)
        mute = Client(connection, "mute", [])
        try:
            await mute.heartbeat("mutes", "orders", producers=("p",))
            await healthy.heartbeat("g", "orders", producers=("q",))
            yield broker, mute, healthy
        finally:
            ended.set()
            await connection.close()


async def still_serves(healthy: Client) -> None:
    """Requests of the control plane are answered, those that take a task included."""
    assert (await healthy.connection.call(GetConsumerListByGroup(consumer_group="g"))).code == 0
    created = UpdateAndCreateTopic(topic="new", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1)
    assert (await healthy.connection.call(created)).code == 0
    assert (await healthy.connection.call(GetTopicConfig(topic="new"))).code == 0
    await healthy.send("by_first_use", b"m")


async def flood(attacker: Client, command: Command, body: bytes = b"") -> list[asyncio.Task[object]]:
    """Asks far more often than the control plane has slots, and waits for no answer."""
    tasks = [
        asyncio.ensure_future(attacker.connection.call(command, body, timeout=NEVER_S)) for _ in range(FLOOD)
    ]
    # The broker refuses the requests past the limit, so all of them have been handled by then.
    await until(lambda: sum(task.done() for task in tasks) >= FLOOD - 256)
    return tasks


def questions_to_a_mute_client(tmp_path: Path, command: Command, body: bytes = b"") -> None:
    async def scenario() -> None:
        async with mute_client(tmp_path) as (broker, _, healthy):
            async with connected(broker.address, "attacker") as attacker:
                tasks = await flood(attacker, command, body)
                await still_serves(healthy)
                waiting = [task for task in tasks if not task.done()]
                assert len(waiting) == broker.options.server.questions_per_connection_max
                refused = next(task for task in tasks if task.done()).result()
                assert getattr(refused, "code", 0) == BUSY
                assert "questions_per_connection_max" in getattr(refused, "remark", "")
            await asyncio.gather(*tasks, return_exceptions=True)
            # Nobody needs the answers of a client that has left.
            await until(lambda: len(broker.node.pump._questions) == 0)
            await still_serves(healthy)

    run(scenario)


def test_relays_to_a_mute_consumer_hold_up_nobody(tmp_path: Path) -> None:
    questions_to_a_mute_client(tmp_path, GetConsumerRunningInfo(consumer_group="mutes", client_id="mute"))


def test_questions_to_all_consumers_of_a_mute_group_hold_up_nobody(tmp_path: Path) -> None:
    questions_to_a_mute_client(tmp_path, GetConsumerStatus(topic="orders", group="mutes"))


def test_replies_to_a_mute_requester_hold_up_nobody(tmp_path: Path) -> None:
    reply = SendReplyMessageV2(
        producer_group="r", topic="DefaultCluster_REPLY_TOPIC", properties="REPLY_TO_CLIENT\x01mute\x02"
    )
    questions_to_a_mute_client(tmp_path, reply, b"reply")


def test_pulls_that_wait_for_a_mute_consumers_subscription_hold_up_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mute_client(tmp_path) as (_, mute, healthy):
            await healthy.send("orders", b"m")
            data = ConsumerData(
                group_name="mutes",
                subscription_data_set=[
                    SubscriptionData(
                        topic="orders", sub_string="a > 1", expression_type="SQL92", sub_version=1
                    )
                ],
            )
            beat = HeartbeatData(client_id="mute", consumer_data_set=[data]).encode()
            assert (await mute.connection.call(HeartBeat(), beat)).code == 0
            pull = PullMessage(
                consumer_group="mutes",
                topic="orders",
                queue_id=0,
                queue_offset=0,
                sub_version=9,
                expression_type="SQL92",
            )
            tasks = await flood(mute, pull)
            await still_serves(healthy)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    run(scenario)


@pytest.mark.parametrize("binary", [False, True])
def test_a_header_with_too_many_fields_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, binary: bool
) -> None:
    def attack(port: int) -> list[tuple[int, str | None]]:
        many: dict[str, object] = {"topic": "t", **{f"unknown{number}": number for number in range(256)}}
        with Wire(port, binary=binary) as wire:
            found = [wire.call(code, many) for code in (35, 38, 105, 351, 30_325)]
        return [(frame.code, frame.remark) for frame in found]

    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker:
            answers = await asyncio.to_thread(attack, int(broker.address.rpartition(":")[2]))
        for code, remark in answers:
            assert code == ResponseCode.INVALID_PARAMETER or "not supported" in (remark or ""), (code, remark)
        assert sum("256" in (remark or "") for _, remark in answers) == 4

    run(scenario)
    assert not [record for record in caplog.records if record.exc_info]


def test_a_client_whose_answer_cannot_be_read_counts_as_unreachable(tmp_path: Path) -> None:
    def consume(port: int) -> None:
        heartbeat = HeartbeatData(client_id="odd", consumer_data_set=[ConsumerData(group_name="odd")])
        with Wire(port) as wire, Wire(port) as operator:
            assert wire.call(34, {}, heartbeat.encode()).code == 0
            operator.write(307, {"consumerGroup": "odd", "clientId": "odd"})
            while (asked := wire.read()).code != 307:
                pass
            many = {f"field{number}": "x" for number in range(257)}
            wire.socket.sendall(encode_frame(0, opaque=asked.opaque, flag=1, fields=many))
            answer = operator.read()
            assert answer.code != 0 and "cannot be read" in (answer.remark or "")

    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker:
            await asyncio.to_thread(consume, int(broker.address.rpartition(":")[2]))

    run(scenario)


def test_a_reply_goes_to_its_client_and_to_no_impostor(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address, "victim") as victim,
            connected(broker.address, "victim") as impostor,
            connected(broker.address, "server") as server,
        ):
            await victim.heartbeat("", producers=("p",))
            await impostor.heartbeat("", producers=("p",))
            await impostor.heartbeat("", producers=("other",))
            reply = SendReplyMessageV2(
                producer_group="r",
                topic="DefaultCluster_REPLY_TOPIC",
                properties="REPLY_TO_CLIENT\x01victim\x02",
            )
            answer = asyncio.ensure_future(server.connection.call(reply, b"secret", timeout=NEVER_S))
            await until(lambda: [frame.body for frame in victim.told] == [b"secret"])
            assert [frame.code for frame in impostor.told] == []
            await victim.connection.close()
            await until(answer.done)
            # The victim has left. Now the id belongs to the other connection, as after a reconnect.
            again = asyncio.ensure_future(server.connection.call(reply, b"next", timeout=NEVER_S))
            await until(lambda: [frame.body for frame in impostor.told] == [b"next"])
            again.cancel()

    run(scenario)


def test_a_reply_that_is_too_long_for_its_requester_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The request fits into a frame, but what the broker would push does not."""
    reply = SendReplyMessageV2(
        producer_group="r",
        topic="DefaultCluster_REPLY_TOPIC",
        properties="REPLY_TO_CLIENT\x01requester\x02",
    )

    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address, "requester") as requester,
            connected(broker.address, "server") as server,
        ):
            await requester.heartbeat("", producers=("p",))
            answer = await server.connection.call(reply, bytes(16 * MIB - 512), timeout=NEVER_S)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert "message_size_bytes_max" in (answer.remark or "")
            await requester.heartbeat("", producers=("p",))
            assert requester.told == []

    run(scenario)
    assert not [record for record in caplog.records if record.exc_info]


def test_heartbeats_with_many_client_ids_are_forgotten(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address, "attacker") as attacker,
        ):
            for number in range(2_000):
                beat = HeartbeatData(
                    client_id=f"client-{number}", producer_data_set=[ProducerData(group_name=f"p{number}")]
                )
                assert (await attacker.connection.call(HeartBeat(), beat.encode())).code == 0
            clients = broker.node.clients
            assert clients.producer_groups() == ["p1999"]
            assert clients.producer_connection("client-0") is None
            assert clients.budget.total.bytes < 1_000

    run(scenario)


def test_subscriptions_of_a_client_are_bounded_in_bytes(tmp_path: Path) -> None:
    async def scenario() -> None:
        options = broker_options(tmp_path)
        limits = replace(options.clients, bytes_per_client_max=200_000)
        async with (
            started_broker(replace(options, clients=limits)) as broker,
            connected(broker.address, "attacker") as attacker,
            connected(broker.address, "healthy") as healthy,
        ):
            codes = set()
            tags = [f"tag-{number}" for number in range(20_000)]
            for number in range(50):
                data = ConsumerData(
                    group_name=f"g{number}",
                    subscription_data_set=[SubscriptionData(topic="t", sub_version=1, tags_set=tags)],
                )
                beat = HeartbeatData(client_id="attacker", consumer_data_set=[data])
                reply = await attacker.connection.call(HeartBeat(), beat.encode())
                codes.add(reply.code)
                assert "client_bytes_max" in (reply.remark or "")
            assert codes == {29}
            assert broker.node.clients.budget.total.bytes == 0
            assert broker.master.state.groups.get("g0") is None, "a refused heartbeat creates nothing"
            assert (await healthy.heartbeat("g", "orders")).code == 0

    run(scenario)
