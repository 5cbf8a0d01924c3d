"""Requests whose answers would be long: the broker bounds what it collects, and others do not wait for it."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from metaq.broker.requests.consumption import Consumption
from metaq.broker.requests.topics import TopicRequests
from metaq.protocol.bodies import (
    ConsumeStats,
    ConsumeStatsList,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicStatsTable,
)
from metaq.protocol.command import LINES_MAX
from metaq.protocol.commands.groups import UpdateAndCreateSubscriptionGroupList
from metaq.protocol.commands.messages import ConsumerSendMsgBack
from metaq.protocol.commands.offsets import GetBrokerConsumeStats, GetConsumeStats, UpdateConsumerOffset
from metaq.protocol.commands.topics import GetTopicConfig, GetTopicStatsInfo, UpdateAndCreateTopic
from metaq.protocol.reply import Reply
from tests.support.broker_cluster import Client, broker_options, connected, started_broker
from tests.support.patient import Connection
from tests.support.waiting import run, until

NEVER_S = 3_600.0
BENCHMARK = "BenchmarkTest"
BENCHMARK_QUEUES = 1_024


async def create_groups(client: Client, count: int) -> None:
    configs = [SubscriptionGroupConfig(group_name=f"g{number}") for number in range(count)]
    body = SubscriptionGroupList(group_config_list=configs).encode()
    (await client.connection.call(UpdateAndCreateSubscriptionGroupList(), body)).check()
    for number in range(count):
        commit = UpdateConsumerOffset(
            consumer_group=f"g{number}", topic=BENCHMARK, queue_id=0, commit_offset=0
        )
        (await client.connection.call(commit)).check()


async def create_topic(client: Client, topic: str, queues: int) -> None:
    command = UpdateAndCreateTopic(
        topic=topic, default_topic="TBW102", read_queue_nums=queues, write_queue_nums=queues
    )
    (await client.connection.call(command)).check()


def test_the_backlog_of_too_many_groups_is_refused_while_it_is_collected(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address, "operator") as operator,
        ):
            await create_groups(operator, 20)
            answer = (await operator.connection.call(GetBrokerConsumeStats())).check()
            listed = ConsumeStatsList.decode(answer.body).consume_stats_list
            lines = sum(
                len(stats.offset_table) for of_group in listed for s in of_group.values() for stats in s
            )
            assert lines == 20 * BENCHMARK_QUEUES
            await create_groups(operator, 1_000)
            refused = await operator.connection.call(GetBrokerConsumeStats(), timeout=NEVER_S)
            assert refused.code == 29
            found = re.search(r"the limit is 50000 lines; (\d+) lines were counted", refused.remark or "")
            assert found is not None, refused.remark
            assert LINES_MAX - BENCHMARK_QUEUES <= int(found[1]) <= LINES_MAX
            assert "GetConsumeStats, 208" in (refused.remark or "")

    run(scenario)


def test_a_topic_that_is_repeated_in_a_list_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = count_topics(monkeypatch)

    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address, "operator") as operator,
        ):
            await create_groups(operator, 1)
            asked = GetConsumeStats(consumer_group="g0", topic_list=";".join([BENCHMARK] * 500))
            answer = (await operator.connection.call(asked, timeout=NEVER_S)).check()
            assert len(ConsumeStats.decode(answer.body).offset_table) == BENCHMARK_QUEUES
            assert looked_at == [BENCHMARK]

    run(scenario)


def count_topics(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes each topic whose queues are looked at for an answer."""
    looked_at: list[str] = []
    really = Consumption._add_queues

    def add_queues(self: Consumption, *arguments: Any) -> None:
        looked_at.append(next(a.topic_name for a in arguments if hasattr(a, "topic_name")))
        really(self, *arguments)

    monkeypatch.setattr(Consumption, "_add_queues", add_queues)
    return looked_at


def ask_often(client: Client, count: int, asked: Any) -> list[asyncio.Task[Reply]]:
    """Asks without waiting for the answers."""
    return [asyncio.ensure_future(client.connection.call(asked, timeout=NEVER_S)) for _ in range(count)]


def test_what_connections_asked_for_ends_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine connections, each with 130 questions about 12 topics of 1,000 queues."""
    looked_at = count_topics(monkeypatch)
    topics = [f"t{number}" for number in range(12)]
    asked = GetConsumeStats(consumer_group="g", topic_list=";".join(topics))

    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address, "healthy") as healthy,
        ):
            for topic in topics:
                await create_topic(healthy, topic, 1_000)
            flood = [Client(await Connection.open(broker.address), "flood", []) for _ in range(9)]
            tasks = [task for client in flood for task in ask_often(client, 130, asked)]
            await until(lambda: len(looked_at) > 2 * len(flood) * len(topics))
            # A newcomer is served meanwhile. It waits for the work that runs, not for a turn of each of them.
            async with connected(broker.address, "newcomer") as newcomer:
                await newcomer.heartbeat("n", "t0")
                assert (await newcomer.connection.call(GetTopicConfig(topic="t0"))).code == 0
                before = len(looked_at)
                (await newcomer.connection.call(GetTopicStatsInfo(topic="t0"))).check()
                assert len(looked_at) - before <= 6 * len(topics)
            assert sum(task.done() for task in tasks) < len(tasks) / 2
            for client in flood:
                await client.connection.close()
            await asyncio.gather(*tasks, return_exceptions=True)
            await until(lambda: not broker.node.pump._asking)
            # Two threads end at their next step; nothing else begins.
            (await healthy.connection.call(GetTopicStatsInfo(topic="t0"))).check()
            begun = len(looked_at)
            await asyncio.sleep(0.5)
            assert len(looked_at) == begun
            assert begun < len(tasks) * len(topics) / 2
            assert not broker.node.pools.look_ups._turns._waiting

    run(scenario)


def test_messages_that_are_given_back_do_not_wait_for_long_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two of 160 long answers take until all messages are given back, so nothing waits for them."""
    given_back = threading.Event()
    really = TopicRequests._queue_offsets

    def queue_offsets(self: TopicRequests, topic: str, queues: int) -> bytes:
        assert given_back.wait(60)
        return really(self, topic, queues)

    monkeypatch.setattr(TopicRequests, "_queue_offsets", queue_offsets)

    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address, "asking") as asking,
            connected(broker.address, "healthy") as healthy,
        ):
            await create_topic(asking, "wide", 10_000)
            await healthy.heartbeat("g", "orders")
            await healthy.send("orders", b"m")
            _, (record,), _ = await healthy.pull("g", "orders")
            tasks = ask_often(asking, 160, GetTopicStatsInfo(topic="wide"))
            await until(lambda: bool(broker.node.pools.look_ups._turns._waiting))
            back = ConsumerSendMsgBack(
                physical_offset=record.physical_offset, group="g", delay_level=3, origin_topic="orders"
            )
            for _ in range(5):
                (await healthy.connection.call(back)).check()
            assert not any(task.done() for task in tasks)
            given_back.set()
            answer = (await tasks[0]).check()
            assert len(TopicStatsTable.decode(answer.body).offset_table) == 10_000
            for task in tasks:
                task.cancel()

    run(scenario)
