"""Messages for a given time, and their recall, on a broker whose clock the test moves."""

from __future__ import annotations

import asyncio
import base64
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from metaq._core import Clock, Record, decode_records
from metaq.broker import Broker
from metaq.protocol.commands.messages import (
    EndTransaction,
    Recalled,
    RecallMessage,
    SendBatchMessage,
    SendMessageV2,
    Sent,
)
from metaq.protocol.errors import Refused
from metaq.protocol.names import TIMER_TOPIC
from tests.support.broker_cluster import Client, broker_options, connected, started_broker
from tests.support.waiting import run, until

START_MS = 1_750_000_000_000
DAY_MS = 24 * 3_600_000


@asynccontextmanager
async def opened(
    directory: Path, clock: Clock, *, broker: dict[str, object] | None = None, **store: object
) -> AsyncIterator[tuple[Broker, Client]]:
    """Starts a broker and a client that consumes `orders` as g."""
    options = broker_options(directory)
    options = replace(
        options,
        broker=replace(options.broker, **broker or {}),  # type: ignore[arg-type]
        store=replace(options.store, **store),  # type: ignore[arg-type]
    )
    async with started_broker(options, clock) as running, connected(running.address) as client:
        await client.heartbeat("g", "orders")
        yield running, client


async def delivered(broker: Broker, client: Client, count: int) -> list[Record]:
    """Waits for that many messages in queue 0 of `orders` and returns them."""
    await until(lambda: broker.store.max_offset("orders", 0) >= count)
    assert broker.store.max_offset("orders", 0) == count
    return (await client.pull("g", "orders"))[1]


async def nothing_new(broker: Broker, count: int, why: str) -> None:
    await broker.catch_up()
    assert broker.store.max_offset("orders", 0) == count, why


async def recall(client: Client, handle: str, topic: str = "orders") -> str:
    command = RecallMessage(producer_group="p", topic=topic, recall_handle=handle)
    return (await client.connection.call(command)).check().header(Recalled).msg_id


@pytest.mark.parametrize(
    ("properties", "delay_ms"),
    [
        ({"TIMER_DELAY_SEC": "3"}, 3_000),
        ({"TIMER_DELAY_MS": "7"}, 7),
        ({"TIMER_DELIVER_MS": str(START_MS + 90_061)}, 90_061),
        ({"TIMER_DELAY_MS": "5000", "TIMER_DELIVER_MS": "1"}, 5_000),
        ({"TIMER_DELAY_SEC": "60", "TIMER_DELAY_MS": "soon"}, 60_000),
        ({"DELAY": "2", "TIMER_DELAY_SEC": "9"}, 5_000),
    ],
)
def test_a_message_comes_at_its_moment(tmp_path: Path, properties: dict[str, str], delay_ms: int) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            sent = await client.send("orders", b"later", TAGS="t", KEYS="k", UNIQ_KEY="U", **properties)
            assert sent.queue_id == 0
            is_level = "DELAY" in properties
            assert broker.store.max_offset(TIMER_TOPIC, 0) == (0 if is_level else 1)
            assert (sent.recall_handle is None) == is_level
            clock.advance_ms(delay_ms - 1)
            await nothing_new(broker, 0, "it came early")
            clock.advance_ms(1)
            (record,) = await delivered(broker, client, 1)
            assert record.body == b"later"
            assert record.store_timestamp_ms == START_MS + delay_ms
            kept = {name: record.properties[name] for name in ("TAGS", "KEYS", "UNIQ_KEY")}
            assert kept == {"TAGS": "t", "KEYS": "k", "UNIQ_KEY": "U"}
            assert not [name for name in record.properties if name.startswith("TIMER_")]
            assert is_level or "REAL_TOPIC" not in record.properties

    run(scenario)


