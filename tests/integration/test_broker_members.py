"""Members of a group: what a stranger says in its name changes nothing for the others, and costs little."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from metaq.broker import Broker
from metaq.broker.state.client_limits import LockLimits
from metaq.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    SubscriptionData,
)
from metaq.protocol.commands.clients import HeartBeat, LockBatchQueues, UnlockBatchQueues, UnregisterClient
from metaq.protocol.commands.messages import ConsumerSendMsgBack, PullMessage
from metaq.protocol.commands.topics import UpdateAndCreateTopic
from metaq.protocol.java_json import MessageQueue
from metaq.protocol.reply import Reply
from metaq.settings import MIB
from tests.support.broker_cluster import Client, broker_options, connected, started_broker
from tests.support.waiting import run, until

FAR_AHEAD = 2**62
NOT_LATEST = 25
BUSY = 2


async def subscribe(
    client: Client,
    expression: str,
    version: int,
    *,
    expression_type: str = "TAG",
    model: str = "CLUSTERING",
) -> None:
    """A heartbeat with one subscription of group g to topic orders."""
    subscription = SubscriptionData(
        topic="orders", sub_string=expression, expression_type=expression_type, sub_version=version
    )
    data = ConsumerData(group_name="g", message_model=model, subscription_data_set=[subscription])
    beat = HeartbeatData(client_id=client.client_id, consumer_data_set=[data])
    (await client.connection.call(HeartBeat(), beat.encode())).check()


async def pull(client: Client, version: int, expression_type: str = "TAG") -> Reply:
    command = PullMessage(
        consumer_group="g",
        topic="orders",
        queue_id=0,
        queue_offset=0,
        sub_version=version,
        expression_type=expression_type,
    )
    return await client.connection.call(command)


async def send_colors(client: Client) -> None:
    for color in ("red", "blue", "red"):
        await client.send("orders", color.encode(), TAGS=color, color=color)


FILTERS = {"TAG": ("red", "blue"), "SQL92": ("color = 'red'", "color = 'blue'")}


@pytest.mark.parametrize("expression_type", ["TAG", "SQL92"])
def test_a_stranger_in_the_group_does_not_change_what_a_member_gets(
    tmp_path: Path, expression_type: str
) -> None:
    red, blue = FILTERS[expression_type]

    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address, "victim") as victim,
            connected(broker.address, "stranger") as stranger,
        ):
            await send_colors(victim)
            await subscribe(victim, red, 7, expression_type=expression_type)
            await subscribe(stranger, blue, FAR_AHEAD, expression_type=expression_type)
            for version in (7, 8):
                _, records, _ = await victim.pull("g", "orders", version=version)
                assert [record.body for record in records] == [b"red", b"red"]
                await subscribe(victim, red, 8, expression_type=expression_type)
            _, records, _ = await stranger.pull("g", "orders", version=FAR_AHEAD)
            assert [record.body for record in records] == [b"blue"]

    run(scenario)


def test_a_stranger_cannot_fill_the_time_until_a_member_has_reconnected(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address, "stranger") as stranger,
            connected(broker.address, "victim") as victim,
        ):
            await send_colors(victim)
            await subscribe(stranger, "blue", FAR_AHEAD)
            # The heartbeat of the victim is still to come. It selects tags itself, so it gets everything.
            _, records, _ = await victim.pull("g", "orders", version=7)
            assert [record.body for record in records] == [b"red", b"blue", b"red"]
            # Only the broker applies expressions.
            assert (await pull(victim, 7, "SQL92")).code == NOT_LATEST
            await subscribe(victim, "color = 'red'", 7, expression_type="SQL92")
            _, records, _ = await victim.pull("g", "orders", version=7)
            assert [record.body for record in records] == [b"red", b"red"]

    run(scenario)


def test_a_member_with_a_clock_far_ahead_has_its_own_versions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address, "ahead") as ahead,
        ):
            await send_colors(ahead)
            await subscribe(ahead, "color = 'red'", FAR_AHEAD, expression_type="SQL92")
            assert (await pull(ahead, FAR_AHEAD, "SQL92")).code == 0
            # A pull that is newer than the heartbeat has to try again.
            assert (await pull(ahead, FAR_AHEAD + 1, "SQL92")).code == NOT_LATEST
            live = broker.node.clients.consumer_group("g")
            assert live is not None
            shown = live.subscriptions["orders"].sub_version
            assert broker.clock.now_ms() - 60_000 < shown < broker.clock.now_ms() + 120_000

    run(scenario)


def test_the_mode_of_a_stranger_is_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address, "victim") as victim,
            connected(broker.address, "stranger") as stranger,
        ):
            await send_colors(victim)
            await subscribe(victim, "red", 7)
            broker.master.state.groups.get("g").consume_broadcast_enable = False  # type: ignore[union-attr]
            await subscribe(stranger, "red", 7, model="BROADCASTING")
            broker.master.state.policy.send_groups(["g"])
            assert (await pull(victim, 7)).code == 0
            refused = await pull(stranger, 7)
            assert "broadcast" in (refused.remark or "")

    run(scenario)


def test_a_pull_sees_the_heartbeat_before_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address, "member") as member,
            connected(broker.address, "newcomer") as newcomer,
        ):
            for topic in ("a", "b"):
                await make_topic(member, topic, 1)
                await member.send(topic, topic.encode())
            for _ in range(20):
                for topic in ("a", "b"):
                    await member.heartbeat("g", topic)
                    _, records, _ = await member.pull("g", topic)
                    assert [record.body for record in records] == [topic.encode()]

            # A connection whose heartbeat is still to come sees what the group subscribes to a moment later.
            command = PullMessage(consumer_group="g", topic="b", queue_id=0, queue_offset=0, sub_version=1)
            while (await newcomer.connection.call(command)).code != 0:
                await asyncio.sleep(0.01)

    run(scenario)


def queues_of(topic: str, count: int) -> list[MessageQueue]:
    return [MessageQueue("broker-a", queue_id, topic) for queue_id in range(count)]


async def lock(
    client: Client, group: str, queues: list[MessageQueue], client_id: str | None = None
) -> tuple[Reply, list[int]]:
    body = LockBatchRequestBody(
        client_id=client_id or client.client_id, consumer_group=group, mq_set=queues
    ).encode()
    reply = await client.connection.call(LockBatchQueues(), body)
    granted = LockBatchResponseBody.decode(reply.body).lock_ok_mq_set if reply.code == 0 else []
    return reply, sorted(queue.queue_id for queue in granted)


async def unlock(client: Client, group: str, queues: list[MessageQueue], client_id: str) -> None:
    body = LockBatchRequestBody(client_id=client_id, consumer_group=group, mq_set=queues).encode()
    (await client.connection.call(UnlockBatchQueues(), body)).check()


def held_leases(broker: Broker) -> int:
    return sum(len(leases) for leases in broker.master.state.locks._leases.values())


async def make_topic(client: Client, topic: str, queues: int) -> None:
    command = UpdateAndCreateTopic(topic=topic, read_queue_nums=queues, write_queue_nums=queues)
    (await client.connection.call(command)).check()


def test_locks_of_invented_groups_are_bounded_and_leave_room_for_others(tmp_path: Path) -> None:
    limits = LockLimits(total_max=1_000, per_connection_max=400, per_stranger_max=100)

    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path, locks=limits)) as broker,
            connected(broker.address, "healthy") as healthy,
            connected(broker.address, "stranger") as stranger,
            connected(broker.address, "second") as second,
        ):
            await make_topic(healthy, "orders", 64)
            queues = queues_of("orders", 64)
            for number in range(20):
                reply, _ = await lock(stranger, f"invented{number}", queues)
            assert held_leases(broker) == 100
            assert reply.code == BUSY
            assert "[OVERLOAD]" in (reply.remark or "") and "queue_locks_per_connection_max" in reply.remark
            # It can renew the locks that it has.
            assert len((await lock(stranger, "invented0", queues))[1]) == 64
            # A member has more.
            for number in range(20):
                await second.heartbeat(f"joined{number}", "orders")
                reply, _ = await lock(second, f"joined{number}", queues)
            assert reply.code == BUSY and held_leases(broker) == 500
            # The address of both has half of all locks now.
            reply, _ = await lock(healthy, "another", queues)
            assert "half of queue_locks_max" in (reply.remark or "")
            # Unlocked queues make room for others.
            await unlock(second, "joined0", queues, "second")
            await healthy.heartbeat("g", "orders")
            assert len((await lock(healthy, "g", queues))[1]) == 64

    run(scenario)


def test_nobody_else_unlocks_a_members_queues(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address, "victim") as victim,
            connected(broker.address, "victim") as impostor,
            connected(broker.address, "stranger") as stranger,
        ):
            await make_topic(victim, "orders", 2)
            queues = queues_of("orders", 2)
            await victim.heartbeat("g", "orders")
            assert (await lock(victim, "g", queues))[1] == [0, 1]
            await unlock(stranger, "g", queues, "victim")
            # Neither a heartbeat with its id nor a renewal makes another connection the owner.
            await impostor.heartbeat("g", "orders")
            await lock(impostor, "g", queues)
            await unlock(impostor, "g", queues, "victim")
            assert (await lock(stranger, "g", queues))[1] == []
            await unlock(victim, "g", queues[:1], "victim")
            assert (await lock(stranger, "g", queues))[1] == [0]

    run(scenario)


def test_a_client_that_has_reconnected_unlocks_its_queues(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker:
            async with connected(broker.address, "a") as before:
                await make_topic(before, "orders", 2)
                await before.heartbeat("g", "orders")
                assert (await lock(before, "g", queues_of("orders", 2)))[1] == [0, 1]
            async with connected(broker.address, "a") as again, connected(broker.address, "b") as other:
                await again.heartbeat("g", "orders")
                await unlock(again, "g", queues_of("orders", 2), "a")
                assert (await lock(other, "g", queues_of("orders", 2)))[1] == [0, 1]

    run(scenario)


async def come_and_go(stranger: Client, times: int) -> None:
    for _ in range(times):
        await stranger.heartbeat("g", "orders")
        await stranger.connection.call(UnregisterClient(client_id="stranger", consumer_group="g"))
        # Longer than changes gather.
        await asyncio.sleep(0.03)


def test_somebody_who_comes_and_goes_does_not_keep_the_members_busy(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address, "victim") as victim,
            connected(broker.address, "calm") as calm,
            connected(broker.address, "stranger") as stranger,
        ):
            await victim.heartbeat("g", "orders")
            await calm.heartbeat("h", "orders")
            await until(lambda: victim.notified("g") == 1 and calm.notified("h") == 1)
            began_s = time.monotonic()
            await come_and_go(stranger, 100)
            spent_s = time.monotonic() - began_s
            # The pauses double up to 2.5 s: after that, one notice in that time.
            assert victim.notified("g") <= 9 + spent_s / 2.5
            # The last change is heard of too, and another group hears of its own at once.
            heard = victim.notified("g")
            await stranger.heartbeat("h", "orders")
            await until(lambda: calm.notified("h") == 2)
            await stranger.heartbeat("g", "orders")
            await until(lambda: victim.notified("g") > heard)

    run(scenario)


def test_messages_that_are_sent_back_count_against_the_address(tmp_path: Path) -> None:
    rate, size, times = MIB, 400_000, 100

    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path, send_back_bytes_per_second=rate)) as broker,
            connected(broker.address, "healthy") as healthy,
            connected(broker.address, "stranger") as stranger,
        ):
            large = await healthy.send("orders", b"x" * size)
            await healthy.heartbeat("g", "orders")
            command = ConsumerSendMsgBack(
                physical_offset=int(large.msg_id[16:], 16), group="g", delay_level=3, origin_topic="orders"
            )
            before, began_s = broker.node.store.figures().commit_log_max_offset, time.monotonic()
            replies = await asyncio.gather(*(stranger.connection.call(command) for _ in range(times)))
            stored = broker.node.store.figures().commit_log_max_offset - before
            spent_s = time.monotonic() - began_s
            taken = [reply for reply in replies if reply.code == 0]
            # One message goes beyond the limit, and a new file begins after every tenth.
            assert 5 <= len(taken) <= (4 + spent_s) * rate / size + 1
            assert stored <= len(taken) * (size + 1_000) * 1.2
            refused = next(reply for reply in replies if reply.code != 0)
            assert refused.code == BUSY and (refused.remark or "").startswith("[FLOW]")
            assert "send_back_bytes_per_second" in (refused.remark or "")
            # As a Java client does then, it sends the message itself.
            await healthy.send("%RETRY%g", b"again", DELAY="1")

    run(scenario)
