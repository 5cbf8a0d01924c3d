"""Delay levels, retries and dead letters on a broker whose clock the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from metaq._core import Clock, Record
from metaq.protocol.commands.messages import ConsumerSendMsgBack, SendMessageV2, ViewMessageById
from metaq.protocol.errors import Refused
from metaq.protocol.properties import encode_properties
from metaq.settings import DELAY_LEVELS_MS
from metaq.testing import AsyncLocalMetaq
from tests.support.broker_cluster import Client, broker_options, connected, started_broker
from tests.support.waiting import run, until

START_MS = 1_750_000_000_000
LEVELS = len(DELAY_LEVELS_MS)


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[AsyncLocalMetaq, Client]]:
    """Starts a broker with a frozen clock, and a client that consumes `orders` as g."""
    async with AsyncLocalMetaq(frozen=True) as metaq, connected(metaq.broker) as client:
        await client.heartbeat("g", "orders", "%RETRY%g", "%DLQ%g")
        yield metaq, client


async def delivered(metaq: AsyncLocalMetaq, client: Client, topic: str, count: int) -> list[Record]:
    """Returns everything in queue 0 of the topic, and checks the count."""
    assert len(await metaq.messages(topic)) == count
    return (await client.pull("g", topic))[1]


async def tick(metaq: AsyncLocalMetaq, by_ms: int, topic: str, count: int) -> None:
    """Moves the clock to just before a delivery, checks that nothing comes early, and moves on."""
    await metaq.clock.advance((by_ms - 1) / 1000)
    assert len(await metaq.messages(topic)) == count, "a message came early"
    await metaq.clock.advance(0.001)


@pytest.mark.parametrize(("asked", "level"), [(1, 1), (3, 3), (18, 18), (99, 18)])
def test_a_delayed_message_comes_when_its_level_says(asked: int, level: int) -> None:
    async def scenario() -> None:
        async with opened() as (metaq, client):
            start = metaq.clock.now()
            sent = await client.send("orders", b"later", DELAY=str(asked), TAGS="t", KEYS="k")
            assert sent.queue_id == 0
            await tick(metaq, DELAY_LEVELS_MS[level - 1], "orders", 0)
            (message,) = await metaq.messages("orders")
            assert (message.queue, message.body, message.tag) == (0, b"later", "t")
            assert "DELAY" not in message.properties
            assert message.stored_time - start == timedelta(milliseconds=DELAY_LEVELS_MS[level - 1])

    run(scenario)


@pytest.mark.parametrize("level", ["0", "-1", "soon"])
def test_an_invalid_level_is_no_delay(level: str) -> None:
    async def scenario() -> None:
        async with opened() as (metaq, client):
            await client.send("orders", b"now", DELAY=level)
            await delivered(metaq, client, "orders", 1)

    run(scenario)


def test_delays_go_on_after_a_restart_without_loss_or_repetition(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        options = broker_options(tmp_path)
        async with started_broker(options, clock) as broker, connected(broker.address) as client:
            for number in range(20):
                await client.send("orders", b"%d" % number, DELAY="1")
                clock.advance_ms(100)
            await until(lambda: broker.store.max_offset("orders", 0) >= 10)
            done = broker.store.max_offset("orders", 0)
            assert done < 20
        clock.advance_ms(60_000)
        async with started_broker(options, clock) as broker, connected(broker.address) as client:
            await client.heartbeat("g", "orders")
            await until(lambda: broker.store.max_offset("orders", 0) >= 20)
            _, records, _ = await client.pull("g", "orders")
            assert [record.body for record in records] == [b"%d" % number for number in range(20)]

    run(scenario)


def test_a_message_sent_back_climbs_the_ladder_and_ends_with_the_dead_letters() -> None:
    async def scenario() -> None:
        async with opened() as (metaq, client):
            await client.send("orders", b"poison", TAGS="t", UNIQ_KEY="U1")
            (record,) = await delivered(metaq, client, "orders", 1)
            origin = record.message_id
            for times in range(16):
                await give_back(client, record)
                await tick(metaq, DELAY_LEVELS_MS[min(3 + times, LEVELS) - 1], "%RETRY%g", times)
                record = (await delivered(metaq, client, "%RETRY%g", times + 1))[-1]
                assert (record.reconsume_times, record.body) == (times + 1, b"poison")
                assert record.properties["RETRY_TOPIC"] == "orders"
                assert record.properties["ORIGIN_MESSAGE_ID"] == origin
            await give_back(client, record)
            (dead,) = await delivered(metaq, client, "%DLQ%g", 1)
            assert (dead.body, dead.reconsume_times) == (b"poison", 17)
            assert dead.properties["DLQ_ORIGIN_TOPIC"] == "orders"
            assert dead.properties["DLQ_ORIGIN_MESSAGE_ID"] == origin
            assert dead.properties["UNIQ_KEY"] == "U1"

    run(scenario)


def test_the_client_may_choose_the_level_the_limit_and_the_dead_letters() -> None:
    async def scenario() -> None:
        async with opened() as (metaq, client):
            await client.send("orders", b"x")
            (record,) = await delivered(metaq, client, "orders", 1)
            await give_back(client, record, delay_level=1)
            await tick(metaq, 1_000, "%RETRY%g", 0)
            (again,) = await delivered(metaq, client, "%RETRY%g", 1)
            await give_back(client, again, max_reconsume_times=1)
            await delivered(metaq, client, "%DLQ%g", 1)
            await give_back(client, record, delay_level=-1)
            await delivered(metaq, client, "%DLQ%g", 2)

    run(scenario)


def test_a_clients_own_resend_is_delayed_or_dead() -> None:
    async def scenario() -> None:
        async with opened() as (metaq, client):

            async def resend(times: int, limit: int | None) -> None:
                command = SendMessageV2(
                    producer_group="CLIENT_INNER_PRODUCER",
                    topic="%RETRY%g",
                    queue_id=0,
                    properties="DELAY\x013\x02RETRY_TOPIC\x01orders",
                    reconsume_times=times,
                    max_reconsume_times=limit,
                )
                (await client.connection.call(command, b"again")).check()

            await resend(1, 16)
            await tick(metaq, 10_000, "%RETRY%g", 0)
            (record,) = await delivered(metaq, client, "%RETRY%g", 1)
            assert record.reconsume_times == 1
            await resend(16, None)
            await resend(3, 3)
            dead = await delivered(metaq, client, "%DLQ%g", 2)
            assert [record.reconsume_times for record in dead] == [16, 3]

    run(scenario)


def test_a_message_that_cannot_be_sent_back_is_refused_with_a_reason() -> None:
    async def scenario() -> None:
        async with opened() as (metaq, client):
            await client.send("orders", b"x")
            (record,) = await delivered(metaq, client, "orders", 1)
            for group, physical_offset, code in (
                ("none", record.physical_offset, 26),
                ("g", 7, 1),
                ("g", -1, 1),
            ):
                command = ConsumerSendMsgBack(physical_offset=physical_offset, group=group, delay_level=0)
                with pytest.raises(Refused) as raised:
                    (await client.connection.call(command)).check()
                assert raised.value.code == code

    run(scenario)


async def give_back(
    client: Client, record: Record, delay_level: int = 0, max_reconsume_times: int | None = None
) -> None:
    command = ConsumerSendMsgBack(
        physical_offset=record.physical_offset,
        group="g",
        delay_level=delay_level,
        origin_msg_id=record.message_id,
        max_reconsume_times=max_reconsume_times,
    )
    (await client.connection.call(command)).check()


@pytest.mark.parametrize("long_names", [("A", "B"), ("RETRY_TOPIC", "ORIGIN_MESSAGE_ID"), ("TAGS", "KEYS")])
def test_a_message_whose_properties_fill_their_room_can_go_back(long_names: tuple[str, str]) -> None:
    async def scenario() -> None:
        async with opened() as (metaq, client):
            first, second = long_names
            await client.send("orders", b"probe", **{first: "x", second: "y" * 15_000})
            (probe,) = await delivered(metaq, client, "orders", 1)
            room = 32_767 - len(encode_properties(probe.properties).encode())
            await client.send("orders", b"full", **{first: "x" * room, second: "y" * 15_000})
            record = (await delivered(metaq, client, "orders", 2))[-1]
            assert len(encode_properties(record.properties).encode()) >= 32_766
            await give_back(client, record)
            await tick(metaq, DELAY_LEVELS_MS[2], "%RETRY%g", 0)
            (again,) = await delivered(metaq, client, "%RETRY%g", 1)
            await give_back(client, again, delay_level=-1)
            await give_back(client, record, delay_level=-1)
            letters = await delivered(metaq, client, "%DLQ%g", 2)
            assert [copy.body for copy in (again, *letters)] == [b"full"] * 3
            for copy in (again, *letters):
                assert copy.properties["RETRY_TOPIC"] == "orders"
                assert copy.properties["ORIGIN_MESSAGE_ID"] == record.message_id
            if first == "A":
                assert again.properties["METAQ_LEFT_OUT"] == "1"
                assert "A" not in again.properties and len(again.properties["B"]) == 15_000
            assert all(letter.properties["DLQ_ORIGIN_TOPIC"] == "orders" for letter in letters)

    run(scenario)


@pytest.mark.parametrize("claimed", [2**31 - 1, -(2**31)])
def test_a_message_with_an_absurd_number_of_tries_can_go_back(claimed: int) -> None:
    async def scenario() -> None:
        async with opened() as (metaq, client):
            command = SendMessageV2(producer_group="p", topic="orders", queue_id=0, reconsume_times=claimed)
            (await client.connection.call(command, b"odd")).check()
            (record,) = await delivered(metaq, client, "orders", 1)
            await give_back(client, record)
            if claimed > 0:
                (dead,) = await delivered(metaq, client, "%DLQ%g", 1)
                assert (dead.body, dead.reconsume_times) == (b"odd", 2**31 - 1)
            else:
                await tick(metaq, DELAY_LEVELS_MS[2], "%RETRY%g", 0)
                (again,) = await delivered(metaq, client, "%RETRY%g", 1)
                assert (again.body, again.reconsume_times) == (b"odd", 1)

    run(scenario)


def test_the_image_of_a_record_in_a_body_is_neither_shown_nor_taken_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            await client.heartbeat("g", "orders", "secrets")
            genuine = await client.send("secrets", b"genuine")
            place = int(genuine.msg_id[-16:], 16)
            stored = broker.store.record_at(place)
            assert stored is not None
            probe = await client.send("orders", stored)
            outer = int(probe.msg_id[-16:], 16)
            outer_bytes = broker.store.record_at(outer)
            assert outer_bytes is not None
            # The next message of the same kind has its body at the same distance.
            inner = broker.store.end_offset() + outer_bytes.index(stored)
            forged = stored[:28] + inner.to_bytes(8, "big") + stored[36:]
            await client.send("orders", forged)
            for physical_offset, code in ((place, 0), (outer, 0), (inner, 1)):
                view = ViewMessageById(physical_offset=physical_offset)
                assert (await client.connection.call(view)).code == code
                back = ConsumerSendMsgBack(physical_offset=physical_offset, group="g", delay_level=0)
                assert (await client.connection.call(back)).code == code

    run(scenario)
