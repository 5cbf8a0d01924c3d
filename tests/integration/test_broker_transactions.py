"""Transactions on a broker whose clock the test moves: commit, rollback, checks, restarts and kills."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from metaq._core import Clock, Frame, Record, decode_records
from metaq.broker import Broker
from metaq.journal.journal import Journal
from metaq.protocol import names
from metaq.protocol.commands.messages import (
    EndTransaction,
    ResumeCheckHalfMessage,
    SendBatchMessage,
    SendMessageV2,
    Sent,
)
from metaq.protocol.commands.offsets import GetMaxOffset
from metaq.protocol.reply import Reply
from tests.support.broker_cluster import Client, broker_options, connected, copy_living_store, started_broker
from tests.support.waiting import run, until

START_MS = 1_750_000_000_000
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
INTERVAL_MS = 30_000
CHECK = 39
PHYSICAL_OFFSET_AT, BODY_AT = 28, 88


@asynccontextmanager
async def opened(directory: Path, clock: Clock, **changes: object) -> AsyncIterator[tuple[Broker, Client]]:
    """Starts a broker and a client that consumes `orders` as g and produces as p."""
    options = replace(broker_options(directory), **changes)  # type: ignore[arg-type]
    async with started_broker(options, clock) as broker, connected(broker.address) as client:
        await client.heartbeat("g", "orders", names.CHECKS_EXHAUSTED_TOPIC, producers=("p",))
        yield broker, client


async def begin(client: Client, body: bytes, clock: Clock, *, group: str = "p", **properties: str) -> Sent:
    """Sends a half message as the Java client does."""
    given = {"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": f"K-{body.decode()}"} | properties
    command = SendMessageV2(
        producer_group=group,
        topic="orders",
        queue_id=0,
        sys_flag=4,
        born_timestamp=clock.now_ms(),
        properties="".join(f"{name}\x01{value}\x02" for name, value in given.items()),
    )
    return (await client.connection.call(command, body)).check().header(Sent)


async def end(
    client: Client,
    half: Sent | Frame,
    how: int,
    *,
    group: str = "p",
    queue_offset: int | None = None,
    physical_offset: int | None = None,
) -> Reply:
    """Ends a transaction, by the answer to its send or by the check for it."""
    if isinstance(half, Frame):
        own_queue_offset, own_physical_offset = (
            int(half.fields[name]) for name in ("tranStateTableOffset", "commitLogOffset")
        )
    else:
        own_queue_offset, own_physical_offset = half.queue_offset, int(half.msg_id[-16:], 16)
    command = EndTransaction(
        producer_group=group,
        tran_state_table_offset=own_queue_offset if queue_offset is None else queue_offset,
        commit_log_offset=own_physical_offset if physical_offset is None else physical_offset,
        commit_or_rollback=how,
        msg_id="",
        from_transaction_check=isinstance(half, Frame),
    )
    return await client.connection.call(command)


async def turn(broker: Broker, client: Client, clock: Clock, by_ms: int = INTERVAL_MS) -> list[Frame]:
    """Moves the clock by one check interval and returns the checks that came."""
    before = len(checks(client))
    clock.advance_ms(by_ms)
    await broker.master.transactions.check()
    # On the same connection an answer comes after the check.
    await client.connection.call(GetMaxOffset(topic="orders", queue_id=0))
    return checks(client)[before:]


def checks(client: Client) -> list[Frame]:
    return [frame for frame in client.told if frame.code == CHECK]


async def orders(client: Client) -> list[Record]:
    return (await client.pull("g", "orders"))[1]


def open_count(broker: Broker) -> int:
    return broker.master.plane.figures().transactions_open


async def kept(broker: Broker) -> tuple[int, int]:
    """Returns the committed offsets of the half topic and of the topic of ended transactions."""
    await broker.master.transactions.keep_offsets()
    table = broker.master.plane.offsets()
    half, done = (
        table.get(f"{topic}@{names.TRANSACTION_GROUP}", {}).get(0, 0)
        for topic in (names.HALF_TOPIC, names.HALF_DONE_TOPIC)
    )
    return half, done


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_half_message_is_seen_once_committed_and_never_when_rolled_back(tmp_path: Path, flush: str) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        store = replace(broker_options(tmp_path).store, flush=flush)  # type: ignore[arg-type]
        async with opened(tmp_path, clock, store=store) as (broker, client):
            kept_half = await begin(client, b"yes", clock, TAGS="t", KEYS="k")
            dropped_half = await begin(client, b"no", clock)
            assert (kept_half.queue_id, kept_half.transaction_id) == (0, "K-yes")
            assert [kept_half.queue_offset, dropped_half.queue_offset] == [0, 1]
            assert broker.store.max_offset("orders", 0) == 0
            assert open_count(broker) == 2
            assert (await end(client, kept_half, COMMIT)).code == 0
            assert (await end(client, dropped_half, ROLLBACK)).code == 0
            (record,) = await orders(client)
            assert (record.body, record.queue_id, record.system_flag & 12) == (b"yes", 0, COMMIT)
            assert record.prepared_transaction_offset == int(kept_half.msg_id[-16:], 16)
            assert record.properties["TAGS"] == "t"
            assert record.properties["PGROUP"] == "p"
            assert not {"TRAN_MSG", "REAL_TOPIC", "REAL_QID"} & record.properties.keys()
            assert open_count(broker) == 0
            assert await kept(broker) == (2, broker.store.max_offset(names.HALF_DONE_TOPIC, 0))

    run(scenario)


def test_a_transaction_ends_only_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            half = await begin(client, b"once", clock)
            assert (await end(client, half, UNKNOWN)).code == 0
            assert open_count(broker) == 1
            assert [(await end(client, half, COMMIT)).code for _ in range(3)] == [0, 0, 0]
            assert (await end(client, half, ROLLBACK)).code == 1
            rolled_back = await begin(client, b"never", clock)
            await end(client, rolled_back, ROLLBACK)
            assert (await end(client, rolled_back, COMMIT)).code == 1
            assert [record.body for record in await orders(client)] == [b"once"]
        async with opened(tmp_path, clock) as (broker, client):
            # The broker still knows it, even after a restart.
            assert [(await end(client, again, COMMIT)).code for again in (half, rolled_back)] == [0, 1]
            assert [record.body for record in await orders(client)] == [b"once"]

    run(scenario)


def test_ends_that_fit_no_half_message_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            half = await begin(client, b"mine", clock)
            plain = await client.send("orders", b"plain")
            assert (await end(client, half, COMMIT, group="other")).code == 1
            assert (await end(client, half, COMMIT, queue_offset=7)).code == 1
            assert (await end(client, half, COMMIT, physical_offset=7)).code == 1
            assert (await end(client, half, COMMIT, physical_offset=-1)).code == 1
            assert (await end(client, half, COMMIT, physical_offset=2**62)).code == 1
            assert (await end(client, plain, COMMIT)).code == 1
            refused = await end(client, half, 5)
            assert (refused.code, "commitOrRollback" in (refused.remark or "")) == (1, True)
            assert open_count(broker) == 1
            assert [record.body for record in await orders(client)] == [b"plain"]
            assert (await end(client, half, COMMIT)).code == 0

    run(scenario)


@pytest.mark.parametrize("checked", [False, True])
def test_a_body_that_looks_like_a_half_message_is_not_one(tmp_path: Path, checked: bool) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            half = await begin(client, b"true", clock)
            if checked:
                await turn(broker, client, clock)
            stored = broker.store.record_at(int(half.msg_id[-16:], 16))
            assert stored is not None
            place = broker.store.figures().commit_log_max_offset + BODY_AT
            forged = stored[:PHYSICAL_OFFSET_AT] + place.to_bytes(8, "big") + stored[PHYSICAL_OFFSET_AT + 8 :]
            await client.send("orders", forged)
            outer = broker.store.record_at(place - BODY_AT)
            assert outer is not None and outer[BODY_AT : BODY_AT + len(forged)] == forged
            assert broker.store.record_at(place) is None, "no queue points there"
            assert (await end(client, half, COMMIT, physical_offset=place)).code == 1
            assert open_count(broker) == 1
            assert (await end(client, half, COMMIT)).code == 0

    run(scenario)


def test_an_unknown_transaction_is_asked_for_until_it_is_known(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            half = await begin(client, b"later", clock, TAGS="t")
            assert await turn(broker, client, clock, by_ms=INTERVAL_MS - 1) == []
            (first,) = await turn(broker, client, clock, by_ms=1)
            assert first.fields["transactionId"] == first.fields["msgId"] == "K-later"
            assert (first.fields["topic"], first.fields["bname"]) == ("orders", "broker-a")
            assert int(first.fields["tranStateTableOffset"]) == 1
            (record,) = decode_records(first.body)
            assert (record.topic, record.queue_id, record.body) == ("orders", 0, b"later")
            assert (record.queue_offset, record.message_id) == (1, first.fields["offsetMsgId"])
            assert record.properties["TRANSACTION_CHECK_TIMES"] == "1"
            assert record.properties["PGROUP"] == "p"
            assert (await end(client, first, UNKNOWN)).code == 0
            (second,) = await turn(broker, client, clock)
            assert decode_records(second.body)[0].properties["TRANSACTION_CHECK_TIMES"] == "2"
            # The answer to an older check counts, and so does the producer's own request.
            assert (await end(client, first, COMMIT)).code == 0
            assert (await end(client, second, COMMIT)).code == 0
            assert (await end(client, half, COMMIT)).code == 0
            assert [record.body for record in await orders(client)] == [b"later"]
            assert await turn(broker, client, clock) == []
            assert (await kept(broker))[0] == 3

    run(scenario)


def test_young_transactions_are_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            clock.advance_ms(INTERVAL_MS - 6_000)
            await begin(client, b"young", clock)
            assert await turn(broker, client, clock, by_ms=6_000) == []
            assert len(await turn(broker, client, clock)) == 1

    run(scenario)


def test_producers_take_turns_and_only_live_ones_are_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            async with connected(broker.address, "second") as second:
                await second.heartbeat("-", producers=("p", "other"))
                for number in range(10):
                    await begin(client, b"%d" % number, clock)
                await turn(broker, client, clock)
                await second.connection.call(GetMaxOffset(topic="orders", queue_id=0))
                assert [len(checks(client)), len(checks(second))] == [5, 5]
            await until(lambda: len(broker.node.clients.producers("p")) == 1)
            assert len(await turn(broker, client, clock)) == 10

    run(scenario)


def test_a_group_without_producers_is_checked_to_the_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock, transaction_check_max=3) as (broker, client):
            await begin(client, b"orphan", clock, PGROUP="gone")
            for _ in range(3):
                assert await turn(broker, client, clock) == []
                assert open_count(broker) == 1
            await turn(broker, client, clock)
            assert open_count(broker) == 0
            assert broker.store.max_offset(names.CHECKS_EXHAUSTED_TOPIC, 0) == 1

    run(scenario)


def test_after_fifteen_checks_the_message_is_set_aside(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            half = await begin(client, b"undecided", clock, TAGS="t")
            for number in range(15):
                (asked,) = await turn(broker, client, clock)
                (record,) = decode_records(asked.body)
                assert record.properties["TRANSACTION_CHECK_TIMES"] == str(number + 1)
            assert await turn(broker, client, clock) == []
            parked = (await client.pull("g", names.CHECKS_EXHAUSTED_TOPIC))[1]
            assert [record.body for record in parked] == [b"undecided"]
            assert parked[0].properties["REAL_TOPIC"] == "orders"
            assert (await end(client, half, COMMIT)).code == 1
            assert (await end(client, asked, COMMIT)).code == 1
            assert broker.store.max_offset("orders", 0) == 0
            assert (await kept(broker))[0] == broker.store.max_offset(names.HALF_TOPIC, 0)

    run(scenario)


def test_a_message_set_aside_can_be_checked_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock, transaction_check_max=1) as (broker, client):
            await begin(client, b"undecided", clock)
            plain = await client.send("orders", b"plain")
            await turn(broker, client, clock)
            await turn(broker, client, clock)
            (parked,) = (await client.pull("g", names.CHECKS_EXHAUSTED_TOPIC))[1]

            async def resume(message_id: str) -> int:
                return (await client.connection.call(ResumeCheckHalfMessage(msg_id=message_id))).code

            for foreign in (plain.msg_id, "0" * 32, "F" * 32, "short", ""):
                assert await resume(foreign) in (1, 29), foreign
            assert open_count(broker) == 0
            assert await resume(parked.message_id) == 0
            assert open_count(broker) == 1
        async with opened(tmp_path, clock, transaction_check_max=1) as (broker, client):
            (asked,) = await turn(broker, client, clock)
            (record,) = decode_records(asked.body)
            assert record.properties["TRANSACTION_CHECK_TIMES"] == "1"
            assert (await end(client, asked, COMMIT)).code == 0
            assert [record.body for record in await orders(client)] == [b"plain", b"undecided"]

    run(scenario)


def test_a_half_message_older_than_the_retention_is_set_aside(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            await begin(client, b"old", clock)
            assert await turn(broker, client, clock, by_ms=73 * 3_600_000) == []
            assert broker.store.max_offset(names.CHECKS_EXHAUSTED_TOPIC, 0) == 1

    run(scenario)


def test_the_immunity_time_delays_the_check_and_ends_the_producers_turn(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            slow = await begin(client, b"slow", clock, CHECK_IMMUNITY_TIME_IN_SECONDS="300")
            quick = await begin(client, b"quick", clock, CHECK_IMMUNITY_TIME_IN_SECONDS="300")
            for _ in range(10):
                assert await turn(broker, client, clock) == []
            # It was stored again meanwhile, so that the queue before it could be dropped.
            assert broker.store.max_offset(names.HALF_TOPIC, 0) > 2
            assert (await kept(broker))[0] >= 2
            assert (await end(client, quick, COMMIT)).code == 0
            (asked,) = await turn(broker, client, clock)
            (record,) = decode_records(asked.body)
            assert (record.body, record.properties["TRANSACTION_CHECK_TIMES"]) == (b"slow", "1")
            late = await end(client, slow, COMMIT)
            assert (late.code, "wait for the check" in (late.remark or "")) == (604, True)
            assert (await end(client, asked, COMMIT)).code == 0
            assert [record.body for record in await orders(client)] == [b"quick", b"slow"]

    run(scenario)


def test_no_producer_is_immune_for_ever(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        settings = replace(broker_options(tmp_path).broker, transaction_immunity_s_max=60)
        async with opened(tmp_path, clock, broker=settings, transaction_check_max=2) as (broker, client):
            await begin(client, b"eternal", clock, CHECK_IMMUNITY_TIME_IN_SECONDS=str(2**31 - 1))
            assert await turn(broker, client, clock) == []
            assert await turn(broker, client, clock, by_ms=60_000) != []
            while open_count(broker):
                await turn(broker, client, clock)
            assert await client.bodies("g", names.CHECKS_EXHAUSTED_TOPIC) == [b"eternal"]

    run(scenario)


def test_a_delay_begins_with_the_commit(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            half = await begin(client, b"slow", clock, DELAY="1")
            clock.advance_ms(5_000)
            assert (await end(client, half, COMMIT)).code == 0
            await broker.catch_up()
            assert broker.store.max_offset("orders", 0) == 0
            clock.advance_ms(1_000)
            await until(lambda: broker.store.max_offset("orders", 0) == 1)

    run(scenario)


def test_one_that_stays_open_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            await begin(client, b"stuck", clock)
            for number in range(50):
                await end(client, await begin(client, b"%d" % number, clock), COMMIT)
            assert (await kept(broker))[0] == 0
            await turn(broker, client, clock)
            half_offset, done_offset = await kept(broker)
            assert half_offset == broker.store.max_offset(names.HALF_TOPIC, 0) - 1
            assert done_offset == broker.store.max_offset(names.HALF_DONE_TOPIC, 0)

    run(scenario)


def test_open_transactions_survive_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            halves = [await begin(client, b"%d" % number, clock) for number in range(10)]
            for half in halves[::2]:
                await end(client, half, COMMIT)
            await turn(broker, client, clock)
        async with opened(tmp_path, clock) as (broker, client):
            assert open_count(broker) == 5
            # By the copy that the check made, and by the original, which a slow producer still has.
            assert (await end(client, halves[1], COMMIT)).code == 0
            asked = await turn(broker, client, clock)
            assert sorted(decode_records(frame.body)[0].body for frame in asked) == [b"3", b"5", b"7", b"9"]
            assert {
                decode_records(frame.body)[0].properties["TRANSACTION_CHECK_TIMES"] for frame in asked
            } == {"2"}
            for frame in asked:
                await end(client, frame, COMMIT)
            assert sorted(record.body for record in await orders(client)) == [
                b"%d" % number for number in range(10)
            ]

    run(scenario)


def test_a_kill_loses_no_half_message_and_shows_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        killed = tmp_path / "killed"
        async with opened(tmp_path / "first", clock) as (broker, client):
            halves = [await begin(client, b"%d" % number, clock) for number in range(40)]
            for half in halves[:10]:
                await end(client, half, COMMIT)
            await broker.master.housekeeping.persist_offsets()
            for half in halves[20:30]:
                await end(client, half, ROLLBACK)
            # A kill leaves the files as they are now.
            await asyncio.to_thread(copy_living_store, tmp_path / "first", killed)
        async with opened(killed, clock) as (broker, client):
            assert len(await orders(client)) == 10
            assert open_count(broker) == 20
            for half in halves[10:15]:
                assert (await end(client, half, COMMIT)).code == 0
            for half in halves[:10]:
                assert (await end(client, half, COMMIT)).code == 0
            for half in halves[20:30]:
                assert (await end(client, half, COMMIT)).code == 1
            asked = await turn(broker, client, clock)
            assert len(asked) == 15
            for frame in asked:
                assert (await end(client, frame, COMMIT)).code == 0
            found = sorted(int(record.body) for record in await orders(client))
            assert found == [*range(20), *range(30, 40)]

    run(scenario)


def test_a_copy_whose_origin_was_not_marked_counts_once(tmp_path: Path) -> None:
    """As after a kill between the two writes: the copy names its original."""

    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        killed = tmp_path / "killed"
        async with opened(tmp_path / "first", clock) as (broker, client):
            half = await begin(client, b"x", clock)
            (copy,) = await turn(broker, client, clock)
            physical_offset = int(copy.fields["commitLogOffset"])
            stored = broker.store.record_at(physical_offset)
            assert stored is not None
            await asyncio.to_thread(copy_living_store, tmp_path / "first", killed)
        with (killed / "commitlog" / f"{0:020}").open("r+b") as log:
            log.seek(physical_offset + len(stored))
            log.write(bytes(1_000))
        async with opened(killed, clock) as (broker, client):
            assert open_count(broker) == 1
            assert (await end(client, half, COMMIT)).code == 0
            assert (await end(client, copy, COMMIT)).code == 0
            assert [record.body for record in await orders(client)] == [b"x"]

    run(scenario)


def test_stored_offsets_may_disagree_with_the_log(tmp_path: Path) -> None:
    """The offsets were lost, or a power failure took the end of the log but not the offsets."""

    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            done, left = [await begin(client, body, clock) for body in (b"done", b"left")]
            await end(client, done, COMMIT)
        key = f"{names.HALF_TOPIC}@{names.TRANSACTION_GROUP}@0"
        done_key = f"{names.HALF_DONE_TOPIC}@{names.TRANSACTION_GROUP}@0"
        journal = Journal.open(tmp_path / "journal")
        await journal.write([("offsets", key, None), ("offsets", done_key, None)])
        await journal.close()
        async with opened(tmp_path, clock) as (broker, client):
            assert open_count(broker) == 1
            assert (await end(client, left, COMMIT)).code == 0
        journal = Journal.open(tmp_path / "journal")
        assert journal.get("offsets", key) == b'{"0":2}'
        await journal.write([("offsets", key, b'{"0":99}')])
        await journal.close()
        async with opened(tmp_path, clock) as (broker, client):
            assert await kept(broker) == (2, broker.store.max_offset(names.HALF_DONE_TOPIC, 0))
            assert (await end(client, await begin(client, b"new", clock), COMMIT)).code == 0
            assert (await kept(broker))[0] == 3

    run(scenario)


def test_half_messages_over_the_limit_are_refused_as_busy(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        settings = replace(broker_options(tmp_path).broker, transactions_open_max=3)
        async with opened(tmp_path, clock, broker=settings) as (_, client):
            halves = [await begin(client, b"%d" % number, clock) for number in range(3)]
            command = SendMessageV2(
                producer_group="p", topic="orders", queue_id=0, properties="TRAN_MSG\x01true\x02"
            )
            refused = await client.connection.call(command, b"one too many")
            assert (refused.code, "transactions_open_max" in (refused.remark or "")) == (2, True)
            await end(client, halves[0], ROLLBACK)
            assert (await client.connection.call(command, b"now")).code == 0

    run(scenario)


def test_batches_and_retries_are_no_half_messages(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            properties = b"TRAN_MSG\x01true\x02"
            part = (4 * 5 + 1 + 2 + len(properties)).to_bytes(4, "big") + bytes(12) + (1).to_bytes(4, "big")
            batch = SendBatchMessage(producer_group="p", topic="orders", queue_id=0, batch=True)
            body = part + b"x" + len(properties).to_bytes(2, "big") + properties
            assert (await client.connection.call(batch, body)).code == 13
            again = SendMessageV2(
                producer_group="CLIENT_INNER_PRODUCER",
                topic="%RETRY%g",
                queue_id=0,
                properties="TRAN_MSG\x01true\x02DELAY\x011\x02RETRY_TOPIC\x01orders",
                reconsume_times=1,
                max_reconsume_times=16,
            )
            assert (await client.connection.call(again, b"again")).code == 0
            assert open_count(broker) == 0
            clock.advance_ms(1_000)
            await until(lambda: broker.store.max_offset("%RETRY%g", 0) == 1)

    run(scenario)


def test_a_half_message_without_its_group_gets_the_senders(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (_, client):
            command = SendMessageV2(
                producer_group="p", topic="orders", queue_id=0, properties="TRAN_MSG\x01true"
            )
            half = (await client.connection.call(command, b"x")).check().header(Sent)
            assert (await end(client, half, COMMIT)).code == 0
            assert len(await orders(client)) == 1

    run(scenario)
