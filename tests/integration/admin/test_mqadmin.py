"""Apache's mqadmin and `metaq` print the same facts of one cluster, be it MetaQ's or Apache's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

import metaq
from metaq.admin import Admin
from metaq.client.session.routes import Queue
from tests.integration.admin.conftest import Served
from tests.integration.admin.test_contract import BROKER, filled, fresh
from tests.interop.clients import Clients
from tests.interop.driver import Driver
from tests.interop.programs import start_java
from tests.support.invoking import CommandLine
from tests.support.servers import Cluster, Server
from tests.support.waiting import wait_until


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Runs mqadmin in one process, because a JVM for each command takes seconds."""
    started = start_java("5.5.0", "json", tmp_path_factory.mktemp("mqadmin"))
    yield started
    started.close()


class Mqadmin:
    def __init__(self, driver: Driver, nameserver: str) -> None:
        self._driver = driver
        self._nameserver = nameserver

    def rows(self, line: str, pattern: str) -> list[tuple[str, ...]]:
        """Returns the groups of a pattern in each line that has it."""
        arguments = [*line.split(), "-n", self._nameserver]
        printed = self._driver.call("mqadmin", arguments=arguments)["printed"]
        return [found.groups() for found in re.finditer(f"(?m)^{pattern}", printed)]


@pytest.fixture
def mqadmin(driver: Driver, cluster: Served) -> Mqadmin:
    return Mqadmin(driver, cluster.nameserver)


@pytest.fixture
def command(cluster: Served) -> CommandLine:
    return CommandLine(cluster.nameserver)


def test_topics_and_their_queues(
    cluster: Served, admin: Admin, mqadmin: Mqadmin, command: CommandLine
) -> None:
    topic = filled(cluster, admin, queues=2, messages=3)
    listed = {row["topic"] for row in command.document("topic", "list", "--all")}
    assert listed == {name for (name,) in mqadmin.rows("topicList", r"([%\w-]+)$")}
    queues = [
        (queue["broker"], str(queue["queue"]), str(queue["min_offset"]), str(queue["max_offset"]))
        for queue in command.document("topic", "show", topic)["queues"]
    ]
    assert queues == sorted(mqadmin.rows(f"topicStatus -t {topic}", r"(broker-a) +(\d+) +(\d+) +(\d+) "))
    assert len(queues) == 2


def test_the_members_of_a_group(
    cluster: Served, admin: Admin, mqadmin: Mqadmin, command: CommandLine
) -> None:
    topic, group = filled(cluster, admin), fresh("G")
    with metaq.Client(cluster.nameserver) as client, client.subscribe(topic, group=group, tags="a || b"):
        wait_until(lambda: len(command.document("group", "show", group)["members"]) == 1)
        shown = command.document("group", "show", group)
        members = mqadmin.rows(f"consumerConnection -g {group}", r"(\S+@\d+\S*) +(127\S+) +(\w+) +(\S+)")
        [filter_text] = mqadmin.rows(f"consumerConnection -g {group}", rf"{topic} +(.+?) *$")
    [member] = shown["members"]
    # Apache's tool knows only RocketMQ's versions: it shows the version of the protocol that the client
    # speaks, and ours shows the version of the client itself, if the broker keeps it.
    assert members == [(member["client_id"], member["address"], member["language"], "V5_5_0")]
    own_version = metaq.__version__ if cluster.kind == "metaq" else "5.5.0"
    assert (member["language"], member["version"]) == ("PYTHON", own_version)
    assert filter_text == tuple(
        entry["filter"] for entry in shown["subscriptions"] if entry["topic"] == topic
    )


def test_a_java_member_reports_its_queues_and_stacks(
    cluster: Served, admin: Admin, driver: Driver, command: CommandLine
) -> None:
    topic, group = filled(cluster, admin, queues=2), fresh("G")
    servers = Cluster([cast(Server, SimpleNamespace(address=cluster.nameserver))], {})
    clients = Clients(driver, servers)
    try:
        consumer = clients.push_consumer(topic, group=group)
        consumer.wait_for_assignment(topic, 2)
        shown = command.document("group", "show", group, "--stacks")
    finally:
        clients.close()
    [member] = shown["members"]
    assert (member["client_id"], member["language"], member["error"]) == (consumer.client_id, "JAVA", None)
    owned = {queue["queue"] for queue in member["queues"] if queue["topic"] == topic}
    assert owned == {0, 1}
    assert member["subscriptions"][topic] == "*"
    assert "ConsumeMessageThread" in member["stack"] or "java.lang.Thread" in member["stack"]
    assert shown["conflicts"] == []


def test_the_progress_of_a_group(
    cluster: Served, admin: Admin, mqadmin: Mqadmin, command: CommandLine
) -> None:
    topic, group = filled(cluster, admin, queues=2, messages=5), fresh("G")
    admin.groups.create(group)
    # Its first consumer would create this topic, and mqadmin finds the brokers of a group by its route.
    admin.topics.create(f"%RETRY%{group}", queues=1)
    admin.offsets.commit(group, dict.fromkeys(admin.topics.route(topic).readable, 0))
    admin.offsets.commit(group, {Queue(topic, BROKER, 0): 2})
    shown = command.document("group", "show", group)
    [listed] = command.document("group", "list", group)
    progress = mqadmin.rows(
        f"consumerProgress -g {group}", rf"({topic}) +broker-a +(\d+) +(\d+) +(\d+) +(\d+) "
    )
    [total] = mqadmin.rows(f"consumerProgress -g {group}", r"Consume Diff Total: (\d+)")
    queues = [
        tuple(str(queue[key]) for key in ("topic", "queue", "max_offset", "committed", "lag"))
        for queue in shown["queues"]
    ]
    assert queues == sorted(progress) == [(topic, "0", "5", "2", "3"), (topic, "1", "0", "0", "0")]
    assert total == (str(shown["lag"]),) == (str(listed["lag"]),) == ("3",)