def test_waiting_messages_are_stored_as_apache_stores_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            sent = await client.send("orders", b"later", 2, TIMER_DELAY_SEC="3", UNIQ_KEY="U1")
            handle = base64.urlsafe_b64decode(sent.recall_handle or "").decode()
            *words, signature = handle.split(" ")
            assert words == ["v1", "orders", "broker-a", str(START_MS + 3_000), "U1"]
            assert len(base64.urlsafe_b64decode(signature)) == 16
            physical_offset = int(sent.msg_id[16:], 16)
            (waiting,) = decode_records(broker.store.record_at(physical_offset) or b"")
            assert (waiting.topic, waiting.queue_id) == (TIMER_TOPIC, 0)
            expected = {"REAL_TOPIC": "orders", "REAL_QID": "2", "TIMER_OUT_MS": str(START_MS + 3_000)}
            assert expected.items() <= waiting.properties.items()
            clock.advance_ms(3_000)
            await until(lambda: broker.store.max_offset("orders", 2) == 1)
            (record,) = (await client.pull("g", "orders", queue_id=2))[1]
            assert record.born_timestamp_ms == waiting.born_timestamp_ms
            assert record.born_host == waiting.born_host

    run(scenario)


@pytest.mark.parametrize(
    "past", [{"TIMER_DELAY_SEC": "-5"}, {"TIMER_DELAY_MS": "0"}, {"TIMER_DELIVER_MS": "1"}]
)
def test_a_message_that_is_due_already_comes_at_once(tmp_path: Path, past: dict[str, str]) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, Clock.manual(START_MS)) as (broker, client):
            sent = await client.send("orders", b"now", **past)
            assert broker.store.max_offset("orders", 0) == 1
            assert sent.recall_handle is None

    run(scenario)


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELAY_SEC": str(40 * 86_400 + 1)},
        {"TIMER_DELAY_MS": "9223372036854775807"},
        {"TIMER_DELIVER_MS": str(START_MS + 40 * DAY_MS + 1)},
        {"TIMER_DELAY_SEC": "soon"},
        {"TIMER_DELAY_MS": "1.5"},
        {"TIMER_DELIVER_MS": "1", "TIMER_DEL_UNIQKEY": "orders+K"},
        {"TIMER_DELAY_SEC": "soon", "TRAN_MSG": "true"},
    ],
)
def test_impossible_times_are_refused(tmp_path: Path, properties: dict[str, str]) -> None:
    async def scenario() -> None:
        settings = {"recall_by_property": True}
        async with opened(tmp_path, Clock.manual(START_MS), broker=settings) as (broker, client):
            with pytest.raises(Refused) as refused:
                await client.send("orders", b"x", **properties)
            assert refused.value.code == 13
            name = next(iter(properties))
            assert (
                name in refused.value.remark
                or "timer_max_delay_s" in refused.value.remark
                or ("recall" in refused.value.remark)
            )
            assert broker.store.max_offset(TIMER_TOPIC, 0) == 0

    run(scenario)


def test_a_batch_may_not_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, Clock.manual(START_MS)) as (broker, client):
            await client.send("orders", b"first")
            body, properties = b"one", b"TIMER_DELAY_SEC\x013"
            rest = (0).to_bytes(4, "big") + (0).to_bytes(4, "big") + (0).to_bytes(4, "big")
            rest += len(body).to_bytes(4, "big") + body + len(properties).to_bytes(2, "big") + properties
            batch = (len(rest) + 4).to_bytes(4, "big") + rest
            command = SendBatchMessage(producer_group="p", topic="orders", queue_id=0, batch=True)
            assert (await client.connection.call(command, batch)).code == 13
            assert broker.store.max_offset("orders", 0) == 1

    run(scenario)


