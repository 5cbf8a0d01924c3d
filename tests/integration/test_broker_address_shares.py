"""Clients at one address that ask for all that a broker remembers: clients at another one get their share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from metaq._core import Frame
from metaq.broker.state.client_limits import ClientLimits
from metaq.protocol.bodies import HeartbeatData, ProducerData, TopicConfig, TopicConfigList
from metaq.protocol.commands.clients import GetConsumerListByGroup, HeartBeat
from metaq.protocol.commands.messages import SendReplyMessageV2
from metaq.protocol.commands.topics import UpdateAndCreateTopicList
from metaq.protocol.reply import Reply
from metaq.settings import MIB
from tests.support.broker_cluster import Client, broker_options, connected, started_broker
from tests.support.patient import Connection
from tests.support.waiting import run, until

ELSEWHERE = "127.0.0.9"
NEVER_S = 3_600.0


@asynccontextmanager
async def mute(address: str, client_id: str) -> AsyncIterator[Client]:
    """A client that never answers what the broker asks it."""
    ended = asyncio.Event()

    async def hear(frame: Frame) -> None:
        await ended.wait()

    connection = await Connection.open(address, on_request=hear)
    try:
        yield Client(connection, client_id, [])
    finally:
        ended.set()
        await connection.close()


async def claim(client: Client, groups: int) -> Reply:
    """A heartbeat with many producer groups."""
    names = [ProducerData(group_name=f"{client.client_id}-{number}") for number in range(groups)]
    beat = HeartbeatData(client_id=client.client_id, producer_data_set=names)
    return await client.connection.call(HeartBeat(), beat.encode())


def test_clients_of_one_address_do_not_shut_out_those_of_others(tmp_path: Path) -> None:
    options = broker_options(tmp_path, clients=ClientLimits(bytes_max=2 * MIB))

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            broker = await stack.enter_async_context(started_broker(options))
            replies = []
            for number in range(6):
                stranger = connected(broker.address, f"stranger{number}")
                replies.append(await claim(await stack.enter_async_context(stranger), 1_000))
            assert replies[0].code == 0
            assert replies[-1].code == 29
            assert "clients at 127.0.0.1" in (replies[-1].remark or "")
            assert "clients_bytes_per_address_max or half of clients_bytes_max" in (replies[-1].remark or "")
            held = broker.node.clients.budget.total.bytes
            assert MIB * 0.9 < held <= MIB
            honest = await stack.enter_async_context(connected(broker.address, "honest", source=ELSEWHERE))
            await honest.heartbeat("g", "orders", producers=("p",))
            members = await honest.connection.call(GetConsumerListByGroup(consumer_group="g"))
            assert members.check().body

    run(scenario)


def test_questions_from_one_address_leave_room_for_those_of_others(tmp_path: Path) -> None:
    options = broker_options(tmp_path, reply_timeout_s=NEVER_S)
    options = replace(options, server=replace(options.server, questions_max=40))

    def reply_to(requester: str) -> SendReplyMessageV2:
        properties = f"REPLY_TO_CLIENT\x01{requester}\x02"
        return SendReplyMessageV2(
            producer_group="r", topic="DefaultCluster_REPLY_TOPIC", properties=properties
        )

    async def scenario() -> None:
        async with (
            started_broker(options) as broker,
            mute(broker.address, "silent") as silent,
            connected(broker.address, "stranger") as stranger,
            connected(broker.address, "second") as second,
            connected(broker.address, "requester", source=ELSEWHERE) as requester,
            connected(broker.address, "server", source=ELSEWHERE) as server,
        ):
            await silent.heartbeat("", producers=("p",))
            await requester.heartbeat("", producers=("q",))
            waiting = [
                asyncio.ensure_future(client.connection.call(reply_to("silent"), b"x", timeout=NEVER_S))
                for client in (stranger, second)
                for _ in range(30)
            ]
            await until(lambda: sum(task.done() for task in waiting) == 40)
            refused = next(task for task in waiting if task.done()).result()
            assert refused.code == 2 and "half of questions_max" in (refused.remark or "")
            answer = server.connection.call(reply_to("requester"), b"y")
            await asyncio.gather(answer, until(lambda: [frame.body for frame in requester.told] == [b"y"]))
            for task in waiting:
                task.cancel()

    run(scenario)


def test_new_groups_are_served_although_strangers_have_used_up_the_topics(tmp_path: Path) -> None:
    options = broker_options(tmp_path, topics_max=100)

    async def use_up(client: Client) -> None:
        for number in range(100):
            wanted = TopicConfigList(topic_config_list=[TopicConfig(topic_name=f"t{number}")])
            reply = await client.connection.call(UpdateAndCreateTopicList(), wanted.encode())
        assert "topics_reserved_percent" in (reply.remark or "")

    async def scenario() -> None:
        async with (
            started_broker(options) as broker,
            connected(broker.address, "stranger") as stranger,
            connected(broker.address, "honest", source=ELSEWHERE) as honest,
        ):
            await use_up(stranger)
            topics = broker.master.state.topics
            await honest.heartbeat("g", "t1")
            await until(lambda: "%RETRY%g" in topics)
            # Once their room is used up too, clients are served without.
            number = 0
            while len(topics) < 100:
                await stranger.heartbeat(f"invented{number}", "t1")
                number += 1
            await honest.heartbeat("late", "t1")
            assert "%RETRY%late" not in topics
            await honest.send("t1", b"m")
            assert (await honest.pull("late", "t1"))[0] == 0
        async with (
            started_broker(options) as broker,
            connected(broker.address, "honest", source=ELSEWHERE) as honest,
        ):
            await honest.heartbeat("later", "t1")
            assert (await honest.pull("later", "t1"))[0] == 0

    run(scenario)
