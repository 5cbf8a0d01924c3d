"""metaq message trace against a running MetaQ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import metaq
from metaq.admin import Admin
from metaq.cli import app
from metaq.errors import CommandError, NoSuchMessage
from metaq.protocol.errors import Unreachable
from tests.support.metaq import Metaq
from tests.support.waiting import wait_until


def run(*arguments: str) -> str:
    outcome = CliRunner().invoke(app, ["message", "trace", *arguments], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


@pytest.fixture(scope="module")
def died(served: Metaq) -> Iterator[str]:
    """A message that a group with a long name has given up."""
    with Admin(served.nameserver) as admin:
        admin.topics.create("orders", queues=1)
        with metaq.Client(served.nameserver, trace_topic=True) as client, client.producer("shop") as producer:
            sent = producer.send("orders", b"two apples", tag="fruit", keys=["order-7"])

            def handle(message: metaq.Message) -> None:
                raise metaq.Reject("no apples, " + "and none will come " * 5)

            client.consumer("orders", group="a_long_name_of_a_group_of_consumers", start="earliest")(handle)
            wait_until(
                lambda: "dead" in {event.kind for event in admin.traces.timeline(sent.id, "orders").events}
            )
        wait_until(
            lambda: "success" in {event.result for event in admin.traces.timeline(sent.id, "orders").events}
        )
    yield sent.id


def test_the_timeline_for_people(served: Metaq, died: str) -> None:
    printed = run(died, "--namesrv", served.nameserver)
    lines = printed.splitlines()
    assert all(len(line) <= 80 for line in lines), printed
    assert lines[0] == died
    assert lines[1].startswith("topic orders, tag fruit, keys order-7, ")
    events = [line.split()[2] for line in lines if line.lstrip().startswith("+")]
    assert events == ["born", "stored", "delivered", "dead"]
    assert "shop" in printed and "try 1" in printed
    assert "no apples, and none" in " ".join(printed.split())
    assert "  a_long_name_of_a_group_of_consumers: dead, 0 members connected" in lines


def test_json_and_spans(served: Metaq, died: str, tmp_path: Path) -> None:
    file = tmp_path / "spans.json"
    printed = run(
        died, "--topic", "orders", "-o", "json", "--otlp", str(file), "--namesrv", served.nameserver
    )
    found: dict[str, Any] = json.loads(printed)
    assert (found["id"], found["topic"], found["keys"]) == (died, "orders", ["order-7"])
    stored = found["events"][1]
    assert (stored["kind"], stored["broker"], stored["queue_id"], stored["queue_offset"]) == (
        *("stored", "broker-a", 0, 0),
    )
    assert [group["state"] for group in found["groups"]] == ["dead"]
    [line] = file.read_text().splitlines()
    names = [
        span["name"]
        for resource in json.loads(line)["resourceSpans"]
        for span in resource["scopeSpans"][0]["spans"]
    ]
    assert sorted(names) == ["dead_letter orders", "process orders", "send orders", "store orders"]


def test_a_message_that_a_reset_skips_is_passed_and_not_consumed(served: Metaq) -> None:
    topic, group = "trace_resets", "trace_reset_readers"
    with Admin(served.nameserver) as admin:
        admin.topics.create(topic, queues=1)
        with (
            metaq.Client(served.nameserver, trace_topic=True) as sending,
            sending.producer("shop") as producer,
        ):
            handled: list[bytes] = []
            producer.send(topic, b"first")
            with metaq.Client(served.nameserver, trace_topic=True) as client:
                client.consumer(topic, group=group, start="earliest")(lambda one: handled.append(one.body))
                wait_until(lambda: handled == [b"first"])
            skipped = producer.send(topic, b"skipped")
            admin.groups.reset(group, topic, "latest")
            last = producer.send(topic, b"last")
            with metaq.Client(served.nameserver, trace_topic=True) as client:
                client.consumer(topic, group=group, start="earliest")(lambda one: handled.append(one.body))
                wait_until(lambda: handled == [b"first", b"last"])
        wait_until(
            lambda: [one.state for one in admin.traces.timeline(last.id, topic).groups] == ["consumed"]
        )
        wait_until(lambda: admin.traces.timeline(skipped.id, topic).events[0].source == "trace")
    printed = run(skipped.id, "--topic", topic, "--namesrv", served.nameserver)
    assert f"  {group}: passed; no delivery recorded, " in printed
    assert "consumed" not in printed and "tracing is off" not in printed


def test_errors(served: Metaq, died: str, tmp_path: Path) -> None:
    with pytest.raises(NoSuchMessage):
        run("00FF", "--namesrv", served.nameserver)
    with pytest.raises(CommandError, match=r"--otlp: .* cannot be written: Is a directory"):
        run(died, "--otlp", str(tmp_path), "--namesrv", served.nameserver)
    with pytest.raises(Unreachable):
        run(died, "--namesrv", "127.0.0.1:1")
