"""Heartbeats continue however long a handler takes, so its group keeps the member."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from metaq.client.session.session import Session
from metaq.protocol.bodies import ConsumerList
from metaq.protocol.commands.clients import GetConsumerListByGroup
from metaq.testing import LocalMetaq
from tests.integration.client.conftest import Served
from tests.integration.client.test_consumer_contract import connected
from tests.support import broker_cluster
from tests.support.clients import Face, send
from tests.support.patient import Connection
from tests.support.waiting import run, until

EXPIRY_S = 120
STEP_S = 50


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> list[Session]:
    """Counts answered heartbeats, of which there are many per second."""
    answered: list[Session] = []
    beat = Session.beat

    async def noted(session: Session) -> None:
        await beat(session)
        answered.append(session)

    monkeypatch.setattr(Session, "beat", noted)
    monkeypatch.setitem(Session.__init__.__kwdefaults__, "heartbeat_interval_s", 0.05)
    return answered


def test_a_client_with_a_slow_handler_is_not_forgotten(face: Face, beats: list[Session]) -> None:
    """The handler is a plain function that blocks for longer than a broker remembers silent clients."""
    entered, released = threading.Event(), threading.Event()

    def handle(message: Any) -> None:
        entered.set()
        released.wait(120)

    async def members(connection: Connection) -> list[str]:
        reply = await connection.call(GetConsumerListByGroup(consumer_group="slow-ones"))
        return sorted(ConsumerList.decode(reply.check().body).consumer_id_list)

    async def scenario(server: LocalMetaq) -> None:
        served = Served(server.nameserver, server.broker, None)  # type: ignore[arg-type]
        await send(server.broker, "slow", "m")
        connection = await Connection.open(server.broker)
        async with (
            broker_cluster.connected(server.broker, "silent") as silent,
            connected(face, served, client_id="slow") as client,
        ):
            await face.call(client.consumer("slow", group="slow-ones", start="earliest"), handle)
            await until(entered.is_set)
            await silent.heartbeat("slow-ones", "slow")
            assert await members(connection) == ["silent", "slow"]
            try:
                for _ in range(0, 2 * EXPIRY_S, STEP_S):
                    await asyncio.to_thread(server.clock.advance, STEP_S, silent=True)
                    # The first heartbeat may have arrived before the clock moved, but not the second.
                    so_far = len(beats)
                    await until(lambda so_far=so_far: len(beats) >= so_far + 2)
                assert await members(connection) == ["slow"]
            finally:
                released.set()
        await connection.close()

    with LocalMetaq(frozen=True, settings={"client_expiry_s": EXPIRY_S}) as server:
        server.create_topic("slow", queues=1)
        run(lambda: scenario(server))
