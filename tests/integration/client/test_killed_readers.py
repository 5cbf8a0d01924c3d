"""The queue of an ordered consumer that was killed is free soon, unless the consumer only lost its socket."""

from __future__ import annotations

import asyncio

import pytest

from metaq.protocol.bodies import (
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    SubscriptionData,
)
from metaq.protocol.commands.clients import GetConsumerListByGroup, HeartBeat, LockBatchQueues
from metaq.protocol.commands.messages import PULL_HAS_SUBSCRIPTION, PullMessage
from metaq.protocol.commands.offsets import UpdateConsumerOffset
from metaq.protocol.java_json import MessageQueue
from tests.integration.client.conftest import Served
from tests.support.clients import create_topic
from tests.support.patient import Connection
from tests.support.waiting import run, until

FREE_S = 20.0
"""Far less than the 60 s of a lease, and more than a busy machine needs for 5 s."""
STILL_S = 7.0


class Reader:
    """An ordered consumer, as brokers see it."""

    def __init__(self, connection: Connection, client_id: str, topic: str) -> None:
        self.connection = connection
        self._client_id = client_id
        self._topic = topic

    @classmethod
    async def join(cls, broker: str, client_id: str, topic: str) -> Reader:
        reader = cls(await Connection.open(broker), client_id, topic)
        data = ConsumerData(
            group_name=topic, subscription_data_set=[SubscriptionData(topic=topic, sub_string="*")]
        )
        beat = HeartbeatData(client_id=client_id, consumer_data_set=[data])
        (await reader.connection.call(HeartBeat(), beat.encode())).check()
        return reader

    async def locks(self) -> bool:
        queues = [MessageQueue("broker-a", 0, self._topic)]
        body = LockBatchRequestBody(client_id=self._client_id, consumer_group=self._topic, mq_set=queues)
        reply = (await self.connection.call(LockBatchQueues(), body.encode())).check()
        return bool(LockBatchResponseBody.decode(reply.body).lock_ok_mq_set)


async def locks_within(reader: Reader, seconds: float) -> bool:
    async def keep_asking() -> None:
        while not await reader.locks():
            await asyncio.sleep(0.1)

    try:
        async with asyncio.timeout(seconds):
            await keep_asking()
    except TimeoutError:
        return False
    return True


def test_a_queue_of_a_killed_reader_is_free_soon(served: Served) -> None:
    async def scenario() -> None:
        topic = "killed-reader"
        await create_topic(served.broker, topic, queues=1)
        killed = await Reader.join(served.broker, "killed", topic)
        heir = await Reader.join(served.broker, "heir", topic)
        assert await killed.locks()
        assert not await heir.locks()
        await killed.connection.close()
        assert not await heir.locks(), "it may have lost its socket only"
        assert await locks_within(heir, FREE_S)
        await heir.connection.close()

    run(scenario)


@pytest.mark.parametrize("sign", ["pull", "commit"])
def test_a_reader_that_lost_its_socket_keeps_its_queue(served: Served, sign: str) -> None:
    """Java's consumers pull and commit on a new connection. Their next heartbeat may come 30 s later."""

    async def scenario() -> None:
        topic = f"living-reader-{sign}"
        await create_topic(served.broker, topic, queues=1)
        living = await Reader.join(served.broker, "living", topic)
        other = await Reader.join(served.broker, "other", topic)
        assert await living.locks()
        await living.connection.close()
        again = await Connection.open(served.broker)

        async def is_missed() -> bool:
            reply = await again.call(GetConsumerListByGroup(consumer_group=topic))
            return ConsumerList.decode(reply.check().body).consumer_id_list == ["other"]

        # Java's client connects again after seconds, and the broker has noticed the loss long before.
        await until(is_missed)
        if sign == "pull":
            flags = PULL_HAS_SUBSCRIPTION
            pull = PullMessage(
                consumer_group=topic, topic=topic, queue_id=0, queue_offset=0, max_msg_nums=1, sys_flag=flags
            )
            pull.subscription = "*"
            assert (await again.call(pull)).code == 19
        else:
            commit = UpdateConsumerOffset(consumer_group=topic, topic=topic, queue_id=0, commit_offset=0)
            (await again.call(commit)).check()
        assert not await locks_within(other, STILL_S)
        for connection in (again, other.connection):
            await connection.close()

    run(scenario)
