"""Producers, handlers and pullers continue after a broker restarts, moves or vanishes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from metaq import Queue
from tests.integration.broker_cluster import run, until
from tests.interop.servers import MetaqServer, start_metaq
from tests.support.clients import Face, create_topic

TOPIC = "survivors"
TIMEOUT_S = 60.0


class Watched:
    """A client with a producer, a handler and a puller, and the messages that each has seen."""

    def __init__(self, face: Face, client: Any) -> None:
        self._face = face
        self.client = client
        self.sent: list[str] = []
        self.handled: list[str] = []
        self.pulled: list[str] = []
        self._producer: Any = None

    async def start(self) -> None:
        self._producer = self.client.producer("producers", timeout=TIMEOUT_S)
        await self._face.call(self._producer.start)
        declare = self.client.consumer(TOPIC, group="handlers", start="earliest")
        await self._face.call(
            declare, self._face.handler(lambda message: self.handled.append(message.body.decode()))
        )
        self._puller = self.client.puller(start="earliest")
        await self._face.call(self._puller.assign, TOPIC)

    async def poll(self) -> None:
        while True:
            messages = await self._face.call(self._puller.poll, 0.2)
            self.pulled += [message.body.decode() for message in messages]

    async def send(self, what: str, queues: list[Queue] | None = None) -> set[str]:
        """Sends messages to these queues or to any, and returns the brokers that stored them."""
        brokers = set()
        for number, queue in enumerate(queues or [None] * 6):
            body = f"{what}-{number}"
            result = await self._face.call(self._producer.send, TOPIC, body.encode(), queue=queue)
            self.sent.append(body)
            brokers.add(result.queue.broker)
        return brokers

    async def all_seen(self) -> None:
        await until(lambda: set(self.handled) == set(self.pulled) == set(self.sent), TIMEOUT_S)


@asynccontextmanager
async def watched(face: Face, nameserver: str) -> AsyncIterator[Watched]:
    client = face.client(nameserver)
    await face.call(client.start)
    all_three = Watched(face, client)
    try:
        await all_three.start()
        polling = asyncio.create_task(all_three.poll())
        try:
            yield all_three
            assert not polling.done(), polling.exception()
        finally:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
    finally:
        await face.call(client.close, 60)


def test_a_broker_restarts_moves_and_vanishes(face: Face, tmp_path: Path) -> None:
    async def scenario() -> None:
        servers = await asyncio.to_thread(start_metaq, tmp_path, 1, ("broker-a", "broker-b"), "async", {})
        lost = servers.brokers["broker-a"]
        assert isinstance(lost, MetaqServer)
        of_lost = [Queue(TOPIC, "broker-a", number) for number in (0, 1)]
        try:
            for broker in servers.brokers.values():
                await create_topic(broker.address, TOPIC, queues=2)
            async with watched(face, servers.namesrv) as clients:
                assert await clients.send("before") == {"broker-a", "broker-b"}
                await clients.all_seen()

                await asyncio.to_thread(lost.kill)
                await asyncio.to_thread(lost.restart)
                await clients.send("restarted", of_lost)
                await clients.all_seen()

                old = lost.address
                await asyncio.to_thread(lost.kill)
                await asyncio.to_thread(lost.move)
                assert lost.address != old
                await clients.send("moved", of_lost)
                await clients.all_seen()

                await asyncio.to_thread(lost.kill)
                assert await clients.send("vanished") == {"broker-b"}
                await clients.all_seen()
        finally:
            await asyncio.to_thread(servers.close)

    run(scenario)
