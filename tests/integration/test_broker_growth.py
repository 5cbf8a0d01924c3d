"""Topics and groups on first use: each costs the same, however many there are already."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest

from metaq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from metaq.protocol.commands.clients import HeartBeat
from metaq.protocol.commands.messages import PullMessage
from tests.support.broker_cluster import (
    Client,
    broker_options,
    connected,
    started_broker,
    started_nameserver,
)
from tests.support.waiting import run

FEW = 80
AT_ONCE = 16
SUBSCRIPTION_GIVEN = 4


@dataclass
class Work:
    """The cost of some new names."""

    journal_bytes: int
    calls: int
    """Calls of functions on the event loop: those of the client, the broker and the name server."""


async def send(client: Client, number: int) -> None:
    await client.send(f"topic-{number:06}", b"m")


async def pull(client: Client, number: int) -> None:
    command = PullMessage(
        consumer_group=f"group-{number:06}",
        topic="TBW102",
        queue_id=0,
        queue_offset=0,
        sys_flag=SUBSCRIPTION_GIVEN,
        subscription="*",
    )
    await client.connection.call(command)


async def beat(client: Client, number: int) -> None:
    consumer = ConsumerData(
        group_name=f"group-{number:06}", subscription_data_set=[SubscriptionData(topic="t", sub_version=1)]
    )
    data = HeartbeatData(client_id=f"client-{number:06}", consumer_data_set=[consumer])
    (await client.connection.call(HeartBeat(), data.encode())).check()


@pytest.mark.parametrize("create", [send, pull, beat], ids=["topics", "groups", "consumers"])
def test_new_names_cost_in_proportion_to_their_number(
    tmp_path: Path, create: Callable[[Client, int], Awaitable[None]]
) -> None:
    async def work_of(count: int) -> Work:
        calls = 0

        def note(frame: FrameType, event: str, _: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        directory = tmp_path / str(count)
        async with (
            started_nameserver() as nameserver,
            started_broker(broker_options(directory, nameserver.address)) as broker,
            connected(broker.address) as client,
        ):
            before = broker.node.journal.appended_bytes
            sys.setprofile(note)
            try:
                for first in range(0, count, AT_ONCE):
                    await asyncio.gather(*(create(client, first + each) for each in range(AT_ONCE)))
                    # A heartbeat is answered before its group is written.
                    await broker.master.state.groups.publish(())
                    await broker.master.state.topics.publish(())
            finally:
                sys.setprofile(None)
            return Work(broker.node.journal.appended_bytes - before, calls)

    async def scenario() -> None:
        few, many = await work_of(FEW), await work_of(10 * FEW)
        print(f"{FEW}: {few}, {10 * FEW}: {many}")
        assert many.journal_bytes < 13 * few.journal_bytes
        assert many.calls < 13 * few.calls

    run(scenario)
