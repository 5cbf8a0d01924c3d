"""Sending and consuming continue while one of several name servers is left."""

from __future__ import annotations

import asyncio
from pathlib import Path

from metaq import Queue
from tests.integration.broker_cluster import run, until
from tests.integration.client.test_lost_brokers import TIMEOUT_S, TOPIC, watched
from tests.interop.servers import MetaqServer, start_metaq
from tests.support.clients import Face, create_topic
from tests.support.processes import free_port


def test_a_name_server_that_is_not_there_and_one_that_is_killed(face: Face, tmp_path: Path) -> None:
    async def scenario() -> None:
        servers = await asyncio.to_thread(start_metaq, tmp_path, 2, ("broker-a",), "async", {})
        first, second = servers.nameservers
        broker = servers.brokers["broker-a"]
        assert isinstance(broker, MetaqServer)
        queues = [Queue(TOPIC, "broker-a", number) for number in (0, 1)]
        try:
            await create_topic(broker.address, TOPIC, queues=2)
            never_there = f"127.0.0.1:{free_port()}"
            async with watched(face, f"{never_there};{first.address};{second.address}") as clients:
                await clients.send("before")
                await clients.all_seen()

                await asyncio.to_thread(first.kill)
                # This needs a name server: another topic, and the broker's new address.
                await create_topic(broker.address, "another", queues=1)
                bodies: list[bytes] = []
                producer = clients.client.producer("others", timeout=TIMEOUT_S)
                await face.call(producer.start)
                declare = clients.client.consumer("another", group="others", start="earliest")
                await face.call(declare, face.handler(lambda message: bodies.append(message.body)))
                await face.call(producer.send, "another", b"x")
                await until(lambda: bodies == [b"x"])
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.move)
                await clients.send("moved", queues)
                await clients.all_seen()
        finally:
            await asyncio.to_thread(servers.close)

    run(scenario)
