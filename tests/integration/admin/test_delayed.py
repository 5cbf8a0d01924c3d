"""Delayed messages through the administration client: counted, listed and recalled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from metaq._core import Clock
from metaq.admin import Admin, DelayedMessage, DelayedMessages, DelayLevelCount, aio
from metaq.broker import Broker
from metaq.errors import NoSuchMessage, NotSupported, UsageError
from metaq.protocol.errors import Refused
from tests.integration.admin.conftest import Served
from tests.support.broker_cluster import Client, broker_options, connected, started_broker
from tests.support.waiting import run, until

START_MS = 1_750_000_020_000
"""The begin of a minute."""
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


@asynccontextmanager
async def opened(
    directory: Path, clock: Clock, **broker: object
) -> AsyncIterator[tuple[Broker, Client, aio.Admin]]:
    """Starts a broker whose clock the test moves. Its address stands for its name."""
    options = broker_options(directory)
    options = replace(options, broker=replace(options.broker, **broker))  # type: ignore[arg-type]
    async with (
        started_broker(options, clock) as running,
        connected(running.address) as client,
        aio.Admin("127.0.0.1:1", timeout=30, retry=30) as admin,
    ):
        await client.heartbeat("g", "orders", "bills")
        yield running, client, admin


async def listed(admin: aio.Admin, broker: Broker, count: int) -> DelayedMessages:
    """Waits until that many messages are in the list, which lags behind by a second."""

    async def found() -> DelayedMessages | None:
        messages = await admin.delayed.list(broker=broker.address)
        return messages if len(messages.messages) == count else None

    return await until(found, what=f"{count} delayed messages are listed")  # type: ignore[return-value]


def due(messages: DelayedMessages) -> list[tuple[str, int]]:
    return [(message.id, message.due_ms - START_MS) for message in messages.messages]


def test_messages_are_listed_in_the_order_of_their_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client, admin):
            late = await client.send(
                "orders", b"x" * 900, 2, UNIQ_KEY="LATE", KEYS="k1 k2", TAGS="t", TIMER_DELAY_SEC="7200"
            )
            await client.send("bills", b"soon", UNIQ_KEY="SOON", TIMER_DELAY_MS="30500")
            await client.send("orders", b"level", UNIQ_KEY="LEVEL", DELAY="5")
            await client.send("bills", b"next", UNIQ_KEY="NEXT", TIMER_DELAY_SEC="31")
            found = await listed(admin, broker, 4)
            assert due(found) == [
                ("SOON", 30_500),
                ("NEXT", 31_000),
                ("LEVEL", 60_000),
                ("LATE", 7_200_000),
            ]
            assert not found.is_truncated
            last = found.messages[-1]
            assert last == DelayedMessage(
                broker.address,
                "LATE",
                late.msg_id,
                "orders",
                2,
                ("k1", "k2"),
                "t",
                START_MS + 7_200_000,
                START_MS,
                last.size_bytes,
                None,
                False,
            )
            assert last.size_bytes > 900
            assert [message.level for message in found.messages] == [None, None, 5, None]
            assert await admin.delayed.find(last.offset_id, broker=broker.address) == last

            async def ids(**search: object) -> tuple[list[str], bool]:
                part = await admin.delayed.list(broker=broker.address, **search)  # type: ignore[arg-type]
                return [message.id for message in part.messages], part.is_truncated

            assert await ids(topic="orders") == (["LEVEL", "LATE"], False)
            assert await ids(topic="bills", limit=1) == (["SOON"], True)
            assert await ids(limit=3) == (["SOON", "NEXT", "LEVEL"], True)
            begin, end = START_MS + 31_000, START_MS + 7_200_000
            assert await ids(from_ms=begin, to_ms=end) == (["NEXT", "LEVEL"], False)
            assert await ids(from_ms=end, to_ms=end + 1) == (["LATE"], False)
            clock.advance_ms(30_500)
            await until(lambda: broker.store.max_offset("bills", 0) == 1)
            assert await ids() == (["NEXT", "LEVEL", "LATE"], False)

    run(scenario)


def test_the_histogram_counts_every_message_once_and_survives_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client, admin):
            for number in range(50):
                delay_ms = number * 5 * MINUTE_MS + 1_000
                await client.send("orders", b"x", UNIQ_KEY=f"U{number}", TIMER_DELAY_MS=str(delay_ms))
            for _ in range(7):
                await client.send("orders", b"x", DELAY="18")
            await until(lambda: broker.master.plane.figures().timers_pending == 50)
            overview = await admin.delayed.overview(buckets=24, broker=broker.address)
            assert (overview.pending, overview.recalled) == (57, 0)
            assert overview.levels == (DelayLevelCount(18, 2 * HOUR_MS, 7),)
            assert overview.latest_ms == START_MS + 245 * MINUTE_MS
            counts = [bucket.messages for bucket in overview.histogram]
            assert (sum(counts), len(counts) <= 24) == (57, True)
            steps = {bucket.to_ms - bucket.from_ms for bucket in overview.histogram}
            assert steps == {15 * MINUTE_MS}
            for bucket in overview.histogram:
                timed = sum(
                    bucket.from_ms <= START_MS + number * 5 * MINUTE_MS + 1_000 < bucket.to_ms
                    for number in range(50)
                )
                level = 7 * (bucket.from_ms <= START_MS + 2 * HOUR_MS < bucket.to_ms)
                assert bucket.messages == timed + level, bucket
            await until(lambda: first_due(admin, broker, START_MS + 1_000))
        async with opened(tmp_path, clock) as (broker, _, admin):
            again = await admin.delayed.overview(buckets=24, broker=broker.address)
            assert again.histogram == overview.histogram
            clock.advance_ms(HOUR_MS + 500)
            await broker.catch_up()
            rest = await admin.delayed.overview(buckets=24, broker=broker.address)
            assert rest.pending == 57 - 12 - (12 * 5 * MINUTE_MS + 1_000 <= HOUR_MS + 500)

    run(scenario)


async def first_due(admin: aio.Admin, broker: Broker, expected_ms: int) -> bool:
    return (await admin.delayed.overview(broker=broker.address)).earliest_ms == expected_ms


def test_an_operator_recalls_a_message_without_its_handle(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client, admin):
            address = broker.address
            gone = await client.send("orders", b"gone", UNIQ_KEY="GONE", TIMER_DELAY_SEC="90")
            await client.send("orders", b"kept", UNIQ_KEY="KEPT", TIMER_DELAY_SEC="90")
            level = await client.send("orders", b"level", UNIQ_KEY="LEVEL", DELAY="18")
            recalled = await admin.delayed.recall(gone.msg_id.lower(), broker=address)
            assert (recalled.id, recalled.is_recalled, recalled.can_be_recalled) == ("GONE", True, False)
            with pytest.raises(Refused, match="delay level 18: only a message with a delivery time"):
                await admin.delayed.recall(level.msg_id, broker=address)

            async def refusal() -> str:
                try:
                    await admin.delayed.recall(gone.msg_id, broker=address)
                except Refused as error:
                    return str(error)
                return ""

            assert "recalled before" in await until(refusal)
            found = await listed(admin, broker, 3)
            assert [message.id for message in found.messages if message.is_recalled] == ["GONE"]
            overview = await admin.delayed.overview(broker=address)
            assert (overview.pending, overview.recalled) == (3, 1)
            clock.advance_ms(90_000)
            await broker.catch_up()
            assert await client.bodies("g", "orders") == [b"kept"]
            with pytest.raises(NoSuchMessage, match="waits for its time"):
                await admin.delayed.recall(gone.msg_id, broker=address)
            overview = await admin.delayed.overview(broker=address)
            assert (overview.pending, overview.recalled) == (1, 0)

    run(scenario)


def test_a_message_that_is_stored_again_keeps_its_time_in_lists(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        due_ms = START_MS + 3 * HOUR_MS + 1_234
        async with opened(tmp_path, clock, timer_roll_s=600) as (broker, client, admin):
            sent = await client.send("orders", b"x", UNIQ_KEY="FAR", TIMER_DELIVER_MS=str(due_ms))
            await client.send("orders", b"y", UNIQ_KEY="NEAR", TIMER_DELAY_SEC="300")
            found = await listed(admin, broker, 2)
            assert due(found) == [("NEAR", 300_000), ("FAR", due_ms - START_MS)]
            part = await admin.delayed.list(from_ms=due_ms, to_ms=due_ms + 1, broker=broker.address)
            assert [message.id for message in part.messages] == ["FAR"]
            clock.advance_ms(HOUR_MS)
            await until(lambda: broker.store.max_offset("orders", 0) == 1)

            async def moved() -> bool:
                messages = (await admin.delayed.list(broker=broker.address)).messages
                return [message.due_ms for message in messages] == [due_ms] and (
                    messages[0].offset_id != sent.msg_id
                )

            await until(moved)
            overview = await admin.delayed.overview(broker=broker.address)
            assert (overview.pending, overview.latest_ms) == (1, due_ms // MINUTE_MS * MINUTE_MS)
            # The old offset id still names the message.
            await admin.delayed.recall(sent.msg_id, broker=broker.address)
        async with opened(tmp_path, clock, timer_roll_s=600) as (broker, client, admin):
            (message,) = (await listed(admin, broker, 1)).messages
            assert (message.id, message.due_ms, message.is_recalled) == ("FAR", due_ms, True)
            clock.advance_ms(3 * HOUR_MS)
            await until(lambda: broker.master.plane.figures().timers_pending == 0)
            assert await client.bodies("g", "orders") == [b"y"]

    run(scenario)


def test_wrong_arguments_and_brokers_that_forbid_recalls(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock, recall_messages=False) as (broker, client, admin):
            sent = await client.send("orders", b"x", UNIQ_KEY="U", TIMER_DELAY_SEC="90")
            with pytest.raises(Refused, match="recall_messages"):
                await admin.delayed.recall(sent.msg_id, broker=broker.address)
            elsewhere = "7F000002" + sent.msg_id[8:]
            with pytest.raises(NoSuchMessage):
                await admin.delayed.find(elsewhere, broker=broker.address)
            plain = await client.send("orders", b"now")
            with pytest.raises(NoSuchMessage):
                await admin.delayed.find(plain.msg_id, broker=broker.address)
            for bad in (
                admin.delayed.find("U"),
                admin.delayed.overview(buckets=0),
                admin.delayed.list(limit=1_001),
            ):
                with pytest.raises(UsageError):
                    await bad

    run(scenario)


def test_a_cluster_and_a_broker_that_does_not_report(cluster: Served, admin: Admin) -> None:
    if cluster.is_metaq:
        admin.topics.create("DelayedTopic", queues=1)

        async def send() -> str:
            async with connected(cluster.broker) as client:
                return (await client.send("DelayedTopic", b"x", TIMER_DELAY_SEC="3600")).msg_id

        offset_id = asyncio.run(send())
        assert admin.delayed.recall(offset_id).topic == "DelayedTopic"
        overview = admin.delayed.overview()
        assert overview.pending is not None and overview.missing == ()
        return
    sentence = "does not report delayed messages: it is not a MetaQ broker, or it is an older one"
    overview = admin.delayed.overview()
    assert (overview.pending, overview.recalled, overview.histogram) == (None, None, ())
    assert [sentence in text for text in overview.missing] == [True]
    found = admin.delayed.list()
    assert (found.messages, [sentence in text for text in found.missing]) == ((), [True])
    with pytest.raises(NotSupported, match="not a MetaQ broker"):
        admin.delayed.recall("7F00000100002A9F0000000000000000")
