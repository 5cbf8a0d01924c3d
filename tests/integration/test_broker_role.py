"""A broker that steps down and becomes master again while its clients stay connected."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from metaq._core import Clock
from metaq.broker import Broker
from metaq.metadata import MetadataDamaged
from metaq.protocol.bodies import LockBatchRequestBody, LockBatchResponseBody, TopicConfig
from metaq.protocol.commands.clients import HeartBeat, LockBatchQueues
from metaq.protocol.commands.messages import EndTransaction, PullMessage, SendMessageV2, Sent
from metaq.protocol.commands.offsets import QueryConsumerOffset, QueueOffset, UpdateConsumerOffset
from metaq.protocol.java_json import MessageQueue
from tests.support.broker_cluster import (
    SUSPEND,
    Client,
    broker_options,
    connected,
    started_broker,
    started_nameserver,
)
from tests.support.waiting import run, until

START_MS = 1_750_000_000_000
ROUNDS = 10
NOT_AVAILABLE = 14
COMMIT = 8
DELAY_MS = 1_000
"""The delay of level 1."""
TIMER_MS = 5_000
DOWN_MS = 600_000
"""Longer than a client may be silent and a lock may go without renewal."""


class Producer:
    """Sends without a pause over one connection, and remembers how each send was answered."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.acknowledged: list[bytes] = []
        self.refused = 0

    async def run(self) -> None:
        number = 0
        while True:
            body = b"%d" % number
            number += 1
            reply = await self._client.connection.call(_send("flood", body), body)
            if reply.code == NOT_AVAILABLE:
                self.refused += 1
                assert reply.remark is not None and "[ROLE]" in reply.remark
                # Not faster than a client that was refused.
                await asyncio.sleep(0.001)
            else:
                assert reply.code == 0, "a send is stored and confirmed, or refused"
                self.acknowledged.append(body)


def _send(topic: str, body: bytes, *, sys_flag: int = 0, **properties: str) -> SendMessageV2:
    given = {"UNIQ_KEY": f"K-{topic}-{body.decode()}"} | properties
    return SendMessageV2(
        producer_group="p",
        topic=topic,
        queue_id=0,
        sys_flag=sys_flag,
        born_timestamp=START_MS,
        properties="".join(f"{name}\x01{value}\x02" for name, value in given.items()),
    )


async def _begin(client: Client, body: bytes) -> Sent:
    command = _send("orders", body, sys_flag=4, TRAN_MSG="true", PGROUP="p")
    return (await client.connection.call(command, body)).check().header(Sent)


async def _commit(client: Client, half: Sent) -> None:
    command = EndTransaction(
        producer_group="p",
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=int(half.msg_id[-16:], 16),
        commit_or_rollback=COMMIT,
        msg_id="",
    )
    (await client.connection.call(command)).check()


async def _lock(client: Client, client_id: str) -> int:
    """How many of the two queues asked for that client has now."""
    body = LockBatchRequestBody(
        consumer_group="g",
        client_id=client_id,
        mq_set=[MessageQueue("broker-a", queue_id, "orders") for queue_id in range(2)],
    )
    reply = (await client.connection.call(LockBatchQueues(), body.encode())).check()
    return len(LockBatchResponseBody.decode(reply.body).lock_ok_mq_set)


async def _committed(client: Client) -> int:
    command = QueryConsumerOffset(consumer_group="g", topic="flood", queue_id=0)
    return (await client.connection.call(command)).check().header(QueueOffset).queue_offset


async def _assert_refuses(client: Client) -> None:
    """Hot requests, which the data plane refuses, and one that crosses."""
    pull = PullMessage(consumer_group="g", topic="orders", queue_id=0, queue_offset=0, sub_version=1)
    for command in (_send("orders", b"refused"), pull, HeartBeat()):
        reply = await client.connection.call(command, b"refused")
        assert reply.code == NOT_AVAILABLE, (command, reply)
        assert reply.remark is not None and "[ROLE]" in reply.remark


async def _make_topics(broker: Broker) -> None:
    topics = broker.master.state.topics
    for name in ("orders", "flood"):
        topics.update(TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4), {})
    await topics.publish(["orders", "flood"])


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_clients_stay_connected_through_ten_changes_and_nothing_is_lost(
    tmp_path: Path, flush: Literal["sync", "async"]
) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        options = broker_options(tmp_path)
        options = replace(
            options,
            broker=replace(options.broker, flush_timeout_ms=60_000),
            store=replace(options.store, flush=flush),
        )
        async with (
            started_broker(options, clock) as broker,
            connected(broker.address, "reader") as reader,
            connected(broker.address, "flooder", binary=True) as flooder,
        ):
            await _make_topics(broker)
            await reader.heartbeat("g", "orders", "flood", producers=("p",))
            producer = Producer(flooder)
            # A producer that fails ends the test at once.
            async with asyncio.TaskGroup() as group:
                flood = group.create_task(producer.run())
                for number in range(ROUNDS):
                    await _change_role(broker, reader, producer, clock, number)
                flood.cancel()
            assert not reader.connection.closed and not flooder.connection.closed
            found = Counter(await reader.bodies("g", "flood"))
            missing = [body for body in producer.acknowledged if not found[body]]
            assert not missing, f"{len(missing)} of {len(producer.acknowledged)} acknowledged are gone"
            assert set(found.values()) == {1}
            assert broker.listener.figures().connections == 2

    run(scenario)


