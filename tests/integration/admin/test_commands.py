"""The topic and group commands on MetaQ's broker and on Apache's: both do the same."""

from __future__ import annotations

import pytest

from metaq.admin import Admin
from metaq.client.session.routes import Queue
from tests.integration.admin.conftest import Served
from tests.integration.admin.test_contract import BROKER, filled, fresh
from tests.support.invoking import CommandLine


@pytest.fixture
def command(cluster: Served) -> CommandLine:
    return CommandLine(cluster.nameserver)


def test_a_topic_is_created_updated_and_deleted(cluster: Served, admin: Admin, command: CommandLine) -> None:
    topic = filled(cluster, admin, queues=2, messages=3)
    differs = command.refused("topic", "create", topic, "--queues", "1")
    assert differs.args[0] == f"topic {topic} exists on {BROKER} with queues 2, not 1"
    [row] = command.document("topic", "list", topic)
    assert (row["queue_count"], row["messages"], row["brokers"]) == (2, 3, [BROKER])
    grown = command.document("topic", "update", topic, "--queues", "4", "--write-queues", "3")
    assert [(on["read_queues"], on["write_queues"]) for on in grown["settings"]] == [(4, 3)]
    asked = command.invoke("topic", "update", topic, "--queues", "3", text="n\n")
    assert asked.stderr.startswith(f"metaq: {topic} would lose 1 queue, without messages\n")
    shown = command.document("topic", "show", topic)
    assert (shown["messages"], len(shown["queues"]), shown["groups"]) == (3, 4, [])
    assert None not in (shown["first_stored_ms"], shown["last_stored_ms"])
    assert command.document("topic", "delete", topic, "--yes")["brokers"] == [BROKER]
    assert command.document("topic", "list", topic) == []


def test_a_group_is_created_cloned_and_deleted(cluster: Served, admin: Admin, command: CommandLine) -> None:
    topic, group, copy = filled(cluster, admin, messages=5), fresh("G"), fresh("Copy")
    assert command.document("group", "create", group, "--retries", "4")["created"] is True
    assert command.document("group", "create", group, "--retries", "4")["created"] is False
    admin.offsets.commit(group, {Queue(topic, BROKER, 0): 2, Queue(topic, BROKER, 1): 0})
    command.printed("group", "clone", group, copy, "--yes")
    names = [row["group"] for row in command.document("group", "list", "--all") if row["lag"] == 3]
    assert {group, copy} <= set(names)
    shown = command.document("group", "show", copy)
    assert (shown["lag"], shown["settings"][0]["retries"], shown["members"]) == (3, 4, [])
    assert command.document("group", "update", copy, "--disabled")["settings"][0]["enabled"] is False
    for name in (group, copy):
        assert command.document("group", "delete", name, "--yes")["deleted"] is True
    assert command.document("group", "list", copy) == []


def test_limits_are_said_to_be_missing(cluster: Served, command: CommandLine) -> None:
    group = fresh("Limited")
    limit = ("group", "limit", group, "--messages-per-second", "5")
    if cluster.is_metaq:
        assert command.document(*limit)["limits"][0]["messages_per_second"] == 5
    else:
        assert "cannot limit groups: it is not a MetaQ broker" in command.refused(*limit).args[0]
        assert command.document("group", "list", group) == [], "nothing is created"
