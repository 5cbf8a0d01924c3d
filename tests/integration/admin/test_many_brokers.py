"""Several brokers, of which one may be away, and how many questions are asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from metaq.admin import aio
from metaq.admin.calls import AT_ONCE_MAX, in_parallel
from metaq.errors import MetaqError
from metaq.protocol.bodies import RegisterBrokerBody, TopicConfig, TopicConfigTable
from metaq.protocol.commands.cluster import RegisterBroker
from metaq.protocol.errors import Unreachable
from tests.support.broker_cluster import broker_options, started_broker, started_nameserver
from tests.support.clients import create_topic, send
from tests.support.counted_requests import count_requests
from tests.support.patient import Connection
from tests.support.processes import free_port
from tests.support.waiting import run, until


@asynccontextmanager
async def half_a_cluster(directory: Path) -> AsyncIterator[str]:
    """A name server with broker-a, and with broker-b, which does not answer."""
    async with started_nameserver() as nameserver:
        address = nameserver.address
        async with started_broker(broker_options(directory, address)):
            connection = await Connection.open(address)
            names = ("orders", "TBW102")
            topics = {name: TopicConfig(topic_name=name) for name in names}
            body = RegisterBrokerBody(
                topic_config_serialize_wrapper=TopicConfigTable(topic_config_table=topics)
            )
            command = RegisterBroker("broker-b", f"127.0.0.1:{free_port()}", "DefaultCluster", 0)
            (await connection.call(command, body.encode())).check()
            try:
                yield address
            finally:
                await connection.close()


def test_a_broker_that_is_away_is_an_error_or_a_failure(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with half_a_cluster(tmp_path) as nameserver:
            async with aio.Admin(nameserver) as strict:
                with pytest.raises(Unreachable):
                    await strict.groups.list()
                with pytest.raises(Unreachable):
                    await strict.topics.create("orders")
            async with aio.Admin(nameserver, partial=True) as admin:
                groups = await admin.groups.list()
                assert {group.name for group in groups.groups} >= {"TOOLS_CONSUMER"}
                assert [failure.broker for failure in groups.failures] == ["broker-b"]
                topics = await admin.topics.figures()
                assert "TBW102" in {topic.name for topic in topics.topics}
                assert [failure.broker for failure in topics.failures] == ["broker-b"]
                figures = await admin.groups.figures()
                assert {group.name for group in figures.groups} == {group.name for group in groups.groups}
                assert [failure.broker for failure in figures.failures] == ["broker-b"]
                progress = await admin.groups.progress("g")
                assert (progress.queues, [f.broker for f in progress.failures]) == ((), ["broker-b"])
                with pytest.raises(Unreachable):
                    await admin.topics.show("orders")  # Only broker-b has it: there is nothing to show.
                with pytest.raises(Unreachable):
                    await admin.groups.create("g")  # A change is never made by halves without a word.
                cluster = await admin.brokers.cluster()
                assert [(b.name, b.error is None, b.kind) for b in cluster.brokers] == [
                    ("broker-a", True, "metaq"),
                    ("broker-b", False, None),
                ]

    run(scenario)


def test_a_timeline_names_the_broker_that_is_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with half_a_cluster(tmp_path) as nameserver, aio.Admin(nameserver, partial=True) as admin:
            address = (await admin.brokers.cluster()).brokers[0].address
            await create_topic(address, "orders")
            await send(address, "orders", "x", UNIQ_KEY="00FF")
            await until(lambda: has_two_brokers(admin))
            found = await admin.traces.timeline("00FF", "orders")
            assert [event.kind for event in found.events] == ["born", "stored"]
            assert [failure.broker for failure in found.failures] == ["broker-b"]
            assert any(note.startswith("broker broker-b did not answer: ") for note in found.notes)

    async def has_two_brokers(admin: aio.Admin) -> bool:
        return len((await admin.topics.route("orders")).brokers) == 2

    run(scenario)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    return count_requests(monkeypatch)


def test_showing_one_group_does_not_download_all(tmp_path: Path, asked: Counter[str]) -> None:
    async def scenario() -> None:
        async with started_nameserver() as nameserver:
            address = nameserver.address
            async with started_broker(broker_options(tmp_path, address)), aio.Admin(address) as admin:
                await asyncio.gather(*(admin.groups.create(f"g{number}") for number in range(30)))
                asked.clear()
                await admin.groups.show("g7")
                assert asked["GetAllSubscriptionGroupConfig"] == 0
                assert asked["GetSubscriptionGroupConfig"] == 1
                assert asked.total() <= 8, asked
                groups = {group.name for group in (await admin.groups.list()).groups}
                assert {f"g{number}" for number in range(30)} <= groups

    run(scenario)


def test_figures_of_two_brokers_are_added_up_with_a_request_for_each(
    tmp_path: Path, asked: Counter[str]
) -> None:
    async def scenario() -> None:
        async with started_nameserver() as nameserver:
            address = nameserver.address
            options = [broker_options(tmp_path / name, address) for name in ("broker-a", "broker-b")]
            options[1] = replace(options[1], broker=replace(options[1].broker, name="broker-b"))
            async with (
                started_broker(options[0]) as first,
                started_broker(options[1]) as second,
                aio.Admin(address) as admin,
            ):
                await admin.topics.create("orders", queues=2)
                await admin.groups.create("billing")
                await send(first.address, "orders", "m0", "m1")
                await send(second.address, "orders", "m2")
                queues = (await admin.topics.route("orders")).readable
                await admin.offsets.commit("billing", dict.fromkeys(queues, 0))
                asked.clear()
                [orders] = (await admin.topics.figures(lambda topic: topic.name == "orders")).topics
                assert (orders.brokers, orders.write_queues) == (("broker-a", "broker-b"), 4)
                assert orders.messages == 3
                [billing] = (await admin.groups.figures(lambda group: group.name == "billing")).groups
                assert (billing.brokers, billing.lag) == (("broker-a", "broker-b"), 3)
                assert (asked["GetTopicFigures"], asked["GetGroupFigures"]) == (2, 2)
                assert asked.total() <= 8, asked

    run(scenario)


def test_large_tables_come_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaq.admin.groups.group_settings.PAGE_GROUPS", 7)

    async def scenario() -> None:
        async with started_nameserver() as nameserver:
            address = nameserver.address
            async with started_broker(broker_options(tmp_path, address)), aio.Admin(address) as admin:
                await asyncio.gather(*(admin.groups.create(f"g{number}") for number in range(30)))
                groups = [group.name for group in (await admin.groups.list()).groups]
                assert len(groups) == len(set(groups))
                assert {f"g{number}" for number in range(30)} <= set(groups)
                monkeypatch.setattr("metaq.broker.requests.figures.PAGE_MAX", 7)
                seen: list[int] = []
                figures = [group.name for group in (await admin.groups.figures(advance=seen.append)).groups]
                assert (figures, max(seen)) == (groups, 7)
                topics = [topic.name for topic in (await admin.topics.figures()).topics]
                assert topics == [topic.name for topic in await admin.topics.list()]

    run(scenario)


def test_parallel_work_has_a_bound_and_ends_with_the_first_error() -> None:
    under_way = most = 0

    async def work(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return number * 2

    async def scenario() -> None:
        assert await in_parallel(range(100), work) == {number: number * 2 for number in range(100)}
        assert most == AT_ONCE_MAX

        async def fail(number: int) -> None:
            if number == 3:
                raise MetaqError("three")
            await asyncio.sleep(3600)

        with pytest.raises(MetaqError, match="three"):
            await in_parallel(range(10), fail)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())
