"""The live figures of real brokers: rows, history, a broker that dies, many viewers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from metaq.admin import aio
from metaq.admin.results import TopicFigures
from metaq.client.session.routes import Queue
from metaq.console.console import Console
from metaq.console.live.changes import changed_cluster
from metaq.console.live.live import Live, Tick
from metaq.console.settings import ConsoleSettings
from metaq.protocol.bodies import RegisterBrokerBody
from metaq.protocol.commands.cluster import RegisterBroker
from tests.support.broker_cluster import broker_options, connected, started_broker, started_nameserver
from tests.support.clients import create_topic, send
from tests.support.counted_requests import count_requests
from tests.support.waiting import run, until


@asynccontextmanager
async def watching(nameserver: str, folder: Path, poll_interval_s: float = 0.1) -> AsyncIterator[Live]:
    settings = ConsoleSettings(nameserver, folder, poll_interval_s=poll_interval_s)
    async with aio.Admin(nameserver, timeout=5.0, partial=True) as admin:
        live = Live(admin, settings)
        await live.start()
        try:
            yield live
        finally:
            await live.stop()


def topic(live: Live, name: str) -> TopicFigures | None:
    table = live.topics.value
    return None if table is None or name not in table.rows else table.rows[name].figures


def test_figures_of_a_cluster(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_nameserver() as nameserver:
            address = nameserver.address
            async with (
                started_broker(broker_options(tmp_path / "store", address)) as broker,
                watching(address, tmp_path) as live,
            ):
                await create_topic(broker.address, "orders")
                for number in range(3):
                    await send(broker.address, "orders", str(number))
                async with aio.Admin(address) as admin:
                    await admin.groups.create("billing")
                    await create_topic(broker.address, "%DLQ%billing")
                    await send(broker.address, "%DLQ%billing", "x")
                    await admin.offsets.commit("billing", {Queue("orders", "broker-a", 0): 1})
                assert await live.fresh(60)
                found = topic(live, "orders")
                assert found is not None and found.messages == 3
                assert live.groups.value is not None and live.dead_letters.value is not None
                assert live.groups.value.rows["billing"].figures.lag == 2
                assert live.dead_letters.value["billing"].waiting == 1
                assert live.health.value is not None and live.health.value.healthy
                assert live.brokers.value is not None and list(live.brokers.value) == ["broker-a"]
                assert live.totals.value is not None and live.totals.value.lag.whole == 2
                assert live.totals.value.dead_letters.whole == 1
                assert live.history.series("group", "billing", "lag").values[-1] == 2
                assert live.history.series("cluster", "", "lag").values[-1] == 2
                assert live.topics.error is None and not live.topics.is_stale
                rows = await live.look_at_topics(["orders", "missing"])
                assert list(rows) == ["orders"]
                async with aio.Admin(address) as admin:
                    await admin.topics.delete("orders")
                await until(lambda: topic(live, "orders") is None)

    run(scenario)


def test_a_broker_that_dies_keeps_its_rows_with_their_age(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_nameserver() as nameserver:
            address = nameserver.address
            first, second = (broker_options(tmp_path / name, address) for name in ("broker-a", "broker-b"))
            second = replace(second, broker=replace(second.broker, name="broker-b"))
            async with (
                started_broker(first) as one,
                watching(address, tmp_path) as live,
                started_broker(second) as other,
            ):
                await create_topic(one.address, "both")
                for name in ("both", "of-b"):
                    await create_topic(other.address, name)
                    await send(other.address, name, "x")
                await until(lambda: (found := topic(live, "of-b")) is not None and found.messages == 1)
                await until(lambda: (found := topic(live, "both")) is not None and len(found.brokers) == 2)
                assert live.topics.value is not None
                assert live.topics.value.rows["of-b"].stale_ms is None
                await other.stop()

                def is_away() -> bool:
                    assert live.topics.value is not None
                    return live.topics.value.rows["of-b"].stale_ms is not None

                await until(is_away)
                rows = live.topics.value.rows
                assert rows["of-b"].figures.messages == 1, "the last value stays"
                assert rows["both"].partial and rows["both"].missing == ("broker-b",)
                assert rows["both"].figures.messages == 0
                await until(lambda: live.brokers.value is not None and live.brokers.value["broker-b"].error)
                await one.stop()
                await until(lambda: live.topics.error is not None)
                assert live.topics.is_stale and live.topics.failing_since_ms is not None
                assert live.topics.value.rows["both"].stale_ms is not None
                assert live.dead_letters.is_stale and live.groups.is_stale

    run(scenario)


def test_a_lag_has_a_past_with_gaps_and_a_time_to_clear(tmp_path: Path) -> None:
    now_ms = 1_800_000_000_000

    async def poll(live: Live) -> None:
        nonlocal now_ms
        now_ms += 10_000
        await live.poll()

    async def scenario() -> None:
        async with started_nameserver() as nameserver:
            address = nameserver.address
            async with (
                started_broker(broker_options(tmp_path / "store", address)) as broker,
                aio.Admin(address, partial=True) as admin,
            ):
                live = Live(admin, ConsoleSettings(address, tmp_path), lambda: now_ms)
                await create_topic(broker.address, "orders")
                await asyncio.gather(*(send(broker.address, "orders", "x") for _ in range(60)))
                await admin.groups.create("billing")
                for place in (0, 20, 40):
                    await admin.offsets.commit("billing", {Queue("orders", "broker-a", 0): place})
                    await poll(live)
                assert live.history.series("group", "billing", "lag").values[-4:] == [None, 60, 40, 20]
                assert live.groups.value is not None
                trend = live.groups.value.rows["billing"].trend
                assert (trend.direction, trend.clear_ms) == ("falling", 10_000)
                await broker.stop()
                await poll(live)
                await poll(live)
                assert live.groups.failing_since_ms == now_ms - 10_000
                assert live.history.series("group", "billing", "lag").values[-4:] == [40, 20, None, None]
                assert live.history.series("cluster", "", "lag").values[-2:] == [None, None]
                assert live.history.series("broker", "broker-a", "in").values[-1] is None

    run(scenario)


def test_a_broker_that_hangs_makes_rows_partial(tmp_path: Path) -> None:
    async def scenario() -> None:
        silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        async with silent, started_nameserver() as nameserver:
            address = nameserver.address
            async with (
                started_broker(broker_options(tmp_path / "store", address)) as broker,
                connected(address) as client,
                aio.Admin(address, timeout=0.5, partial=True) as admin,
            ):
                await create_topic(broker.address, "orders")
                command = RegisterBroker("broker-b", f"127.0.0.1:{port}", "DefaultCluster", 0)
                (await client.connection.call(command, RegisterBrokerBody().encode())).check()
                live = Live(admin, ConsoleSettings(address, tmp_path))
                await live.poll()
                assert live.topics.error is None and live.topics.value is not None
                assert [failure.broker for failure in live.topics.value.failures] == ["broker-b"]
                assert live.topics.value.rows["orders"].partial
                assert live.topics.value.rows["orders"].stale_ms is None
                assert live.brokers.value is not None and live.totals.value is not None
                assert live.brokers.value["broker-a"].error is None
                assert live.brokers.value["broker-b"].error is not None
                assert live.totals.value.in_per_second.is_partial

    run(scenario)


def test_ten_viewers_cost_no_more_than_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def first_three(live: Live) -> list[Tick]:
        seen = []
        async for tick in live.ticks():
            seen.append(tick)
            if len(seen) == 3:
                break
        return seen

    async def scenario() -> None:
        async with started_nameserver() as nameserver:
            address = nameserver.address
            async with (
                started_broker(broker_options(tmp_path / "store", address)),
                watching(address, tmp_path) as live,
            ):
                asked = count_requests(monkeypatch)
                found = await asyncio.gather(*(first_three(live) for _ in range(10)))
                polls = found[0][-1].number
                assert all(ticks == found[0] for ticks in found)
                assert [tick.ok for tick in found[0]] == [True, True, True]
                assert asked["GetTopicFigures"] <= polls + 1 and asked["GetGroupFigures"] <= polls + 1

    run(scenario)


def test_a_change_has_the_cluster_polled_soon(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_nameserver() as nameserver:
            address = nameserver.address
            async with (
                started_broker(broker_options(tmp_path / "store", address)) as broker,
                watching(address, tmp_path, 600.0) as live,
            ):
                await until(lambda: live.topics.value is not None)
                await create_topic(broker.address, "orders")
                app, settings = Starlette(), ConsoleSettings(address, tmp_path)
                app.state.console = Console(settings, live._admin, live, None, None)  # type: ignore[arg-type]
                for _ in range(100):
                    changed_cluster(Request({"type": "http", "app": app}))
                await until(lambda: topic(live, "orders") is not None)
                assert live._begun <= 3, "many changes make one poll"

    run(scenario)


def test_a_poll_that_fails_inside_is_not_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[str] = []

    def fail_once(live: Live, now_ms: int) -> None:
        monkeypatch.undo()
        failed.append("once")
        raise RuntimeError("a fault of the console")

    async def scenario() -> None:
        monkeypatch.setattr(Live, "_take_totals", fail_once)
        async with started_nameserver() as nameserver, watching(nameserver.address, tmp_path) as live:
            async for tick in live.ticks():
                assert tick.number > 1
                break
            assert failed == ["once"]

    run(scenario)


def test_ticks_end_when_the_console_stops(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching("127.0.0.1:1", tmp_path, 60.0) as live:
            waiting = asyncio.create_task(count(live))
            await until(lambda: live.topics.error is not None)
            assert live.topics.value is None and not live.topics.is_stale, "nothing was ever known"
            assert live.totals.value is not None and live.totals.value.topics is None
        assert await waiting <= 1

    async def count(live: Live) -> int:
        return len([tick async for tick in live.ticks()])

    run(scenario)
