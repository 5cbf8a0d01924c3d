"""Work that grows with the number of topics and groups is done in small parts, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Collection, Iterator
from pathlib import Path

import pytest

from metaq.broker import Broker
from metaq.broker.requests import health
from metaq.broker.requests.spaced_work import UPDATES_AT_ONCE
from metaq.broker.state import policy
from metaq.broker.state.clients import Clients
from metaq.broker.state.consumer_group import ConsumerGroup
from metaq.broker.state.groups import Groups
from metaq.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
    TopicConfigList,
)
from metaq.protocol.command import Command
from metaq.protocol.commands.admin import UpdateBrokerConfig
from metaq.protocol.commands.clients import HeartBeat
from metaq.protocol.commands.figures import GetGroupFigures
from metaq.protocol.commands.groups import QueryTopicConsumeByWho, UpdateAndCreateSubscriptionGroupList
from metaq.protocol.commands.health import BrokerReport, GetBrokerReport
from metaq.protocol.commands.offsets import GetAllConsumerOffset, GetBrokerConsumeStats
from metaq.protocol.commands.topics import UpdateAndCreateTopicList
from metaq.protocol.reply import Reply
from tests.support.broker_cluster import Client, broker_options, connected, started_broker
from tests.support.waiting import run, until

COUNT = 5 * UPDATES_AT_ONCE + 1


def in_broker(tmp_path: Path, scenario: Callable[[Broker, Client], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address) as client,
        ):
            await scenario(broker, client)

    run(all_of_it)


async def put_topics(client: Client, *topics: TopicConfig) -> Reply:
    body = TopicConfigList(topic_config_list=list(topics)).encode()
    return await client.connection.call(UpdateAndCreateTopicList(), body)


async def put_groups(client: Client, *groups: str) -> Reply:
    listed = SubscriptionGroupList(
        group_config_list=[SubscriptionGroupConfig(group_name=group) for group in groups]
    )
    return await client.connection.call(UpdateAndCreateSubscriptionGroupList(), listed.encode())


def heartbeat(*groups: str) -> bytes:
    consumers = [ConsumerData(group_name=group) for group in groups]
    return HeartbeatData(client_id="c", consumer_data_set=consumers).encode()


def test_the_data_plane_gets_long_lists_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker, client: Client) -> None:
        assert broker.master is not None
        sent: list[tuple[str, int]] = []
        feed = broker.master.state.policy

        def note(kind: str, send: Callable[[Collection[str]], None]) -> Callable[[Collection[str]], None]:
            def noted(touched: Collection[str]) -> None:
                sent.append((kind, len(touched)))
                send(touched)

            return noted

        monkeypatch.setattr(feed, "send_topics", note("topics", feed.send_topics))
        monkeypatch.setattr(feed, "send_groups", note("groups", feed.send_groups))
        names = [f"n{number}" for number in range(COUNT)]
        (await put_topics(client, *(TopicConfig(topic_name=name) for name in names))).check()
        (await put_groups(client, *names)).check()
        (await client.connection.call(HeartBeat(), heartbeat(*(f"h{name}" for name in names)))).check()
        for kind in ("topics", "groups"):
            # The retry topics of a heartbeat are published after its answer.
            await until(lambda: sum(count for of, count in sent if of == kind) >= 2 * COUNT)  # noqa: B023
        assert max(count for _, count in sent) <= UPDATES_AT_ONCE
        await client.send(names[-1], b"x")

    in_broker(tmp_path, scenario)


def test_a_change_of_the_configuration_compiles_no_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker, client: Client) -> None:
        (await put_topics(client, *(TopicConfig(topic_name=f"t{number}") for number in range(50)))).check()
        compiled: list[str] = []
        compile_topic = policy.compile_topic

        def counted(config: TopicConfig, *rest: object) -> object:
            compiled.append(config.topic_name)
            return compile_topic(config, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(policy, "compile_topic", counted)
        for body in (b"brokerPermission=4", b"brokerPermission=6", b"storeReplyMessageEnable=false"):
            (await client.connection.call(UpdateBrokerConfig(), body)).check()
        assert compiled == []
        for body in (b"autoCreateTopicEnable=false", b"autoCreateTopicEnable=true"):
            (await client.connection.call(UpdateBrokerConfig(), body)).check()
        assert set(compiled) == {"TBW102"}
        await client.send("new", b"x")

    in_broker(tmp_path, scenario)


def test_a_report_looks_at_a_bounded_number_of_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker, client: Client) -> None:
        async def report() -> BrokerReport:
            return BrokerReport.decode((await client.connection.call(GetBrokerReport())).check().body)

        groups = [f"g{number}" for number in range(3)]
        (await put_groups(client, *groups)).check()
        (
            await put_topics(
                client, *(TopicConfig(topic_name=f"%DLQ%{group}", read_queue_nums=1_000) for group in groups)
            )
        ).check()
        assert (await report()).is_complete
        monkeypatch.setattr(health, "QUEUES_MAX", 1_500)
        assert not (await report()).is_complete

    in_broker(tmp_path, scenario)


@pytest.mark.parametrize(
    "command",
    [GetAllConsumerOffset(), GetBrokerConsumeStats(), GetGroupFigures(), QueryTopicConsumeByWho(topic="t")],
)
def test_no_request_looks_at_all_groups_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """One connection may have a hundred such requests under way, and all of them begin in one turn."""
    threads: list[threading.Thread] = []
    all_groups, all_live = Groups.__iter__, Clients.all_consumer_groups

    def groups(self: Groups) -> Iterator[SubscriptionGroupConfig]:
        threads.append(threading.current_thread())
        return all_groups(self)

    def live(self: Clients) -> list[ConsumerGroup]:
        threads.append(threading.current_thread())
        return all_live(self)

    async def scenario(broker: Broker, client: Client) -> None:
        monkeypatch.setattr(Groups, "__iter__", groups)
        monkeypatch.setattr(Clients, "all_consumer_groups", live)
        (await client.connection.call(command)).check()
        assert threads and threading.main_thread() not in threads

    in_broker(tmp_path, scenario)