def test_waiting_goes_on_after_a_restart_without_loss_or_repetition(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            for number in range(30):
                await client.send("orders", b"%d" % number, TIMER_DELAY_MS=str(1_000 + number * 10_000))
            clock.advance_ms(95_000)
            assert len(await delivered(broker, client, 10)) == 10
            await until(lambda: broker.master.plane.figures().timers_pending == 20)
            assert broker.master.plane.figures().timers_read == 30
        for stopped_ms in (0, 100_000, 1_000_000):
            clock.advance_ms(stopped_ms)
            async with opened(tmp_path, clock) as (broker, client):
                await nothing_new(broker, {0: 10, 100_000: 20, 1_000_000: 30}[stopped_ms], "lost or repeated")
        async with opened(tmp_path, clock) as (broker, client):
            records = await delivered(broker, client, 30)
            assert [record.body for record in records] == [b"%d" % number for number in range(30)]
            await until(lambda: broker.master.plane.figures().timers_pending == 0)

    run(scenario)


@pytest.mark.parametrize("harm", ["directory", "checkpoint", "bucket"])
def test_a_lost_timer_log_is_built_again(tmp_path: Path, harm: str) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            for number in range(20):
                await client.send("orders", b"%d" % number, TIMER_DELAY_MS=str(1_000 + number * 10_000))
            clock.advance_ms(95_000)
            await delivered(broker, client, 10)
        timer = tmp_path / "timer"
        if harm == "directory":
            shutil.rmtree(timer)
        elif harm == "checkpoint":
            (timer / "checkpoint").write_bytes(b"torn")
        else:
            max(timer.glob("0*")).write_bytes(b"\0" * 64)
        async with opened(tmp_path, clock) as (broker, client):
            await nothing_new(broker, 10, "repeated")
            clock.advance_ms(1_000_000)
            records = await delivered(broker, client, 20)
            assert [record.body for record in records] == [b"%d" % number for number in range(20)]

    run(scenario)


def test_the_progress_of_levels_is_never_ahead_of_the_disk(tmp_path: Path) -> None:
    """The journal is synced. A delivery that it knows of must not be lost in a power failure."""

    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock, flush="async", flush_interval_ms=3_600_000) as (broker, client):
            await client.send("orders", b"late", DELAY="1")
            clock.advance_ms(1_000)
            await delivered(broker, client, 1)
            end = broker.store.end_offset()
            plane = broker.master.plane
            assert (await asyncio.to_thread(plane.delay_offsets) or {})[1] == 1
            assert broker.store.figures().flushed_offset >= end

    run(scenario)


