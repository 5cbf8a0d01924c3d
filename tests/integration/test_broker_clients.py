"""A broker and its clients: heartbeats, notices, lists, locks, expiry."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaq._core import Clock
from metaq.protocol.bodies import (
    ConsumerList,
    LockBatchRequestBody,
    LockBatchResponseBody,
    SubscriptionGroupConfig,
)
from metaq.protocol.commands.clients import (
    GetConsumerListByGroup,
    LockBatchQueues,
    UnlockBatchQueues,
    UnregisterClient,
)
from metaq.protocol.commands.groups import UpdateAndCreateSubscriptionGroup
from metaq.protocol.commands.topics import UpdateAndCreateTopic
from metaq.protocol.errors import Refused
from metaq.protocol.java_json import MessageQueue
from tests.support.broker_cluster import Client, broker_options, connected, started_broker
from tests.support.waiting import run, until


async def members(client: Client, group: str) -> list[str]:
    reply = await client.connection.call(GetConsumerListByGroup(consumer_group=group))
    return ConsumerList.decode(reply.check().body).consumer_id_list


@pytest.mark.parametrize("binary", [False, True])
def test_consumers_hear_of_each_other(tmp_path: Path, binary: bool) -> None:
    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address, "a", binary=binary) as first,
        ):
            reply = await first.heartbeat("g", "orders", "%RETRY%g")
            assert reply.fields["IS_SUPPORT_HEART_BEAT_V2"] == "true"
            await until(lambda: first.notified("g") == 1)
            async with connected(broker.address, "b", binary=binary) as second:
                await second.heartbeat("g", "orders", "%RETRY%g")
                await until(lambda: first.notified("g") == 2 and second.notified("g") == 1)
                assert await members(first, "g") == ["a", "b"]
                await second.heartbeat("g", "orders", "%RETRY%g")
            # The second client's socket is closed without a word, and it is gone at once.
            await until(lambda: first.notified("g") == 3)
            assert await members(first, "g") == ["a"]
            await first.connection.call(UnregisterClient(client_id="a", consumer_group="g"))
            with pytest.raises(Refused, match="no consumer"):
                await members(first, "g")

    run(scenario)


def test_a_group_can_do_without_notices(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address, "a") as client,
        ):
            quiet = SubscriptionGroupConfig(group_name="g", notify_consumer_ids_changed_enable=False)
            await client.connection.call(UpdateAndCreateSubscriptionGroup(), quiet.encode())
            await client.heartbeat("g", "orders")
            await client.heartbeat("h", "orders")
            await until(lambda: client.notified("h") == 1)
            assert client.notified("g") == 0

    run(scenario)


def test_silent_clients_expire_by_the_brokers_clock(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(1_750_000_000_000)
        options = broker_options(tmp_path, client_expiry_s=2.0)
        async with (
            started_broker(options, clock) as broker,
            connected(broker.address, "a") as silent,
            connected(broker.address, "b") as lively,
        ):
            await silent.heartbeat("g", "orders")
            clock.advance_ms(1_500)
            await lively.heartbeat("g", "orders")
            await until(lambda: lively.notified("g") == 1)
            clock.advance_ms(1_000)
            await until(lambda: lively.notified("g") == 2)
            assert await members(lively, "g") == ["b"]

    run(scenario)


def test_a_jump_of_the_clock_expires_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(1_750_000_000_000)
        async with (
            started_broker(broker_options(tmp_path), clock) as broker,
            connected(broker.address, "a") as client,
        ):
            await client.heartbeat("g", "orders")
            before_ms = broker.master.housekeeping.looked_ms
            clock.advance_ms(3_600_000)
            await until(lambda: broker.master.housekeeping.looked_ms > before_ms)
            assert await members(client, "g") == ["a"]

    run(scenario)


def test_ordered_consumers_share_the_queues(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address, "a") as first,
            connected(broker.address, "b") as second,
        ):
            topic = UpdateAndCreateTopic(topic="orders", read_queue_nums=4, write_queue_nums=4)
            (await first.connection.call(topic)).check()
            queues = [MessageQueue("broker-a", queue_id, "orders") for queue_id in range(4)]

            async def lock(client: Client, wanted: list[MessageQueue]) -> list[int]:
                body = LockBatchRequestBody(client_id=client.client_id, consumer_group="g", mq_set=wanted)
                reply = await client.connection.call(LockBatchQueues(), body.encode())
                granted = LockBatchResponseBody.decode(reply.check().body).lock_ok_mq_set
                return sorted(queue.queue_id for queue in granted)

            assert await lock(first, queues[:2]) == [0, 1]
            assert await lock(second, queues) == [2, 3]
            body = LockBatchRequestBody(client_id="a", consumer_group="g", mq_set=queues[:1])
            await first.connection.send_oneway(UnlockBatchQueues(), body.encode())
            await first.heartbeat("g", "orders")
            assert await lock(second, queues) == [0, 2, 3]

    run(scenario)
