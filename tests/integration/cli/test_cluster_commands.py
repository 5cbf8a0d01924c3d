"""metaq cluster and metaq doctor against a running MetaQ."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from metaq.cli.exits import UNHEALTHY
from metaq.errors import CommandError, ConfigError, MetaqError, NoRoute, NotSupported
from metaq.protocol.commands.messages import ConsumerSendMsgBack
from metaq.protocol.errors import Refused, Unreachable
from tests.support.broker_cluster import Client, connected
from tests.support.metaq import COMMAND, Metaq, run
from tests.support.processes import free_port

Run = Callable[..., Result]


def document(outcome: Result, exit_code: int = 0) -> dict[str, Any]:
    assert outcome.exit_code == exit_code, (outcome.output, outcome.exception)
    found: dict[str, Any] = json.loads(outcome.stdout)
    return found


def rows(outcome: Result) -> list[dict[str, Any]]:
    assert outcome.exit_code == 0, (outcome.output, outcome.exception)
    found: list[dict[str, Any]] = json.loads(outcome.stdout)
    return found


def test_a_healthy_cluster_in_one_sentence(served: Metaq, metaq: Run) -> None:
    outcome = metaq("cluster", "status")
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stdout.startswith("Healthy: 1 broker answers")
    assert re.search(rf"broker-a +master +{served.broker} .* MetaQ ", outcome.stdout)
    status = document(metaq("cluster", "status", "-o", "json"))
    assert list(status) == ["healthy", "summary", "findings", "name_servers", "brokers", "groups"]
    assert status["name_servers"] == [{"address": served.nameserver, "error": None}]
    [broker] = status["brokers"]
    assert (broker["name"], broker["role"], broker["kind"]) == ("broker-a", "master", "metaq")
    assert broker["version"] == "5.5.0" and 0 < broker["disk_used_ratio"] < 1
    assert [group["name"] for group in status["groups"]] == ["broker-a"]
    assert metaq("cluster", "status", "-o", "csv").stdout.startswith("healthy,summary,findings,")
    assert metaq("cluster", "status", "--wait-healthy", "5").exit_code == 0


def test_wrong_use_of_status(metaq: Run) -> None:
    outcome = metaq("cluster", "status", "5")
    assert isinstance(outcome.exception, ConfigError)
    assert "--wait-healthy SECONDS" in outcome.exception.hint


@pytest.mark.parametrize("command", [("cluster", "status"), ("doctor",)])
def test_no_server_is_a_finding(command: tuple[str, ...]) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    outcome = run(*command, "--namesrv", nobody)
    assert outcome.returncode == UNHEALTHY, outcome.stderr
    assert f"Unhealthy: the name server {nobody} does not answer" in outcome.stdout
    assert "Traceback" not in outcome.stderr


def test_waiting_ends_with_exit_code_10() -> None:
    outcome = run("cluster", "status", "--wait-healthy", "2", "--namesrv", f"127.0.0.1:{free_port()}")
    assert outcome.returncode == UNHEALTHY
    assert outcome.stderr.startswith("metaq: waiting: Unhealthy: the name server")


@pytest.mark.parametrize(
    "command",
    [
        ("topic", "list"),
        ("group", "show", "g"),
        ("send", "T", "x"),
        ("tail", "T", "--no-follow"),
        ("cluster", "connections"),
    ],
    ids=" ".join,
)
def test_a_broker_is_not_a_name_server(served: Metaq, metaq: Run, command: tuple[str, ...]) -> None:
    outcome = metaq(*command, "--namesrv", served.broker)
    assert isinstance(outcome.exception, NotSupported), outcome.output
    assert outcome.exception.args[0] == f"{served.broker} is a broker, not a name server"
    assert outcome.exception.hint == f"its name servers are {served.nameserver}"


def test_the_doctor_names_the_right_address(served: Metaq, metaq: Run) -> None:
    found = document(metaq("doctor", "--namesrv", served.broker, "-o", "json"), UNHEALTHY)
    [finding] = [one for one in found["findings"] if one["severity"] == "critical"]
    assert finding["kind"] == "not-a-name-server"
    assert finding["command"] == f"metaq cluster status --namesrv '{served.nameserver}'"


def test_a_broker_that_starts_and_is_killed(tmp_path: Path) -> None:
    names = Metaq("nameserver", "--listen", "127.0.0.1:0", home=tmp_path)
    try:
        waiting = subprocess.Popen(
            [*COMMAND, "cluster", "status", "--wait-healthy", "90", "--namesrv", names.nameserver],
            stdout=subprocess.PIPE,
            text=True,
        )
        broker = Metaq(
            *("broker", "--namesrv", names.nameserver, "--listen", "127.0.0.1:0"),
            *("--data", str(tmp_path / "data")),
            home=tmp_path,
        )
        shown, _ = waiting.communicate(timeout=100)
        assert waiting.returncode == 0 and shown.startswith("Healthy: 1 broker answers")
        broker.kill()
        # The name server notices the closed connection at once, or else lists a broker that is silent.
        outcome = run("cluster", "status", "--namesrv", names.nameserver, "-o", "json")
        assert outcome.returncode == UNHEALTHY
        status = json.loads(outcome.stdout)
        assert not status["healthy"] and status["summary"].startswith("Unhealthy: ")
        assert {finding["kind"] for finding in status["findings"]} & {"broker-unreachable", "no-brokers"}
    finally:
        names.stop()


# Clients


@contextmanager
def at_broker(served: Metaq, client_id: str, work: Callable[[Client], Any]) -> Iterator[None]:
    """Does the work as a client that stays connected until the block ends."""
    loop = asyncio.new_event_loop()
    opened = connected(served.broker, client_id)
    client = loop.run_until_complete(opened.__aenter__())
    try:
        loop.run_until_complete(work(client))
        yield
    finally:
        loop.run_until_complete(opened.__aexit__(None, None, None))
        loop.close()


def test_connections(served: Metaq, metaq: Run) -> None:
    assert rows(metaq("cluster", "connections", "-o", "json")) == []
    assert "No producer or consumer is connected." in metaq("cluster", "connections").stdout
    with at_broker(
        served, "client-1", lambda client: client.heartbeat("Readers", "Connected", producers=("Writers",))
    ):
        client, producer = rows(metaq("cluster", "connections", "-o", "json"))
        assert (producer["kind"], producer["group"]) == ("producer", "Writers")
        assert (client["kind"], client["group"], client["client_id"]) == ("consumer", "Readers", "client-1")
        assert client["address"].startswith("127.0.0.1:") and client["brokers"] == ["broker-a"]
        assert list(client) == [
            *("kind", "group", "client_id", "address", "language", "version", "brokers", "heartbeat_ms")
        ]
        shown = metaq("cluster", "connections", "broker-a").stdout
        assert "client-1" in shown and "Readers" in shown
    assert isinstance(metaq("cluster", "connections", "broker-x").exception, NoRoute)


def test_connections_of_nobody() -> None:
    outcome = run("cluster", "connections", "--namesrv", f"127.0.0.1:{free_port()}", "-o", "json")
    assert outcome.returncode == 1
    assert "no name server answers" in json.loads(outcome.stderr)["error"]["message"]


# Findings about groups


def test_consumption_is_judged(served: Metaq, metaq: Run) -> None:
    async def give_up(client: Client) -> None:
        await client.heartbeat("Weary", "Judged")
        sent = await client.send("Judged", b"x", UNIQ_KEY="0" * 32)
        back = ConsumerSendMsgBack(physical_offset=int(sent.msg_id[-16:], 16), group="Weary", delay_level=-1)
        (await client.connection.call(back)).check()

    with at_broker(served, "client-1", give_up):
        pass
    found = document(metaq("doctor", "-o", "json"))
    [letters] = [finding for finding in found["findings"] if finding["kind"] == "dead-letters"]
    assert letters["text"] == "Weary has 1 dead letter that was not sent again."
    assert letters["command"] == "metaq dlq list Weary" and letters["severity"] == "warning"
    assert letters["since_ms"] > 0
    assert "→ metaq dlq list Weary" in metaq("doctor").stdout
    assert metaq("cluster", "status").exit_code == 0, "dead letters do not make a cluster unhealthy"
    assert metaq("dlq", "list", "Weary").exit_code == 0, "the command exists"


def test_members_that_disagree(served: Metaq, metaq: Run) -> None:
    with (
        at_broker(served, "client-1", lambda client: client.heartbeat("Divided", "Disputed", expression="a")),
        at_broker(served, "client-2", lambda client: client.heartbeat("Divided", "Disputed", expression="b")),
    ):
        findings = document(metaq("doctor", "-o", "json"))["findings"]
    [conflict] = [finding for finding in findings if finding["kind"] == "subscription-conflict"]
    assert conflict["text"] == (
        "The consumers of Divided subscribe to Disputed in different ways (`a`, `b`), so they lose messages."
    )


# Settings


def test_settings_are_shown_and_changed(metaq: Run) -> None:
    every = {row["key"]: row for row in rows(metaq("cluster", "config", "get", "-o", "json"))}
    assert every["name"] == {
        "broker": "broker-a",
        "key": "name",
        "value": "broker-a",
        "changeable": False,
        "source": "default",
        "origin": "default",
        "next_start": "broker-a",
    }
    assert every["brokerRole"]["value"] == "ASYNC_MASTER" and "brokerName" not in every
    assert every["disk_refuse_percent"]["changeable"] is True
    try:
        changed = metaq("cluster", "config", "set", "broker-a", "autoCreateTopicEnable=false", "-o", "json")
        assert rows(changed) == [
            {"broker": "broker-a", "key": "autoCreateTopicEnable", "old": "true", "new": "false"}
        ]
        assert "forgets this when it stops" in changed.stderr
        [row] = rows(metaq("config", "get", "broker-a", "autoCreateTopicEnable", "-o", "json"))
        assert (row["value"], row["changeable"]) == ("false", True)
        [row] = rows(metaq("config", "get", "autoCreateTopicEnable", "-o", "json"))
        assert row["broker"] == "broker-a", "the broker may be left out"
    finally:
        metaq("config", "set", "broker-a", "autoCreateTopicEnable=true")


def test_a_value_is_kept_shown_with_its_source_and_unset(metaq: Run) -> None:
    try:
        kept = metaq("config", "set", "broker-a", "fileReservedTime=96", "--persist", "-o", "json")
        assert kept.exit_code == 0 and "forgets" not in kept.stderr
        [row] = rows(metaq("config", "get", "broker-a", "file_reserved_hours", "-o", "json"))
        assert (row["value"], row["source"], row["next_start"]) == ("96", "kept", "96")
        assert metaq("config", "set", "broker-a", "file_reserved_hours=48").exit_code == 0
        [row] = rows(metaq("config", "get", "broker-a", "fileReservedTime", "-o", "json"))
        assert (row["value"], row["source"], row["next_start"]) == ("48", "now", "96")
    finally:
        [row] = rows(metaq("config", "unset", "broker-a", "file_reserved_hours", "-o", "json"))
    assert (row["new"], row["origin"]) == ("72", "default")


def test_levels_in_the_wrong_order_name_what_is_in_the_way(metaq: Run) -> None:
    refused = metaq("config", "set", "broker-a", "diskMaxUsedSpaceRatio=95")
    assert refused.exit_code != 0
    assert "disk_force_clean_percent" in str(refused.exception) and "same command" in str(refused.exception)
    misspelt = metaq("config", "set", "broker-a", "disk_refuse_percnt=95").exception
    assert isinstance(misspelt, MetaqError) and "disk_refuse_percent" in misspelt.hint


def test_a_broker_that_may_not_write_is_mended_by_the_command(metaq: Run) -> None:
    assert metaq("config", "set", "broker-a", "brokerPermission=4").exit_code == 0
    found = document(metaq("doctor", "-o", "json"), UNHEALTHY)
    [finding] = [one for one in found["findings"] if one["severity"] == "critical"]
    assert finding["kind"] == "not-permitted"
    assert metaq(*finding["command"].split()[1:]).exit_code == 0
    assert metaq("cluster", "status").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        (("get", "broker-a", "brokerNam"), CommandError, "did you mean brokerName"),
        (("get", "127.0.0.1:1"), Unreachable, "127.0.0.1:1"),
        (("set", "broker-a", "brokerName"), ConfigError, "write KEY=VALUE"),
        (("set", "broker-a", "listenPort=1"), Refused, "permission, auto_create_topic"),
        (("set", "broker-a", "brokerPermission=x"), Refused, "a whole number from 0 to 7"),
        (("set", "broker-x", "brokerPermission=6"), NoRoute, "broker-x has no master"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_settings(metaq: Run, arguments: tuple[str, ...], kind: type[MetaqError], text: str) -> None:
    outcome = metaq("cluster", "config", *arguments)
    assert isinstance(outcome.exception, kind), outcome.output
    assert text in f"{outcome.exception} {outcome.exception.hint}"


# The doctor on this machine


def test_the_doctor_looks_at_this_machine(
    metaq: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    contexts = tmp_path / "contexts.toml"
    contexts.write_text('[contexts.test]\nnamesrv = "h:1"\n')
    contexts.chmod(0o644)
    data = tmp_path / "data"
    data.write_text("")
    monkeypatch.setenv("METAQ_CONTEXTS", str(contexts))
    monkeypatch.setenv("METAQ_NAMSRV", "h:1")
    monkeypatch.setenv("METAQ_DATA", str(data))
    findings = document(metaq("doctor", "-o", "json"), UNHEALTHY)["findings"]
    by_kind = {finding["kind"]: finding for finding in findings}
    assert by_kind["contexts-public"]["command"] == f"chmod 600 '{contexts}'"
    assert "did you mean METAQ_NAMESRV?" in by_kind["configuration"]["text"]
    assert by_kind["data-not-a-directory"]["severity"] == "critical"
    contexts.write_text("not toml")
    findings = document(metaq("doctor", "-o", "json"), UNHEALTHY)["findings"]
    assert findings[0]["kind"] == "contexts-unreadable"