def test_forty_days_pass_retention_again_and_again(tmp_path: Path) -> None:
    """Forty days of traffic, of which three are kept, and one message that waits all the time."""

    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        files = {"commit_log_file_bytes": 64 * 1024, "allocation_step_bytes": 16 * 1024}
        async with opened(tmp_path, clock, **files) as (broker, client):
            sent = await client.send("orders", b"patient", UNIQ_KEY="P", TIMER_DELAY_SEC=str(40 * 86_400))
            gone = await client.send("orders", b"recalled", UNIQ_KEY="R", TIMER_DELAY_SEC=str(40 * 86_400))
            assert await recall(client, gone.recall_handle or "") == "R"
            first_offset = int(sent.msg_id[16:], 16)
            for half_day in range(80):
                for _ in range(8):
                    await client.send("traffic", b"x" * 8_000)
                clock.advance_ms(DAY_MS // 2 - (1 if half_day == 79 else 0))
                await broker.catch_up()
                broker.store.clean(force=True)
            assert broker.store.record_at(first_offset) is None, "retention has deleted the first copy"
            assert broker.store.figures().commit_log_files < 20
            await nothing_new(broker, 0, "it came early")
            clock.advance_ms(1)
            (record,) = await delivered(broker, client, 1)
            assert (record.body, record.store_timestamp_ms) == (b"patient", START_MS + 40 * DAY_MS)
            assert "TIMER_ROLL_TIMES" not in record.properties
            clock.advance_ms(DAY_MS)
            await nothing_new(broker, 1, "repeated, or not recalled")

    run(scenario)


def test_a_recalled_message_never_comes(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            for number in range(6):
                sent = await client.send("orders", b"%d" % number, TIMER_DELAY_MS=str(100_000 + number // 2))
                if number % 2:
                    await recall(client, sent.recall_handle or "")
            # This one is due before its recall can be read from the queue.
            soon = await client.send("orders", b"soon", TIMER_DELAY_MS="5", UNIQ_KEY="S")
            assert await recall(client, soon.recall_handle or "") == "S"
            clock.advance_ms(5)
            await nothing_new(broker, 0, "the recalled one came")
        clock.advance_ms(99_995)
        async with opened(tmp_path, clock) as (broker, client):
            assert [record.body for record in await delivered(broker, client, 1)] == [b"0"]
            clock.advance_ms(1)
            assert len(await delivered(broker, client, 2)) == 2
            clock.advance_ms(1)
            assert [record.body for record in await delivered(broker, client, 3)] == [b"0", b"2", b"4"]
            clock.advance_ms(DAY_MS)
            await nothing_new(broker, 3, "the recalled one came")
            await until(lambda: broker.master.plane.figures().timers_pending == 0)

    run(scenario)


def test_an_impossible_recall_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            sent = await client.send("orders", b"x", TIMER_DELAY_MS="1000", UNIQ_KEY="K")
            await client.send("others", b"x")
            handle = sent.recall_handle or ""

            def forged(*parts: str) -> str:
                return base64.urlsafe_b64encode(" ".join(parts).encode()).decode()

            soon = str(START_MS + 1_000)
            cases = [
                (handle, "others", 604),
                (handle, "nowhere", 17),
                (forged("v1", "orders", "broker-z", soon, "K"), "orders", 604),
                (forged("v2", "orders", "broker-a", soon, "K"), "orders", 604),
                (forged("v1", "orders", "broker-a", soon), "orders", 604),
                (forged("v1", "orders", "broker-a", "soon", "K"), "orders", 604),
                (forged("v1", "orders", "broker-a", str(START_MS), "K"), "orders", 604),
                (forged("v1", "orders", "broker-a", str(START_MS + 41 * DAY_MS), "K"), "orders", 604),
                ("not base64!", "orders", 604),
                ("é", "orders", 604),
                ("", "orders", 604),
                ("A" * 4_000, "orders", 604),
                ("A" * 100_000, "orders", 29),
            ]
            for given, topic, code in cases:
                with pytest.raises(Refused) as refused:
                    await recall(client, given, topic)
                assert refused.value.code == code, given[:40]
            clock.advance_ms(1_000)
            await delivered(broker, client, 1)
            with pytest.raises(Refused) as refused:
                await recall(client, handle)
            assert refused.value.code == 604 and "delivered" in refused.value.remark

    run(scenario)


def test_a_recall_names_its_topic_and_moment(tmp_path: Path) -> None:
    """A key of another topic or another time recalls nothing."""

    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock, broker={"recall_by_property": True}) as (broker, client):
            await client.send("orders", b"kept", TIMER_DELAY_MS="1000", UNIQ_KEY="K")
            other = await client.send("others", b"x", TIMER_DELAY_MS="1000", UNIQ_KEY="K")
            later = await client.send("orders", b"later", TIMER_DELAY_MS="2000", UNIQ_KEY="K")
            await recall(client, other.recall_handle or "", "others")
            await recall(client, later.recall_handle or "")
            # Older clients recall with a message that names the key; this one goes to the wrong topic.
            deletion = {"TIMER_DELAY_MS": "1000", "TIMER_DEL_UNIQKEY": "orders+K"}
            await client.send("others", b"0", UNIQ_KEY="K", **deletion)
            clock.advance_ms(10_000)
            assert [record.body for record in await delivered(broker, client, 1)] == [b"kept"]
            await nothing_new(broker, 1, "the recalled one came")
            assert broker.store.max_offset("others", 0) == 0

    run(scenario)


def test_only_the_sender_of_a_message_can_recall_it(tmp_path: Path) -> None:
    """Once, whoever knew the key and the time of a message could make its handle."""

    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            sent = await client.send("orders", b"kept", TIMER_DELAY_MS="1000", UNIQ_KEY="K")
            other = await client.send("orders", b"x", TIMER_DELAY_MS="1000", UNIQ_KEY="L")
            words = base64.urlsafe_b64decode(sent.recall_handle or "").decode().split(" ")
            borrowed = base64.urlsafe_b64decode(other.recall_handle or "").decode().split(" ")[5:]
            for signature in ([], [""], ["x"], ["é"], borrowed, ["A" * 22 + "=="]):
                forged = base64.urlsafe_b64encode(" ".join([*words[:5], *signature]).encode()).decode()
                with pytest.raises(Refused, match="this broker did not make") as refused:
                    await recall(client, forged)
                assert refused.value.code == 604
            with pytest.raises(Refused, match="recall_by_property") as refused:
                await client.send("orders", b"0", TIMER_DELAY_MS="1000", TIMER_DEL_UNIQKEY="orders+K")
            assert refused.value.code == 16
            await recall(client, other.recall_handle or "")
            clock.advance_ms(1_000)
            (record,) = await delivered(broker, client, 1)
            assert record.body == b"kept"

    run(scenario)


def test_a_handle_is_valid_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (_, client):
            sent = await client.send("orders", b"x", TIMER_DELAY_MS="100000", UNIQ_KEY="K")
        async with opened(tmp_path, clock) as (broker, client):
            assert await recall(client, sent.recall_handle or "") == "K"
            clock.advance_ms(100_000)
            await nothing_new(broker, 0, "the recalled one came")

    run(scenario)


def test_recalls_can_be_switched_off(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, Clock.manual(START_MS), broker={"recall_messages": False}) as (_, client):
            sent = await client.send("orders", b"x", TIMER_DELAY_MS="1000")
            assert sent.recall_handle is None
            for attempt in (
                recall(client, "x"),
                client.send("orders", b"0", TIMER_DELAY_MS="1000", TIMER_DEL_UNIQKEY="orders+K"),
            ):
                with pytest.raises(Refused) as refused:
                    await attempt
                assert refused.value.code == 16 and "recall_messages" in refused.value.remark

    run(scenario)


def test_a_transaction_begins_to_wait_when_it_is_committed(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            command = SendMessageV2(
                producer_group="p",
                topic="orders",
                queue_id=0,
                sys_flag=4,
                properties="TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01K\x02TIMER_DELAY_SEC\x0130\x02",
            )
            half = (await client.connection.call(command, b"half")).check().header(Sent)
            assert half.recall_handle is None
            clock.advance_ms(20_000)
            commit = EndTransaction(
                producer_group="p",
                tran_state_table_offset=half.queue_offset,
                commit_log_offset=int(half.msg_id[16:], 16),
                commit_or_rollback=8,
                msg_id="K",
            )
            (await client.connection.call(commit)).check()
            clock.advance_ms(29_999)
            await nothing_new(broker, 0, "it came early")
            clock.advance_ms(1)
            (record,) = await delivered(broker, client, 1)
            assert record.body == b"half" and "TIMER_DELAY_SEC" not in record.properties

    run(scenario)


def test_a_clock_that_is_set_back_holds_nothing_up_and_hurries_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            await client.send("orders", b"first", TIMER_DELAY_MS="1000")
            await client.send("orders", b"last", TIMER_DELIVER_MS=str(START_MS + 1_500))
            clock.advance_ms(1_000)
            await delivered(broker, client, 1)
            clock.advance_ms(-3_600_000)
            await broker.catch_up()
            await client.send("orders", b"meanwhile", TIMER_DELAY_MS="1000")
            clock.advance_ms(1_000)
            await delivered(broker, client, 2)
            clock.advance_ms(3_599_499)
            await nothing_new(broker, 2, "it came early")
            clock.advance_ms(1)
            bodies = [record.body for record in await delivered(broker, client, 3)]
            assert bodies == [b"first", b"meanwhile", b"last"]

    run(scenario)
