"""Delay levels, retries and dead letters on a broker whose clock the test moves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from metaq._core import Clock, Record
from metaq.broker import Broker
from metaq.protocol.errors import Refused
from metaq.protocol.messages import ConsumerSendMsgBack, SendMessageV2
from metaq.settings import DELAY_LEVELS_MS
from tests.integration.broker_cluster import (
    Client,
    broker_options,
    connected,
    run,
    started_broker,
    until,
)

START_MS = 1_750_000_000_000
LEVELS = len(DELAY_LEVELS_MS)


async def delivered(broker: Broker, client: Client, topic: str, count: int, group: str = "g") -> list[Record]:
    """Everything in queue 0 of the topic, once there is so much."""
    await until(lambda: broker.store.max_offset(topic, 0) >= count)
    assert broker.store.max_offset(topic, 0) == count
    return (await client.pull(group, topic))[1]


async def tick(broker: Broker, clock: Clock, by_ms: int, topic: str, count: int) -> None:
    """Moves the clock to the last moment before a delivery, sees that nothing comes early, and moves on."""
    clock.advance_ms(by_ms - 1)
    await asyncio.sleep(0.12)  # The delivery thread looks every 50 ms.
    assert broker.store.max_offset(topic, 0) == count, "a message came early"
    clock.advance_ms(1)


@pytest.mark.parametrize(("asked", "level"), [(1, 1), (3, 3), (18, 18), (99, 18)])
def test_a_delayed_message_comes_when_its_level_says(tmp_path: Path, asked: int, level: int) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with (
            started_broker(broker_options(tmp_path), clock) as broker,
            connected(broker.address) as client,
        ):
            await client.heartbeat("g", "orders")
            sent = await client.send("orders", b"later", DELAY=str(asked), TAGS="t", KEYS="k")
            assert sent.queue_id == 0
            assert broker.store.max_offset("orders", 0) == 0
            await tick(broker, clock, DELAY_LEVELS_MS[level - 1], "orders", 0)
            (record,) = await delivered(broker, client, "orders", 1)
            assert (record.body, record.properties["TAGS"]) == (b"later", "t")
            assert "DELAY" not in record.properties
            assert record.store_timestamp_ms == START_MS + DELAY_LEVELS_MS[level - 1]

    run(scenario)


@pytest.mark.parametrize("level", ["0", "-1", "soon"])
def test_what_is_no_level_is_no_delay(tmp_path: Path, level: str) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            await client.send("orders", b"now", DELAY=level)
            assert broker.store.max_offset("orders", 0) == 1

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
            records = await delivered(broker, client, "orders", 20)
            assert [record.body for record in records] == [b"%d" % number for number in range(20)]

    run(scenario)


def test_a_message_given_back_climbs_the_ladder_and_ends_with_the_dead_letters(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with (
            started_broker(broker_options(tmp_path), clock) as broker,
            connected(broker.address) as client,
        ):
            await client.heartbeat("g", "orders", "%RETRY%g", "%DLQ%g")
            await client.send("orders", b"poison", TAGS="t", UNIQ_KEY="U1")
            (record,) = await delivered(broker, client, "orders", 1)
            origin = record.message_id
            for times in range(16):
                await give_back(client, record)
                await tick(broker, clock, DELAY_LEVELS_MS[min(3 + times, LEVELS) - 1], "%RETRY%g", times)
                record = (await delivered(broker, client, "%RETRY%g", times + 1))[-1]
                assert (record.reconsume_times, record.body) == (times + 1, b"poison")
                assert record.properties["RETRY_TOPIC"] == "orders"
                assert record.properties["ORIGIN_MESSAGE_ID"] == origin
            await give_back(client, record)
            (dead,) = await delivered(broker, client, "%DLQ%g", 1)
            assert (dead.body, dead.reconsume_times) == (b"poison", 17)
            assert dead.properties["DLQ_ORIGIN_TOPIC"] == "orders"
            assert dead.properties["DLQ_ORIGIN_MESSAGE_ID"] == origin
            assert dead.properties["UNIQ_KEY"] == "U1"

    run(scenario)


def test_the_client_may_choose_the_level_the_limit_and_the_dead_letters(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with (
            started_broker(broker_options(tmp_path), clock) as broker,
            connected(broker.address) as client,
        ):
            await client.heartbeat("g", "orders", "%RETRY%g", "%DLQ%g")
            await client.send("orders", b"x")
            (record,) = await delivered(broker, client, "orders", 1)
            await give_back(client, record, delay_level=1)
            await tick(broker, clock, 1_000, "%RETRY%g", 0)
            (again,) = await delivered(broker, client, "%RETRY%g", 1)
            await give_back(client, again, max_reconsume_times=1)
            await delivered(broker, client, "%DLQ%g", 1)
            await give_back(client, record, delay_level=-1)
            await delivered(broker, client, "%DLQ%g", 2)

    run(scenario)


def test_a_clients_own_resend_is_delayed_or_dead(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with (
            started_broker(broker_options(tmp_path), clock) as broker,
            connected(broker.address) as client,
        ):
            await client.heartbeat("g", "orders", "%RETRY%g", "%DLQ%g")

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
            await tick(broker, clock, 10_000, "%RETRY%g", 0)
            (record,) = await delivered(broker, client, "%RETRY%g", 1)
            assert record.reconsume_times == 1
            await resend(16, None)
            await resend(3, 3)
            dead = await delivered(broker, client, "%DLQ%g", 2)
            assert [record.reconsume_times for record in dead] == [16, 3]

    run(scenario)


def test_what_cannot_be_given_back_is_refused_by_name(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            await client.heartbeat("g", "orders")
            await client.send("orders", b"x")
            (record,) = await delivered(broker, client, "orders", 1)
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
