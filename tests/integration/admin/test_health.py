"""The health of MetaQ's cluster and of Apache's: the same call and commands, the same facts."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner, Result

import metaq
from metaq.admin import Admin, Finding, Health, aio
from metaq.cli import app
from metaq.cli.exits import UNHEALTHY
from metaq.client.session.routes import Queue
from metaq.errors import NotSupported
from tests.integration.admin.conftest import Served
from tests.support.clients import send
from tests.support.counted_requests import count_requests
from tests.support.reading import stored_all
from tests.support.waiting import eventually

BROKER = "broker-a"


def found(health: Health, kind: str, subject: str) -> Finding | None:
    chosen = [one for one in health.findings if (one.kind, one.subject) == (kind, subject)]
    return chosen[0] if chosen else None


def run(cluster: Served, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--namesrv", cluster.nameserver])


def test_a_healthy_broker(cluster: Served, admin: Admin) -> None:
    health = admin.health.check()
    assert health.healthy and health.summary.startswith("Healthy: 1 broker answers"), health
    [broker] = health.brokers
    assert (broker.name, broker.id, broker.role, broker.address) == (BROKER, 0, "master", cluster.broker)
    assert (broker.kind, broker.version, broker.error) == (cluster.kind, "5.5.0", None)
    assert (broker.metaq_version is not None) == cluster.is_metaq
    assert broker.clock_skew_ms is not None and abs(broker.clock_skew_ms) < 2_000
    figures = admin.brokers.figures(BROKER)
    assert broker.started_ms == figures.started_ms
    assert broker.disk_used_ratio == pytest.approx(figures.disk_used_ratio, abs=0.05)
    unknown = found(health, "facts-unknown", BROKER)
    if cluster.is_metaq:
        assert unknown is None
        assert [group.name for group in health.groups] == [BROKER]
    else:
        assert unknown is not None and "conflicting subscriptions" in unknown.text
        assert health.groups == ()


def test_a_group_without_consumers(cluster: Served, admin: Admin) -> None:
    topic, group = f"T_{uuid4().hex[:8]}", f"G_{uuid4().hex[:8]}"
    admin.topics.create(topic, queues=1)
    asyncio.run(send(cluster.broker, topic, "m0", "m1", "m2"))
    stored_all(cluster.nameserver, topic, 3)
    admin.groups.create(group)
    admin.offsets.commit(group, {Queue(topic, BROKER, 0): 1})

    def backlog() -> Any:
        states = asyncio.run(collected(cluster.nameserver))
        chosen = [one for one in states if (one.group, one.topic) == (group, topic)]
        return chosen[0] if chosen else None

    # Apache's broker counts the lines of a queue, which it writes a moment later.
    waiting = eventually(backlog, lambda one: one is not None and one.messages == 2, 30, "a backlog of two")
    assert waiting.members == 0 and waiting.waiting_ms is not None and waiting.waiting_ms >= 0
    assert found(admin.health.check(), "no-consumers", group) is None, "they wait for seconds only"


async def collected(nameserver: str) -> list[Any]:
    """The backlogs before they are judged: a test cannot wait for a minute."""
    seen: list[Any] = []
    async with aio.Admin(nameserver) as admin:
        describe = admin.health._describe

        async def remember(broker: Any, **options: Any) -> Any:
            described = await describe(broker, **options)
            seen.extend(described.backlogs)
            return described

        admin.health._describe = remember  # type: ignore[method-assign]
        await admin.health.check()
    return seen


def test_a_check_asks_a_bounded_number_of_questions(cluster: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    if not cluster.is_metaq:
        pytest.skip("the questions to Apache's brokers grow up to a limit")
    asked = count_requests(monkeypatch)
    with Admin(cluster.nameserver) as admin:
        admin.health.check()
    assert asked == {
        "GetBrokerClusterInfo": 2,
        "GetGroupStatus": 1,
        "GetBrokerRuntimeInfo": 1,
        "GetBrokerReport": 1,
    }


def test_clients_are_listed(cluster: Served, admin: Admin) -> None:
    topic, group = f"T_{uuid4().hex[:8]}", f"G_{uuid4().hex[:8]}"
    admin.topics.create(topic, queues=1)
    with (
        metaq.Client(cluster.nameserver) as client,
        client.producer(group=f"P_{group}") as producer,
        client.subscribe(topic, group=group),
    ):
        producer.send(topic, b"x")

        def listed() -> dict[tuple[str, str], metaq.admin.ConnectedClient]:
            clients = admin.brokers.clients(BROKER).clients
            return {(one.kind, one.group): one for one in clients if group in one.group}

        wanted = {("consumer", group), ("producer", f"P_{group}")}
        clients = eventually(listed, lambda found: set(found) == wanted, 60, "both clients")
        consumer = clients["consumer", group]
        [member] = admin.groups.members(group).members
        assert (consumer.client_id, consumer.address, consumer.version) == (
            member.client_id,
            member.address,
            member.version,
        )
        assert (consumer.language, consumer.brokers) == (member.language, (BROKER,))
        rows = json.loads(run(cluster, "cluster", "connections", "-o", "json").stdout)
        assert wanted <= {(row["kind"], row["group"]) for row in rows}


def test_the_commands_work_on_both(cluster: Served, admin: Admin) -> None:
    outcome = run(cluster, "cluster", "status")
    assert outcome.exit_code == 0, outcome.output
    assert (cluster.broker in outcome.stdout and "5.5.0" in outcome.stdout) or cluster.is_metaq
    status = json.loads(run(cluster, "cluster", "status", "-o", "json").stdout)
    assert status["healthy"] and status["brokers"][0]["kind"] == cluster.kind
    assert run(cluster, "doctor").exit_code == 0
    [row] = json.loads(run(cluster, "config", "get", BROKER, "brokerName", "-o", "json").stdout)
    assert row["value"] == BROKER and row["changeable"] is (False if cluster.is_metaq else None)
    before = admin.brokers.configuration(BROKER).values["autoCreateTopicEnable"]
    after = "false" if before == "true" else "true"
    for old, new in ((before, after), (after, before)):
        changed = run(cluster, "config", "set", BROKER, f"autoCreateTopicEnable={new}", "-o", "json")
        [row] = json.loads(changed.stdout)
        assert (row["old"], row["new"]) == (old, new)
        assert ("forgets this" in changed.stderr) == cluster.is_metaq


def test_a_broker_taken_for_a_name_server(cluster: Served) -> None:
    outcome = CliRunner().invoke(app, ["topic", "list", "--namesrv", cluster.broker])
    assert isinstance(outcome.exception, NotSupported)
    assert cluster.nameserver in outcome.exception.hint
    doctor = CliRunner().invoke(app, ["doctor", "--namesrv", cluster.broker])
    assert doctor.exit_code == UNHEALTHY and f"its name servers are {cluster.nameserver}" in doctor.stdout
