"""A message becomes a dead letter after `retries_max` retries, also for ordered consumers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metaq.protocol.commands.messages import SendMessageV2
from metaq.testing import LocalMetaq
from tests.integration.client.conftest import Served
from tests.integration.client.test_consumer_contract import connected
from tests.support.clients import Face, send
from tests.support.patient import Connection
from tests.support.waiting import run, until

COMPRESSED = 1


@pytest.mark.parametrize("retries_max", [0, 2])
@pytest.mark.parametrize("ordered", [False, True], ids=["concurrent", "ordered"])
def test_after_its_last_try_a_message_is_a_dead_letter(
    face: Face, ordered: bool, retries_max: int, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[int] = []
    fine: list[bytes] = []

    def handle(message: Any) -> None:
        if message.body == b"hopeless":
            tries.append(message.reconsume_times)
            raise RuntimeError("as ever")
        fine.append(message.body)

    async def scenario(server: LocalMetaq) -> None:
        served = Served(server.nameserver, server.broker, None)  # type: ignore[arg-type]
        await send(server.broker, "bills", "hopeless", "behind it")
        options = {"ordered": ordered, "suspend": 0.01, "retries_max": retries_max}
        async with connected(face, served) as client:
            declare = client.consumer("bills", group="billing", start="earliest", **options)
            await face.call(declare, face.handler(handle))
            async with asyncio.timeout(60):
                while not await asyncio.to_thread(server.dead_letters, "billing"):
                    if not ordered:  # An ordered consumer retries on its own, without the broker's clock.
                        await asyncio.to_thread(server.clock.advance, 7200)
                    await asyncio.sleep(0.02)
            await until(lambda: fine == [b"behind it"])
        assert tries == list(range(retries_max + 1))
        (letter,) = await asyncio.to_thread(server.dead_letters, "billing")
        assert letter.body == b"hopeless"
        assert letter.properties["DLQ_REASON"] == "as ever"
        assert letter.properties["DLQ_ERROR_TYPE"] == "RuntimeError"
        logged = [each.getMessage() for each in caplog.records if "is a dead letter" in each.getMessage()]
        assert len(logged) == 1 and logged[0].endswith("RuntimeError: as ever")

    with LocalMetaq(frozen=True) as server:
        server.create_topic("bills", queues=1)
        run(lambda: scenario(server))


def test_an_unreadable_message_with_no_room_for_more_properties_stops_no_queue(face: Face) -> None:
    fine: list[bytes] = []

    async def scenario(server: LocalMetaq) -> None:
        served = Served(server.nameserver, server.broker, None)  # type: ignore[arg-type]
        connection = await Connection.open(server.broker)
        properties = f"A\x01{'x' * 32_600}\x02B\x01kept\x02"
        junk = SendMessageV2(
            producer_group="p", topic="bills", queue_id=0, sys_flag=COMPRESSED, properties=properties
        )
        (await connection.call(junk, b"no zlib")).check()
        await connection.close()
        await send(server.broker, "bills", "behind it")
        async with connected(face, served) as client:
            declare = client.consumer("bills", group="billing", start="earliest")
            await face.call(declare, face.handler(lambda message: fine.append(message.body)))
            await until(lambda: fine == [b"behind it"])
            async with asyncio.timeout(60):
                while not await asyncio.to_thread(server.dead_letters, "billing"):
                    await asyncio.sleep(0.02)
        (letter,) = await asyncio.to_thread(server.dead_letters, "billing")
        assert "A" not in letter.properties
        assert (letter.properties["B"], letter.properties["METAQ_LEFT_OUT"]) == ("kept", "1")
        assert letter.properties["DLQ_ORIGIN_TOPIC"] == "bills"

    with LocalMetaq(frozen=True) as server:
        server.create_topic("bills", queues=1)
        run(lambda: scenario(server))
