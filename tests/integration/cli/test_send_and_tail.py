"""metaq send and metaq tail: sources, delays, rates, selections, templates."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.integration.cli.conftest import Run
from tests.support.invoking import CommandLine
from tests.support.metaq import COMMAND, Metaq
from tests.support.waiting import wait_until

Start = Callable[..., Metaq]


@pytest.fixture
def command(served: Metaq) -> CommandLine:
    return CommandLine(served.nameserver)


@pytest.fixture
def topic(command: CommandLine) -> str:
    name = f"T_{uuid4().hex[:8]}"
    command.printed("topic", "create", name, "--queues", "2")
    return name


def tailed(command: CommandLine, topic: str, *arguments: str) -> list[dict[str, Any]]:
    printed = command.printed("tail", topic, "--no-follow", "-o", "json", *arguments)
    return [json.loads(line) for line in printed.splitlines()]


def bodies(command: CommandLine, topic: str, *arguments: str) -> list[str]:
    return sorted(message["body"] for message in tailed(command, topic, *arguments))


# Send


def test_a_body_is_sent_several_times(command: CommandLine, topic: str) -> None:
    sent = command.document("send", topic, "number %d", "--count", "12", "--tag", "t", "--key", "k")
    assert (sent["sent"], sent["failed"], sent["interrupted"], sent["errors"]) == (12, 0, False, [])
    messages = tailed(command, topic)
    assert sorted(message["body"] for message in messages) == sorted(f"number {n}" for n in range(1, 13))
    assert {(message["tag"], *message["keys"]) for message in messages} == {("t", "k")}
    assert "12 messages sent" in command.printed("send", topic, "again", "--count", "12")


def test_lines_are_sent(command: CommandLine, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_bytes(b"one\n\ntwo\r\nthree")
    assert command.document("send", topic, "--lines", str(file))["sent"] == 3
    assert bodies(command, topic) == ["one", "three", "two"]
    outcome = command.invoke("send", topic, "--lines", "-", "-o", "json", text="four\n")
    assert json.loads(outcome.stdout)["sent"] == 1
    assert "cannot read" in str(command.refused("send", topic, "--lines", str(tmp_path / "none")))


def test_json_lines_are_sent(command: CommandLine, topic: str) -> None:
    lines = [
        {"body": "text", "tag": "t", "keys": ["a", "b"], "properties": {"p": "1"}},
        {"body": {"of": "JSON"}, "keys": "c d", "key": "shard"},
        {"body_base64": "/w=="},
        {"bdoy": "misspelt"},
        {"body": "bad", "properties": {"p": 1}},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines) + "not JSON\n"
    outcome = command.invoke("send", topic, "--json-lines", "-", "-o", "json", text=text)
    assert outcome.exit_code == 1
    summary = json.loads(outcome.stdout)
    assert (summary["sent"], summary["failed"]) == (3, 3)
    assert [error.partition(":")[0] for error in summary["errors"]] == ["line 4", "line 5", "line 6"]
    assert "bdoy: unknown field" in summary["errors"][0]
    messages = {message["body"]: message for message in tailed(command, topic)}
    assert messages["text"]["keys"] == ["a", "b"] and messages["text"]["properties"]["p"] == "1"
    assert messages['{"of":"JSON"}']["keys"] == ["c", "d"]
    assert messages['{"of":"JSON"}']["properties"]["__SHARDINGKEY"] == "shard"
    assert messages[None]["body_base64"] == "/w=="


def test_a_delayed_message_says_when_it_is_due_and_has_no_place(command: CommandLine, topic: str) -> None:
    before_ms = time.time() * 1000
    sent = command.document("send", topic, "later", "--delay", "500ms")
    assert sent["due_ms"] >= before_ms + 499
    assert (sent["queue_id"], sent["queue_offset"], sent["offset_id"]) == (None, None, None)
    wait_until(lambda: bodies(command, topic) == ["later"], interval_s=0.1)
    tomorrow = f"{datetime.now() + timedelta(days=1):%Y-%m-%dT%H:%M}"
    printed = command.printed("send", topic, "much later", "--deliver-at", tomorrow)
    assert f" due {tomorrow.replace('T', ' ')}:00.000 id " in printed and "offset" not in printed
    assert "timer_max_delay_s" in str(command.refused("send", topic, "x", "--deliver-at", "2100-01-01"))


def test_a_rate_holds_messages_back(command: CommandLine, topic: str) -> None:
    summary = command.document("send", topic, "x", "--count", "6", "--rate", "10")
    assert summary["sent"] == 6 and summary["seconds"] >= 0.5


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "give one of BODY, --lines and --json-lines"),
        (("x", "--lines", "-"), "give one of BODY, --lines and --json-lines"),
        (("--lines", "-", "--count", "2"), "--count repeats a BODY"),
        (("x", "--delay", "soon"), '--delay: "soon" is not a duration'),
        (("x", "--deliver-at", "5"), '--deliver-at: "5" is not a time'),
        (("x", "--delay", "1s", "--deliver-at", "2100-01-01"), "exclude each other"),
    ],
)
def test_wrong_sends(command: CommandLine, topic: str, arguments: tuple[str, ...], text: str) -> None:
    assert text in str(command.refused("send", topic, *arguments, text="x\n"))


def test_an_interrupted_send_says_what_was_sent(served: Metaq, topic: str, command: CommandLine) -> None:
    arguments = ("send", topic, "x", "--count", "100000", "--rate", "50", "-o", "json")
    with subprocess.Popen(
        [*COMMAND, *arguments, "--namesrv", served.nameserver], stdout=subprocess.PIPE, text=True
    ) as process:
        wait_until(lambda: len(tailed(command, topic)) >= 3, interval_s=0.1)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
    summary = json.loads(printed)
    assert process.returncode == 130 and summary["interrupted"]
    assert summary["sent"] == len(tailed(command, topic))


# Tail


def test_tail_selects(command: CommandLine, topic: str) -> None:
    lines = [
        {
            "body": str(n),
            "tag": "even" if n % 2 == 0 else "odd",
            "keys": [f"k{n}"],
            "properties": {"n": str(n)},
        }
        for n in range(10)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    assert command.invoke("send", topic, "--json-lines", "-", text=text).exit_code == 0
    assert bodies(command, topic, "--tag", "even") == ["0", "2", "4", "6", "8"]
    assert bodies(command, topic, "--key", "k3") == ["3"]
    assert bodies(command, topic, "--sql", "n > 6 AND TAGS = 'odd'") == ["7", "9"]
    assert len(bodies(command, topic, "--last", "4")) == 4
    of_one_queue = tailed(command, topic, "--queue", "broker-a:1")
    assert {message["queue_id"] for message in of_one_queue} <= {1}
    assert len(of_one_queue) + len(tailed(command, topic, "--queue", "broker-a:0")) == 10
    printed = command.printed("tail", topic, "--no-follow", "--key", "k3", "-f", r"%t|%T|%k|%b|%h|%%\n")
    assert printed == f"{topic}|odd|k3|3|n=3|%\n"
    rows = command.printed("tail", topic, "--no-follow", "--key", "k3", "-o", "csv").splitlines()
    assert rows[0].startswith("topic,broker,queue_id") and rows[1].startswith(f"{topic},broker-a,")


def test_an_expression_that_the_broker_does_not_evaluate(start_metaq: Start) -> None:
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--data", "data")
    served = start_metaq("serve", *ports, "--set", "enable_property_filter=false")
    command = CommandLine(served.nameserver)
    command.printed("topic", "create", "Plain", "--queues", "2")
    for number in range(4):
        command.printed("send", "Plain", f"m{number}", "--property", f"n={number}")
    assert bodies(command, "Plain", "--sql", "n > 1") == ["m2", "m3"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--last", "1", "--from", "earliest"), "--last and --from exclude each other"),
        (("--tag", "a", "--sql", "b > 1"), "--tag and --sql exclude each other"),
        (("--sql", "b >"), "the expression ends too early"),
        (("--queue", "3"), "is not a queue; write it as broker-a:3"),
        (("--queue", "broker-a:9"), "has no queue 9 on broker-a"),
        (("-f", "%z"), "%z is not an escape"),
    ],
)
def test_wrong_tails(command: CommandLine, topic: str, arguments: tuple[str, ...], text: str) -> None:
    error = command.refused("tail", topic, "--no-follow", *arguments)
    assert text in f"{error.args[0]}; {error.hint}"


def test_a_cluster_that_is_away(metaq: Run) -> None:
    for arguments in (("tail", "T"), ("send", "T", "x"), ("send", "T", "x", "--count", "3"), ("dlq", "list")):
        outcome = metaq(*arguments, "--namesrv", "127.0.0.1:1")
        assert outcome.exit_code == 1 and "127.0.0.1:1" in str(outcome.exception), arguments


def test_tail_begins_at_the_end_and_waits_for_a_broker_that_restarts(
    start_metaq: Start, tmp_path: Path
) -> None:
    nameserver = start_metaq("nameserver", "--listen", "127.0.0.1:0")
    address = ("--namesrv", nameserver.nameserver, "--data", "data")
    broker = start_metaq("broker", "--name", "b1", "--listen", "127.0.0.1:0", *address)
    command = CommandLine(nameserver.nameserver)
    command.printed("topic", "create", "Away", "--queues", "1")
    command.printed("send", "Away", "before")
    errors = tmp_path / "errors"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [*COMMAND, "tail", "Away", "-f", r"%b\n", "--namesrv", nameserver.nameserver],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as tail,
    ):
        try:
            assert tail.stdout is not None
            first = _first_line(command, tail)
            assert first.startswith("probe"), "what was there before is not shown"
            broker.stop()
            wait_until(lambda: "tail waits" in errors.read_text())
            start_metaq("broker", "--name", "b1", "--listen", broker.broker, *address)
            command.printed("send", "Away", "after")
            for line in tail.stdout:
                if not line.startswith("probe"):
                    break
            assert line == "after\n"
            tail.send_signal(signal.SIGINT)
            assert tail.wait(60) == 0
        finally:
            tail.kill()
    assert errors.read_text() == "metaq: broker b1 is away; tail waits and goes on when it is back\n"


def _first_line(command: CommandLine, tail: subprocess.Popen[str]) -> str:
    """Sends until the command, which needs a moment to begin, prints something."""
    import select

    assert tail.stdout is not None
    numbers = iter(range(1_000))

    def came() -> bool:
        command.printed("send", "Away", f"probe {next(numbers)}")
        return bool(select.select([tail.stdout], [], [], 0.2)[0])

    wait_until(came)
    return tail.stdout.readline()
