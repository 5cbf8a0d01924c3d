"""A paused handler or iteration gets no messages, keeps its queues, and continues when resumed."""

from __future__ import annotations

import asyncio
from typing import Any

from metaq import Queue
from tests.integration.broker_cluster import run, until
from tests.integration.client.conftest import Served
from tests.integration.client.test_consumer_contract import _value, connected, name, poll_all
from tests.support.clients import Face, create_topic, send

ROUNDS = 5


async def shared_out(face: Face, consumer: Any, topic: str, count: int) -> list[Queue]:
    """Waits until the consumer has all queues of the topic and returns them."""
    async with asyncio.timeout(60):
        while True:
            queues = await _value(face, lambda: consumer.queues)
            mine = sorted((queue for queue in queues if queue.topic == topic), key=lambda queue: queue.id)
            if len(mine) == count:
                return mine
            await asyncio.sleep(0.02)


def test_a_handler_that_is_paused_gets_nothing_until_it_is_resumed(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic, group = name(face, "paused"), name(face, "paused-group")
        await create_topic(served.broker, topic, queues=2)
        bodies: list[str] = []
        async with connected(face, served) as client:
            declare = client.consumer(topic, group=group, start="earliest")
            consumer = await face.call(
                declare, face.handler(lambda message: bodies.append(message.body.decode()))
            )
            queues = await shared_out(face, consumer, topic, 2)

            await face.call(consumer.pause, queues[:1])
            await send(served.broker, topic, "held", queue_id=0)
            for number in range(ROUNDS):
                # The other queue continues; meanwhile the paused one could have given its message.
                await send(served.broker, topic, f"{number}", queue_id=1)
                await until(lambda number=number: f"{number}" in bodies)
            assert "held" not in bodies
            await face.call(consumer.resume, queues[:1])
            await until(lambda: "held" in bodies)

            await face.call(consumer.pause)
            bodies.clear()
            witness = client.puller(start="latest")
            await face.call(witness.assign, topic)
            for number in range(ROUNDS):
                await send(served.broker, topic, f"all-{number}", queue_id=number % 2)
                assert await poll_all(face, witness, 1) == [f"all-{number}"]
            assert bodies == []
            assert await shared_out(face, consumer, topic, 2) == queues, "they are not another member's"
            await face.call(consumer.resume)
            await until(lambda: sorted(bodies) == [f"all-{number}" for number in range(ROUNDS)])

    run(scenario)


def test_an_iteration_that_is_paused_gives_nothing_until_it_is_resumed(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic, group = name(face, "paused-loop"), name(face, "paused-loop-group")
        await create_topic(served.broker, topic, queues=2)
        async with connected(face, served) as client:
            subscribed = client.subscribe(topic, group=group, start="earliest", idle_timeout=0.3)
            await face.call(subscribed.start)
            queues = await shared_out(face, subscribed, topic, 2)

            async def take() -> str:
                """Returns the next message, in as many rounds as it takes."""
                async with asyncio.timeout(60):
                    while (message := await face.take(subscribed)) is None:
                        pass
                return str(message.body.decode())

            await face.call(subscribed.pause, queues[:1])
            await send(served.broker, topic, "held", queue_id=0)
            await send(served.broker, topic, "flows", queue_id=1)
            assert await take() == "flows"
            assert await face.take(subscribed) is None
            await face.call(subscribed.resume, queues[:1])
            assert await take() == "held"

            await face.call(subscribed.pause)
            await send(served.broker, topic, "later", queue_id=1)
            assert await face.take(subscribed) is None
            await face.call(subscribed.resume)
            assert await take() == "later"

    run(scenario)
