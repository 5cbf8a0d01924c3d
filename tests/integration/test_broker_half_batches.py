"""Half messages that hold a batch: a commit splits them, and a restart finishes it after a kill."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from metaq._core import Clock, Frame, Record, decode_records
from metaq.broker import Broker
from metaq.client.message import Outgoing, encode_batch
from metaq.protocol import names
from metaq.protocol.commands.messages import SendMessageV2, Sent
from metaq.protocol.commands.offsets import GetMaxOffset
from metaq.protocol.reply import Reply
from tests.integration.test_broker_transactions import (
    COMMIT,
    INTERVAL_MS,
    ROLLBACK,
    START_MS,
    checks,
    end,
    open_count,
    opened,
    orders,
)
from tests.integration.test_broker_transactions import begin as begin_one
from tests.support.broker_cluster import Client, copy_living_store
from tests.support.waiting import run

MINUTE_MS = 60_000


async def ask(
    client: Client, clock: Clock, bodies: Sequence[bytes], *, batch: bytes | None = None, **more: str
) -> Reply:
    """Sends a batch as one half message. Properties in capitals are the half's, others its messages'."""
    inner = {name.lower(): value for name, value in more.items() if name.islower()}
    messages = [
        Outgoing(
            "orders", body, {"UNIQ_KEY": f"K-{body.decode()}", **{k.upper(): v for k, v in inner.items()}}
        )
        for body in bodies
    ]
    given = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": f"H-{len(bodies)}"}
    given |= {"METAQ_HALF_BATCH": str(len(bodies))} | {k: v for k, v in more.items() if k.isupper()}
    command = SendMessageV2(
        producer_group="p",
        topic="orders",
        queue_id=1,
        sys_flag=4,
        born_timestamp=clock.now_ms(),
        properties="".join(f"{name}\x01{value}\x02" for name, value in given.items() if value),
    )
    return await client.connection.call(command, encode_batch(messages) if batch is None else batch)


async def begin(client: Client, clock: Clock, bodies: Sequence[bytes], **more: str) -> Sent:
    return (await ask(client, clock, bodies, **more)).check().header(Sent)


def end_of(broker: Broker, record: Record) -> int:
    stored = broker.store.record_at(record.physical_offset)
    assert stored is not None
    return record.physical_offset + len(stored)


async def shown(client: Client) -> list[Record]:
    return (await client.pull("g", "orders", queue_id=1))[1]


async def look(broker: Broker, client: Client, clock: Clock, by_ms: int) -> list[Frame]:
    """Lets time pass in steps of the check interval; returns the checks that came meanwhile."""
    before = len(checks(client))
    for _ in range(by_ms // INTERVAL_MS):
        clock.advance_ms(INTERVAL_MS)
        await broker.master.transactions.check()
    await client.connection.call(GetMaxOffset(topic="orders", queue_id=0))
    return checks(client)[before:]


def test_a_commit_shows_each_of_the_messages_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            yes = await begin(client, clock, [b"a", b"b", b"c"], tags="t", keys="k1 k2")
            no = await begin(client, clock, [b"x", b"y"])
            assert open_count(broker) == 2 and await shown(client) == []
            assert [(await end(client, yes, COMMIT)).code for _ in range(3)] == [0, 0, 0]
            assert (await end(client, no, ROLLBACK)).code == 0
            records = await shown(client)
            assert [record.body for record in records] == [b"a", b"b", b"c"]
            assert [record.queue_offset for record in records] == [0, 1, 2]
            for record in records:
                assert record.system_flag & 12 == COMMIT
                assert record.prepared_transaction_offset == int(yes.msg_id[-16:], 16)
                assert record.properties["UNIQ_KEY"] == f"K-{record.body.decode()}"
                assert (record.properties["TAGS"], record.properties["KEYS"]) == ("t", "k1 k2")
                assert not {"TRAN_MSG", "METAQ_HALF_BATCH", "PGROUP"} & record.properties.keys()
            assert await orders(client) == [] and open_count(broker) == 0

    run(scenario)


def test_a_half_batch_that_cannot_be_committed_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            sound = encode_batch([Outgoing("orders", b"a", {"UNIQ_KEY": "K"})])
            wrong = [
                await ask(client, clock, [b"a"], METAQ_HALF_BATCH="2"),
                await ask(client, clock, [b"a"], METAQ_HALF_BATCH="many"),
                await ask(client, clock, [b"a"], batch=b""),
                await ask(client, clock, [b"a"], batch=b"no batch"),
                await ask(client, clock, [b"a"], batch=sound[:-1]),
                await ask(client, clock, [b"a", b"b", b"a"]),
                await ask(client, clock, [b"a"], tran_msg="true"),
                await ask(client, clock, [b"a"], uniq_key=""),
                await ask(client, clock, [b"a"], timer_delay_ms="soon"),
                await ask(client, clock, [b"a"], keys="k" * 32_600),
            ]
            assert {reply.code for reply in wrong} == {13}, [reply.remark for reply in wrong]
            assert open_count(broker) == 0
            assert (await ask(client, clock, [b"a"], batch=sound)).code == 0

    run(scenario)


def test_messages_inside_wait_for_their_time_from_the_commit_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            now, later = (
                await begin(client, clock, [b"now"]),
                await begin(client, clock, [b"l1", b"l2"], delay="2"),
            )
            for half in (now, later):
                assert (await end(client, half, COMMIT)).code == 0
            assert [record.body for record in await shown(client)] == [b"now"]
            clock.advance_ms(5_001)
            assert await asyncio.to_thread(broker.master.plane.catch_up, 60_000)
            assert [record.body for record in await shown(client)] == [b"now", b"l1", b"l2"]

    run(scenario)


def test_producers_are_checked_when_the_age_of_a_half_batch_has_doubled(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client):
            half = await begin(client, clock, [b"a", b"b"])
            assert await look(broker, client, clock, 2 * MINUTE_MS) == []
            (first,) = await look(broker, client, clock, MINUTE_MS)
            (record,) = decode_records(first.body)
            assert record.properties["METAQ_HALF_FIRST"] == str(half.queue_offset)
            (second,) = await look(broker, client, clock, 4 * MINUTE_MS)
            assert decode_records(second.body)[0].properties["METAQ_HALF_FIRST"] == str(half.queue_offset)
            asked = await look(broker, client, clock, 24 * 60 * MINUTE_MS)
            assert len(asked) in (7, 8) and open_count(broker) == 1
            assert (await end(client, asked[-1], COMMIT)).code == 0
            assert [record.body for record in await shown(client)] == [b"a", b"b"]

    run(scenario, timeout_s=120)


@pytest.mark.parametrize("left", range(5))
def test_a_kill_in_the_middle_of_a_commit_shows_each_message_once(tmp_path: Path, left: int) -> None:
    """Makes the log look as after a kill: only the first messages, and no note that the commit is done."""

    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        killed = tmp_path / "killed"
        async with opened(tmp_path / "first", clock) as (broker, client):
            half = await begin(client, clock, [b"a", b"b", b"c", b"d"])
            assert (await end(client, half, COMMIT)).code == 0
            records = await shown(client)
            ends = [end_of(broker, record) for record in records]
            await asyncio.to_thread(copy_living_store, tmp_path / "first", killed)
        cut = ends[left - 1] if left else records[0].physical_offset
        with (killed / "commitlog" / f"{0:020}").open("r+b") as log:
            log.seek(cut)
            log.write(bytes(1_000))
        async with opened(killed, clock) as (broker, client):
            assert open_count(broker) == (1 if left == 0 else 0)
            assert len(await shown(client)) == (0 if left == 0 else 4)
            assert (await end(client, half, COMMIT)).code == 0
            assert [record.body for record in await shown(client)] == [b"a", b"b", b"c", b"d"]
            assert broker.store.max_offset(names.HALF_DONE_TOPIC, 0) == 1
        async with opened(killed, clock) as (broker, client):
            assert (await end(client, half, COMMIT)).code == 0
            assert len(await shown(client)) == 4

    run(scenario)


def test_a_driver_ends_it_by_its_first_offset_after_copies_and_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        killed = tmp_path / "killed"
        async with opened(tmp_path / "first", clock) as (broker, client):
            half = await begin(client, clock, [b"a", b"b"])
            assert len(await look(broker, client, clock, 15 * MINUTE_MS)) == 3
        async with opened(tmp_path / "first", clock) as (broker, client):
            assert open_count(broker) == 1
            assert (await end(client, half, COMMIT)).code == 0
            records = await shown(client)
            assert [record.body for record in records] == [b"a", b"b"] and open_count(broker) == 0
            cut = end_of(broker, records[0])
            await asyncio.to_thread(copy_living_store, tmp_path / "first", killed)
        with (killed / "commitlog" / f"{0:020}").open("r+b") as log:
            log.seek(cut)
            log.write(bytes(1_000))
        async with opened(killed, clock) as (broker, client):
            assert open_count(broker) == 0, "the commit that a kill cut short names the first place"
            assert (await end(client, half, COMMIT)).code == 0
            assert [record.body for record in await shown(client)] == [b"a", b"b"]

    run(scenario)


def test_a_producer_cannot_pass_its_half_message_off_as_a_copy_of_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        notes = ("METAQ_HALF_BEFORE", "METAQ_HALF_FIRST", "TRAN_PREPARED_QUEUE_OFFSET")
        async with opened(tmp_path, clock) as (broker, client):
            first = await begin(client, clock, [b"a"])
            for number, note in enumerate(notes):
                await begin(client, clock, [b"x%d" % number], **{note: str(first.queue_offset)})
        async with opened(tmp_path, clock) as (broker, client):
            assert open_count(broker) == 1 + len(notes)
            assert (await end(client, first, COMMIT)).code == 0
            assert [record.body for record in await shown(client)] == [b"a"]
            assert open_count(broker) == len(notes)

    run(scenario)


def test_a_kill_before_a_single_commit_is_noted_shows_it_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        killed = tmp_path / "killed"
        async with opened(tmp_path / "first", clock) as (broker, client):
            halves = [await begin_one(client, body, clock) for body in (b"one", b"two")]
            for half in halves:
                assert (await end(client, half, COMMIT)).code == 0
            cut = end_of(broker, (await orders(client))[-1])
            await asyncio.to_thread(copy_living_store, tmp_path / "first", killed)
        with (killed / "commitlog" / f"{0:020}").open("r+b") as log:
            log.seek(cut)
            log.write(bytes(1_000))
        async with opened(killed, clock) as (broker, client):
            assert open_count(broker) == 0
            assert [(await end(client, half, COMMIT)).code for half in halves] == [0, 0]
            assert [record.body for record in await orders(client)] == [b"one", b"two"]

    run(scenario)
