"""Consumers share queues by the strategy that they are given."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metaq import Queue
from metaq.client.consumer.allocation import Strategy, average, by_machine_room, circular, sticky
from tests.integration.broker_cluster import run
from tests.integration.client.conftest import Served
from tests.integration.client.test_consumer_contract import _value, connected, name
from tests.support.clients import Face, create_topic

QUEUES = 8
MEMBERS = ("east-1", "west-1")
# All brokers are in the east, so the member in the west gets no queues.
ROOMS = by_machine_room(lambda broker: "east", lambda client_id: client_id.partition("-")[0])


@pytest.mark.parametrize(
    ("given", "strategy"),
    [("circular", circular), ("sticky", sticky), (ROOMS, ROOMS)],
    ids=["circular", "sticky", "by_machine_room"],
)
def test_members_share_the_queues_as_their_strategy_says(
    face: Face, served: Served, given: str | Strategy, strategy: Strategy, request: pytest.FixtureRequest
) -> None:
    async def scenario() -> None:
        topic = name(face, f"strategy-{request.node.callspec.id.split('-')[-1]}")
        await create_topic(served.broker, topic, queues=QUEUES)

        async def shares(*consumers: Any) -> list[set[Queue]]:
            held = [await _value(face, lambda consumer=consumer: consumer.queues) for consumer in consumers]
            return [{queue for queue in queues if queue.topic == topic} for queues in held]

        async def declared(client: Any) -> Any:
            declare = client.consumer(topic, group=f"{topic}-group", strategy=given)
            return await face.call(declare, face.handler(lambda message: None))

        async with connected(face, served, client_id=MEMBERS[0]) as first:
            a = await declared(first)
            async with asyncio.timeout(60):
                while len((await shares(a))[0]) < QUEUES:
                    await asyncio.sleep(0.02)
            queues = sorted((await shares(a))[0], key=lambda queue: queue.id)
            wanted = [set(strategy(member, queues, MEMBERS)) for member in MEMBERS]
            assert wanted != [set(average(member, queues, MEMBERS)) for member in MEMBERS], "nothing is shown"
            async with connected(face, served, client_id=MEMBERS[1]) as second:
                b = await declared(second)
                async with asyncio.timeout(60):
                    while await shares(a, b) != wanted:
                        await asyncio.sleep(0.02)

    run(scenario)