async def _change_role(broker: Broker, reader: Client, producer: Producer, clock: Clock, number: int) -> None:
    """One round: leaves something of every kind open, changes the role, and finds it all again."""
    acknowledged, refused = len(producer.acknowledged), producer.refused
    await until(lambda: len(producer.acknowledged) > acknowledged + 20)
    half = await _begin(reader, b"h%d" % number)
    for command, body in (
        (_send("orders", b"d%d" % number, DELAY="1"), b"d%d" % number),
        (_send("orders", b"t%d" % number, TIMER_DELAY_MS=str(TIMER_MS)), b"t%d" % number),
    ):
        (await reader.connection.call(command, body)).check()
    commit = UpdateConsumerOffset(consumer_group="g", topic="flood", queue_id=0, commit_offset=number + 1)
    (await reader.connection.call(commit)).check()
    assert await _lock(reader, "reader") == 2
    held = asyncio.create_task(_held_pull(broker, reader))
    await until(lambda: broker.listener.figures().held > number)

    await broker.step_down()
    assert await held == 19, "a pull that waits for a message is answered"
    await _assert_refuses(reader)
    await until(lambda: producer.refused > refused)
    if number % 2:
        # Deliveries that are due meanwhile come afterwards, and nobody counts as silent.
        clock.advance_ms(DOWN_MS)

    acknowledged = len(producer.acknowledged)
    await broker.become_master()
    await until(lambda: len(producer.acknowledged) > acknowledged)
    assert broker.master.plane.figures().transactions_open == 1
    await _commit(reader, half)
    assert broker.master.plane.figures().transactions_open == 0
    assert await _committed(reader) == number + 1
    assert (await _lock(reader, "another"), await _lock(reader, "reader")) == (0, 2)
    if not number % 2:
        clock.advance_ms(TIMER_MS)
        broker.skip_time(TIMER_MS)
    await broker.catch_up()
    expected = [b"%s%d" % (kind, round) for kind in (b"d", b"h", b"t") for round in range(number + 1)]
    assert sorted(await reader.bodies("g", "orders")) == sorted(expected)


async def _held_pull(broker: Broker, reader: Client) -> int:
    command = PullMessage(
        consumer_group="g",
        topic="orders",
        queue_id=3,
        queue_offset=0,
        sys_flag=SUSPEND,
        suspend_timeout_millis=300_000,
        sub_version=1,
    )
    return (await reader.connection.call(command, timeout=300.0)).code


def test_the_routes_go_and_come_with_the_role(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_nameserver() as nameserver:
            options = broker_options(tmp_path, nameserver.address)
            async with started_broker(options) as broker:
                await _make_topics(broker)
                assert nameserver.routes.route("orders") is not None
                await broker.step_down()
                assert nameserver.routes.route("orders") is None
                assert not broker.is_master
                with pytest.raises(RuntimeError, match="not a master now"):
                    _ = broker.master
                await broker.become_master()
                assert nameserver.routes.route("orders") is not None
                with pytest.raises(RuntimeError, match="a master already"):
                    await broker.become_master()

    run(scenario)


def test_a_new_master_counts_the_locks_of_the_journal_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            await _make_topics(broker)
            await _lock(client, "reader")
            locked = broker.master.state.locks._count
            assert locked > 0
            for epoch in (1, 2):
                await broker.step_down()
                await broker.become_master(epoch)
                assert broker.master.state.locks._count == locked

    run(scenario)


def test_a_master_that_cannot_load_leaves_the_broker_without_a_role(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            await _make_topics(broker)
            await client.send("orders", b"first")
            await broker.step_down()
            journal = broker.node.journal
            journal.set_aside = None
            good = journal.get("topics", "orders")
            await journal.write([("topics", "orders", b"{")])
            with pytest.raises(MetadataDamaged, match="orders"):
                await broker.become_master()
            assert not broker.is_master
            await _assert_refuses(client)
            await journal.write([("topics", "orders", good)])
            await broker.become_master()
            assert (await client.send("orders", b"second")).queue_offset == 1

    run(scenario)


def test_filters_and_limits_are_in_force_again(tmp_path: Path) -> None:
    """A new plane has the policy of the old one, with the subscriptions of connected consumers."""

    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            await _make_topics(broker)
            await client.heartbeat("g", "orders", expression="red")
            for tag in ("red", "blue", "red"):
                await client.send("orders", tag.encode(), TAGS=tag)
            await broker.step_down()
            await broker.become_master()
            code, records, next_offset = await client.pull("g", "orders")
            assert (code, [record.body for record in records], next_offset) == (0, [b"red", b"red"], 3)

    run(scenario)
