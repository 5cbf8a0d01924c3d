"""Open transactions through the administration client: listed, and ended by hand."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from metaq._core import Clock
from metaq.admin import Admin, OpenTransaction, aio
from metaq.errors import NoSuchMessage, NotSupported, UsageError
from metaq.protocol import names
from metaq.protocol.errors import Refused
from tests.integration.admin.conftest import Served
from tests.integration.test_broker_transactions import (
    COMMIT,
    INTERVAL_MS,
    ROLLBACK,
    START_MS,
    begin,
    end,
    open_count,
    opened,
    orders,
    turn,
)
from tests.support.broker_cluster import connected
from tests.support.waiting import run


def test_operators_requests_may_be_forbidden(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        closed = opened(tmp_path, clock, operator_requests="none")
        async with closed as (broker, client), aio.Admin("127.0.0.1:1") as admin:
            half = await begin(client, b"a", clock)
            for call in (
                admin.transactions.list(broker=broker.address),
                admin.transactions.decide(half.msg_id, "rollback", broker=broker.address),
                admin.delayed.list(broker=broker.address),
            ):
                with pytest.raises(Refused, match="operator_requests"):
                    await call
            assert open_count(broker) == 1

    run(scenario)


def test_a_number_of_checks_that_a_producer_made_up_does_not_hide_the_list(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client), aio.Admin("127.0.0.1:1") as admin:
            await begin(client, b"a", clock, UNIQ_KEY="A", TRANSACTION_CHECK_TIMES="9" * 5_000)
            found = await admin.transactions.list(broker=broker.address)
            assert [(each.id, each.checks) for each in found.transactions] == [("A", 0)]

    run(scenario)


def test_open_transactions_are_listed_oldest_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client), aio.Admin("127.0.0.1:1") as admin:
            address = broker.address
            first = await begin(client, b"x" * 900, clock, UNIQ_KEY="A", KEYS="k1 k2", TAGS="t")
            clock.advance_ms(10)
            await begin(client, b"b", clock, group="q", UNIQ_KEY="B")
            clock.advance_ms(10)
            await begin(client, b"c", clock, UNIQ_KEY="C")
            found = await admin.transactions.list(broker=address)
            assert (found.total, found.is_truncated) == (3, False)
            assert [each.id for each in found.transactions] == ["A", "B", "C"]
            one = found.transactions[0]
            assert one == OpenTransaction(
                address,
                "A",
                "A",
                first.msg_id,
                "orders",
                "p",
                ("k1", "k2"),
                "t",
                START_MS,
                START_MS,
                one.size_bytes,
                0,
                15,
                START_MS + INTERVAL_MS,
            )
            assert one.size_bytes > 900
            other = found.transactions[1]
            assert (other.producer_group, other.transaction_id) == ("q", "B")
            assert await admin.transactions.find(first.msg_id, broker=address) == one
            part = await admin.transactions.list(limit=1, broker=address)
            assert ([each.id for each in part.transactions], part.total) == (["A"], 3)
            assert part.is_truncated
            of_q = await admin.transactions.list(producer_group="q", broker=address)
            assert ([each.id for each in of_q.transactions], of_q.total) == (["B"], 1)
            # A check stores each half message again, at another place.
            assert await turn(broker, client, clock)
            checked = await admin.transactions.list(broker=address)
            assert [each.id for each in checked.transactions] == ["A", "B", "C"]
            assert [each.checks for each in checked.transactions] == [1, 1, 1]
            assert checked.transactions[0].offset_id != first.msg_id
            assert checked.transactions[0].began_ms == START_MS
            again = await admin.transactions.find(first.msg_id, broker=address)
            assert again == checked.transactions[0]
            assert again.next_check_ms is not None and again.next_check_ms > clock.now_ms()

    run(scenario)


def test_an_operator_ends_transactions(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with opened(tmp_path, clock) as (broker, client), aio.Admin("127.0.0.1:1") as admin:
            address = broker.address
            yes = await begin(client, b"yes", clock)
            no = await begin(client, b"no", clock)
            await turn(broker, client, clock)
            decided = await admin.transactions.decide(yes.msg_id.lower(), "commit", broker=address)
            assert (decided.id, decided.checks) == ("K-yes", 1)
            (newest,) = (await admin.transactions.list(broker=address)).transactions
            await admin.transactions.decide(newest.offset_id, "rollback", broker=address)
            assert open_count(broker) == 0
            (record,) = await orders(client)
            assert (record.body, record.properties.get("TRAN_MSG")) == (b"yes", None)
            # The producer learns what became of its transaction.
            assert (await end(client, yes, COMMIT)).code == 0
            refused = await end(client, no, COMMIT)
            assert "rolled back before" in (refused.remark or "")
            for offset_id, how in ((yes.msg_id, "committed"), (no.msg_id, "rolled back")):
                with pytest.raises(NoSuchMessage, match=f"it was {how} before"):
                    await admin.transactions.decide(offset_id, "commit", broker=address)
            assert [record.body for record in await orders(client)] == [b"yes"]
        # Nothing is open again after a restart.
        async with opened(tmp_path, clock) as (broker, client), aio.Admin("127.0.0.1:1") as admin:
            assert (await admin.transactions.list(broker=broker.address)).total == 0
            assert [record.body for record in await orders(client)] == [b"yes"]

    run(scenario)


def test_a_transaction_that_is_not_open_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(START_MS)
        async with (
            opened(tmp_path, clock, transaction_check_max=0) as (broker, client),
            aio.Admin("127.0.0.1:1") as admin,
        ):
            address = broker.address
            given_up = await begin(client, b"given up", clock)
            await turn(broker, client, clock)
            with pytest.raises(NoSuchMessage, match=f"given up.*{names.CHECKS_EXHAUSTED_TOPIC}"):
                await admin.transactions.decide(given_up.msg_id, "commit", broker=address)
            rolled_back = await begin(client, b"no", clock)
            assert (await end(client, rolled_back, ROLLBACK)).code == 0
            with pytest.raises(NoSuchMessage, match="rolled back before"):
                await admin.transactions.find(rolled_back.msg_id, broker=address)
            plain = await client.send("orders", b"plain")
            elsewhere = "7F000002" + rolled_back.msg_id[8:]
            for offset_id in (plain.msg_id, elsewhere, "0" * 32):
                with pytest.raises(NoSuchMessage, match="no half message is stored there"):
                    await admin.transactions.decide(offset_id, "rollback", broker=address)
            for bad in (
                admin.transactions.decide(plain.msg_id, "perhaps", broker=address),  # type: ignore[arg-type]
                admin.transactions.find("K-no", broker=address),
                admin.transactions.list(limit=0),
            ):
                with pytest.raises(UsageError):
                    await bad

    run(scenario)


def test_a_cluster_and_a_broker_that_does_not_report(cluster: Served, admin: Admin) -> None:
    if cluster.is_metaq:
        admin.topics.create("orders", queues=1)

        async def send() -> str:
            async with connected(cluster.broker) as client:
                return (await begin(client, b"x", Clock())).msg_id

        offset_id = asyncio.run(send())
        assert offset_id in [each.offset_id for each in admin.transactions.list().transactions]
        assert admin.transactions.decide(offset_id, "rollback").topic == "orders"
        return
    found = admin.transactions.list()
    assert (found.transactions, found.total) == ((), None)
    assert ["does not report open transactions" in text for text in found.missing] == [True]
    with pytest.raises(NotSupported, match="not a MetaQ broker"):
        admin.transactions.decide("7F00000100002A9F0000000000000000", "commit")
