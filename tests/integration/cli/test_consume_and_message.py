"""metaq consume, and metaq message: get, find, resend."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest

import metaq
from metaq.admin import Admin
from metaq.cli.exits import NOT_FOUND
from metaq.errors import NoSuchMessage
from tests.support.invoking import CommandLine, cells
from tests.support.metaq import COMMAND, Metaq
from tests.support.waiting import wait_until


@pytest.fixture
def command(served: Metaq) -> CommandLine:
    return CommandLine(served.nameserver)


@pytest.fixture
def topic(command: CommandLine) -> str:
    """A topic with ten messages in one queue."""
    name = f"T_{uuid4().hex[:8]}"
    command.printed("topic", "create", name, "--queues", "1")
    command.printed("send", name, "m%d", "--count", "10", "--tag", "t", "--key", "k")
    return name


def committed(served: Metaq, group: str, topic: str) -> list[int | None]:
    with Admin(served.nameserver) as admin:
        return list(admin.offsets.committed(group, admin.topics.route(topic).readable).values())


def consumed(command: CommandLine, topic: str, group: str, *arguments: str) -> list[dict[str, Any]]:
    printed = command.printed("consume", topic, "--group", group, "-o", "json", *arguments)
    return [json.loads(line) for line in printed.splitlines()]


# Consume


def test_each_printed_message_is_acknowledged(served: Metaq, command: CommandLine, topic: str) -> None:
    group = f"G_{topic}"
    first = consumed(command, topic, group, "--count", "3")
    assert [message["body"] for message in first] == ["m1", "m2", "m3"]
    assert committed(served, group, topic) == [3]
    kept = consumed(command, topic, group, "--count", "2", "--no-ack")
    assert [message["body"] for message in kept] == ["m4", "m5"]
    assert committed(served, group, topic) == [3], "nothing was acknowledged"
    rest = consumed(command, topic, group, "--idle", "2")
    assert [message["body"] for message in rest] == [f"m{number}" for number in range(4, 11)]
    assert committed(served, group, topic) == [10]
    outcome = command.invoke("consume", topic, "--group", group, "--from", "earliest", "--idle", "0.5")
    assert (outcome.exit_code, outcome.stdout) == (0, "")
    assert "continues there, not at --from" in outcome.stderr


def test_rejected_messages_are_dead_letters(command: CommandLine, topic: str) -> None:
    group = f"G_{topic}"
    command.printed("consume", topic, "--group", group, "--count", "2", "--reject")
    letters = command.document("dlq", "list", group)
    assert [letter["body"] for letter in letters] == ["m1", "m2"]
    assert {letter["reason"] for letter in letters} == {"rejected with metaq consume --reject"}


def test_filters_and_templates(command: CommandLine, topic: str) -> None:
    command.printed("send", topic, "other", "--tag", "u", "--property", "n=7")
    by_tag = ("--tag", "u", "--count", "1", "-f", r"%T %b\n")
    assert command.printed("consume", topic, "--group", f"A_{topic}", *by_tag) == "u other\n"
    by_sql = ("--sql", "n = 7", "--count", "1", "-f", r"%b\n")
    assert command.printed("consume", topic, "--group", f"B_{topic}", *by_sql) == "other\n"


def running(served: Metaq, arguments: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, "consume", *arguments, "--namesrv", served.nameserver], stdout=subprocess.PIPE, **options
    )


def test_ctrl_c_acknowledges_what_was_printed(served: Metaq, topic: str) -> None:
    group = f"G_{topic}"
    with running(served, [topic, "--group", group, "-f", r"%b\n"], stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        printed = [process.stdout.readline() for _ in range(10)]
        process.send_signal(signal.SIGINT)
        left, errors = process.communicate(timeout=60)
    assert (process.returncode, left, errors) == (0, b"", b"")
    assert printed[-1] == b"m10\n" and committed(served, group, topic) == [10]


def test_a_broken_pipe_acknowledges_nothing_that_was_not_written(
    served: Metaq, command: CommandLine, topic: str
) -> None:
    group = f"G_{topic}"
    # Bodies larger than a pipe's buffer, so that a write ends only when its reader has read.
    for _ in range(3):
        assert command.invoke("send", topic, "-", "--tag", "large", text="x" * 300_000).exit_code == 0
    arguments = [topic, "--group", group, "--tag", "large", "-f", "%b"]
    with running(served, arguments, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert len(process.stdout.read(300_000)) == 300_000
        process.stdout.close()
        assert process.wait(60) == 1
        assert process.stderr.read() == b""
    assert committed(served, group, topic) == [11], "the first large message, and no other"


def test_members_with_another_subscription_are_not_joined(
    served: Metaq, command: CommandLine, topic: str
) -> None:
    group = f"G_{topic}"
    with (
        metaq.Client(served.nameserver) as client,
        client.subscribe(topic, group=group, tags="t") as subscribed,
    ):
        subscribed.start(30)
        error = command.refused("consume", topic, "--group", group)
        assert f"group {group} has 1 member with another subscription: {topic} (t)" in str(error)
    wait_until(lambda: command.invoke("consume", topic, "--group", group, "--idle", "0.2").exit_code == 0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--no-ack", "--reject"), "--no-ack and --reject exclude each other"),
        (("--from", "5"), "a group cannot begin at an offset"),
        (("--tag", "a", "--sql", "b = 1"), "--tag and --sql exclude each other"),
        (("-f", "%!"), "%! is not an escape"),
    ],
)
def test_wrong_consumes(command: CommandLine, topic: str, arguments: tuple[str, ...], text: str) -> None:
    assert text in str(command.refused("consume", topic, "--group", "G", *arguments))


def test_a_topic_that_is_not_there(command: CommandLine, topic: str) -> None:
    for arguments in (
        ("consume", topic.lower(), "--group", "G"),
        ("message", "find", topic.lower(), "--key", "k"),
    ):
        assert topic in command.refused(*arguments).hint, "the error has the name that is like it"


# Message


def test_a_message_is_shown(command: CommandLine, topic: str) -> None:
    body = '{"order": 7}'
    sent = command.document("send", topic, body, "--key", "o7", "--tag", "new", "--property", "p=1")
    by_id = command.document("message", "get", sent["id"], "--topic", topic)
    by_place = command.document("message", "get", sent["offset_id"])
    assert by_id == by_place
    for key in ("id", "offset_id", "queue_id", "queue_offset", "topic", "broker"):
        assert by_id[key] == sent[key], key
    assert (by_id["body"], by_id["tag"], by_id["keys"], by_id["other_offset_ids"]) == (
        body,
        "new",
        ["o7"],
        [],
    )
    text = command.printed("message", "get", sent["offset_id"])
    for expected in (sent["id"], "o7", "p = 1", "TAGS = new", body, "12 bytes"):
        assert expected in text
    assert '\n  "order": 7\n' in command.printed("message", "get", sent["offset_id"], "--body", "json")
    assert "7b 22 6f 72" in command.printed("message", "get", sent["offset_id"], "--body", "hex")
    assert command.printed("message", "get", sent["offset_id"], "--body", "raw") == body
    assert command.printed("message", "get", sent["offset_id"], "-o", "csv").count("\n") == 2


def test_messages_that_are_not_there(command: CommandLine, topic: str) -> None:
    sent = command.document("send", topic, "x")
    without_topic = command.refused("message", "get", sent["id"])
    assert isinstance(without_topic, NoSuchMessage) and "add --topic" in without_topic.hint
    assert isinstance(command.refused("message", "get", "F" * 32, "--topic", topic), NoSuchMessage)
    assert "is not an offset id" in str(command.refused("message", "get", "nonsense"))
    assert "not JSON" in str(command.refused("message", "get", sent["offset_id"], "--body", "json"))


def test_messages_are_found(command: CommandLine, topic: str) -> None:
    found = command.document("message", "find", topic, "--key", "k")
    assert [message["body"] for message in found] == [f"m{number}" for number in range(1, 11)]
    few = command.invoke("message", "find", topic, "--time", "-1h", "--limit", "2", "-o", "json")
    assert [message["body"] for message in json.loads(few.stdout)] == ["m1", "m2"]
    assert "these are the first 2; there may be more" in few.stderr
    assert any(
        "broker-a:0:0" in row and "m1" in row
        for row in cells(command.printed("message", "find", topic, "--key", "k"))
    )
    nothing = command.invoke("message", "find", topic, "--time", "-2h", "--to", "-1h", "-o", "json")
    assert (nothing.stdout, nothing.exit_code) == ("[]\n", NOT_FOUND)
    unknown = command.invoke("message", "find", topic, "--key", "no")
    assert (unknown.stdout, unknown.exit_code) == (f"no message of {topic} was found\n", NOT_FOUND)
    assert "nothing to search for" in str(command.refused("message", "find", topic))
    assert "is not a time" in str(command.refused("message", "find", topic, "--time", "7"))


def test_a_message_is_sent_again_after_a_question(served: Metaq, command: CommandLine, topic: str) -> None:
    group = f"G_{topic}"
    sent = command.document("send", topic, "again", "--key", "a")
    resend = ("message", "resend", sent["id"], "--topic", topic)
    refused = command.invoke(*resend, text="n\n")
    assert refused.exit_code == 1
    assert f"Send this message again to topic {topic}, so that all its groups get it?" in refused.stderr
    assert len(command.document("message", "find", topic, "--key", "a")) == 1
    printed = command.invoke(*resend, "-o", "json", text="y\n").stdout
    copy = json.loads(printed[printed.index("{") :])  # The runner echoes the answer.
    assert (copy["id"], copy["topic"], copy["queue_offset"]) == (sent["id"], topic, sent["queue_offset"] + 1)
    shown = command.document("message", "get", sent["id"], "--topic", topic)
    assert shown["other_offset_ids"] == [copy["offset_id"]]
    assert f"group {group} does not exist" in str(command.refused(*resend, "--group", group, "--yes"))
    consumed(command, topic, group, "--count", "1")
    alone = command.document(*resend, "--group", group, "--yes")
    assert alone["topic"] == f"%RETRY%{group}"
    bodies = [message["body"] for message in consumed(command, topic, group, "--idle", "3")]
    assert bodies.count("again") == 3, "the first, the copy for all and the copy for this group"
