"""The first moments of a client: brokers know a checker that has sent nothing, and no message is skipped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metaq.client.consumer.offsets.storage import BrokerOffsets
from metaq.protocol.commands.clients import GetProducerConnectionList
from tests.integration.client.conftest import Served
from tests.integration.client.test_consumer_contract import connected, name
from tests.support.clients import Face, create_topic, send
from tests.support.patient import Connection
from tests.support.waiting import run, until


@pytest.mark.parametrize("is_started", [False, True])
def test_brokers_know_a_producer_with_a_checker_before_it_sends(
    face: Face, served: Served, is_started: bool
) -> None:
    async def scenario() -> None:
        group = name(face, f"checked-{is_started}")
        connection = await Connection.open(served.broker)
        async with connected(face, served) as client:
            producer = client.producer(group)
            if is_started:
                await face.call(producer.start)
            producer.check(lambda message: True)
            if not is_started:
                await face.call(producer.start)

            async def is_known() -> bool:
                return (await connection.call(GetProducerConnectionList(producer_group=group))).code == 0

            await until(is_known)
            await face.call(producer.close)
            assert not await is_known()
        await connection.close()

    run(scenario)


@pytest.mark.parametrize("before", [0, 2])
def test_a_message_that_arrives_while_a_new_group_starts_is_not_skipped(
    face: Face, served: Served, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """As in Apache's MulTagSubIT: the group has no offset, a message arrives, and the end is behind it."""
    topic = name(face, f"gap-{before}")
    is_read, goes_on = asyncio.Event(), asyncio.Event()
    read = BrokerOffsets.read

    async def slow_read(self: BrokerOffsets, queue: Any) -> int | None:
        found = await read(self, queue)
        if queue.topic == topic:
            assert found is None
            loop.call_soon_threadsafe(is_read.set)
            while not goes_on.is_set():
                await asyncio.sleep(0.01)
        return found

    monkeypatch.setattr(BrokerOffsets, "read", slow_read)

    async def scenario() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, *["old"] * before)
        bodies: list[str] = []
        async with connected(face, served) as client:
            declare = client.consumer(topic, group=topic, start="latest")
            await face.call(declare, face.handler(lambda message: bodies.append(message.body.decode())))
            await is_read.wait()
            await send(served.broker, topic, "new")
            goes_on.set()
            await until(lambda: bodies)
        assert bodies == ["new"]

    loop: asyncio.AbstractEventLoop
    run(scenario)
