"""Limits of committed offsets: one short request makes thousands of them, and they stay over restarts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from metaq.broker import Broker
from metaq.broker.options import BrokerOptions
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.offsets import CloneGroupOffset, ResetConsumerOffset, UpdateConsumerOffset
from metaq.protocol.reply import Reply
from tests.support.broker_cluster import Client, broker_options, connected, started_broker
from tests.support.waiting import run

TOPICS = ("orders", "payments")
GROUPS = ("g1", "g2", "g3", "g4", "g5")


def options(directory: Path) -> BrokerOptions:
    """Each topic has 4 queues. Resets and copies may fill 16 queues, those of one group 4."""
    made = broker_options(directory)
    return replace(made, broker=replace(made.broker, committed_offsets_max=32))


async def reset(client: Client, group: str, topic: str) -> Reply:
    return await client.connection.call(
        ResetConsumerOffset(topic=topic, group=group, timestamp=-1, is_force=True)
    )


async def commit(client: Client, group: str, topic: str) -> Reply:
    return await client.connection.call(
        UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=0, commit_offset=0)
    )


async def check_limits(broker: Broker, client: Client) -> None:
    assert broker.master is not None
    plane = broker.master.plane
    refused = await reset(client, "g1", "payments")
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert "committed_offsets_max" in (refused.remark or "")
    refused = await reset(client, "g5", "orders")
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert "half of committed_offsets_max" in (refused.remark or "")
    copied = await client.connection.call(CloneGroupOffset(src_group="g1", dest_group="g5", topic="orders"))
    assert copied.code == ResponseCode.SYSTEM_BUSY
    assert plane.offsets_of("g1", "payments") == {}, "nothing of a refused reset is kept"
    assert set(plane.offsets_of("g5", "orders")) <= {0}
    (await reset(client, "g2", "orders")).check()
    (await commit(client, "g5", "orders")).check()


def test_resets_leave_room_for_what_other_groups_commit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started_broker(options(tmp_path)) as broker,
            connected(broker.address) as client,
        ):
            for topic in TOPICS:
                await client.send(topic, b"x")
            for group in GROUPS:
                await client.heartbeat(group, *TOPICS)
            (await reset(client, "g1", "orders")).check()
            refused = await reset(client, "g1", "payments")
            assert "an eighth of committed_offsets_max" in (refused.remark or "")
            for group in GROUPS[1:4]:
                (await reset(client, group, "orders")).check()
            await check_limits(broker, client)
        async with (
            started_broker(options(tmp_path)) as broker,
            connected(broker.address) as client,
        ):
            await check_limits(broker, client)

    run(scenario)
