"""The commands against a running MetaQ: what they print, what they refuse, how they end."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import time
import zlib
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from metaq.cli import app
from metaq.cli.exits import NOT_FOUND
from metaq.errors import MetaqError
from metaq.protocol.command import Command
from metaq.protocol.commands.routes import GetKeyValue, PutKeyValue, ValueOfKey
from metaq.protocol.reply import Reply
from tests.support.metaq import COMMAND, Metaq, run
from tests.support.patient import Connection

Start = Callable[..., Metaq]


def lines(outcome: subprocess.CompletedProcess[str]) -> list[str]:
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout.splitlines()


def document(outcome: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert outcome.returncode == 0, outcome.stderr
    parsed = json.loads(outcome.stdout)
    assert isinstance(parsed, dict)
    return parsed


def messages(outcome: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines(outcome)]


def topics(served: Metaq, *flags: str) -> set[str]:
    return {topic["topic"] for topic in json.loads(served.run("topic", "list", *flags, "-o", "json").stdout)}


def test_a_topic_lives_and_dies(served: Metaq) -> None:
    created = document(served.run("topic", "create", "Life", "--queues", "3", "-o", "json"))
    made = {"topic": "Life", "queue_count": 3, "permission": 6, "brokers": ["broker-a"]}
    assert created == {**made, "created": True}
    assert "Life" in topics(served)
    assert "TBW102" not in topics(served)
    assert {"Life", "TBW102"} <= topics(served, "--all")
    queues = document(served.run("topic", "show", "Life", "-o", "json"))["queues"]
    assert isinstance(queues, list) and [queue["queue"] for queue in queues] == [0, 1, 2]
    assert lines(served.run("topic", "delete", "Life", "--yes")) == ["Life is deleted from broker-a"]
    assert "Life" not in topics(served)


def test_deleting_asks_first(served: Metaq) -> None:
    served.run("topic", "create", "Kept")
    assert served.run("topic", "delete", "Kept", text="n\n").returncode == 1
    assert "Kept" in topics(served)
    assert served.run("topic", "delete", "Kept", text="y\n").returncode == 0


@pytest.mark.parametrize(
    "arguments", [("topic", "show", "None"), ("topic", "delete", "None", "--yes"), ("tail", "None")]
)
def test_a_topic_that_is_not_there(served: Metaq, arguments: tuple[str, ...]) -> None:
    outcome = served.run(*arguments)
    assert outcome.returncode == NOT_FOUND
    assert outcome.stderr.startswith("metaq: topic None does not exist; `metaq topic create None` creates it")
    assert outcome.stderr.count("\n") == outcome.stderr.count("metaq topic list") == 1


def test_what_is_sent_is_read(served: Metaq) -> None:
    served.run("topic", "create", "Read", "--queues", "2")
    sent = document(
        served.run(
            *("send", "Read", "hällo", "--tag", "t", "--key", "k1", "--key", "k2"),
            *("--property", "colour=blue", "--queue", "1", "-o", "json"),
        )
    )
    assert (sent["status"], sent["broker"], sent["queue_id"], sent["queue_offset"]) == (
        "SEND_OK",
        "broker-a",
        1,
        0,
    )
    [read] = messages(served.run("tail", "Read", "--no-follow", "-o", "json"))
    assert (read["body"], read["queue_id"], read["queue_offset"]) == ("hällo", 1, 0)
    assert (read["id"], read["offset_id"]) == (sent["id"], sent["offset_id"])
    properties = read["properties"]
    assert isinstance(properties, dict)
    assert {
        "TAGS": "t",
        "KEYS": "k1 k2",
        "colour": "blue",
        "UNIQ_KEY": sent["id"],
    }.items() <= properties.items()


def test_a_first_message_makes_its_topic(served: Metaq) -> None:
    assert lines(served.run("send", "Fresh", "x"))[0].startswith("SEND_OK Fresh broker-a queue ")
    assert [
        message["body"]
        for message in messages(
            served.run("tail", "Fresh", "--from", "earliest", "--count", "1", "-o", "json")
        )
    ] == ["x"]


def test_what_is_there_comes_in_the_order_it_was_stored(served: Metaq) -> None:
    served.run("topic", "create", "Order", "--queues", "4")
    for number in range(8):
        lines(served.run("send", "Order", f"m{number}", "--queue", str(number % 4)))
        time.sleep(0.005)  # Store times are in milliseconds.
    read = messages(served.run("tail", "Order", "--no-follow", "-o", "json"))
    assert [message["body"] for message in read] == [f"m{number}" for number in range(8)]
    stored_ms = read[3]["store_timestamp_ms"]
    assert isinstance(stored_ms, int)
    third = datetime.fromtimestamp(stored_ms / 1000).isoformat()
    since = messages(served.run("tail", "Order", "--no-follow", "-o", "json", "--from", third))
    assert [message["body"] for message in since] == [f"m{number}" for number in range(3, 8)]
    assert len(lines(served.run("tail", "Order", "--no-follow", "--from", "-1h"))) == 8
    assert len(lines(served.run("tail", "Order", "--no-follow", "--from", "1"))) == 4, "one of each queue"
    assert lines(served.run("tail", "Order", "--no-follow", "--from", "latest")) == []
    assert len(lines(served.run("tail", "Order", "--from", "earliest", "--count", "2"))) == 2


def test_bodies_that_are_no_text(served: Metaq) -> None:
    served.run("topic", "create", "Odd", "--queues", "1")
    served.run("send", "Odd", "-", text="two\nlines\x1b[31m")
    [line] = lines(served.run("tail", "Odd", "--no-follow"))
    assert line.endswith(r" 0:0 two\nlines\x1b[31m")
    subprocess.run(
        [*COMMAND, "send", "Odd", "-", "--namesrv", served.nameserver],
        input=zlib.compress(b"x"),
        check=True,
        timeout=60,
        capture_output=True,
    )
    _, read = messages(served.run("tail", "Odd", "--no-follow", "-o", "json"))
    assert (read["body"], read["body_base64"]) == (None, "eJyrAAAAeQB5")


def test_following_shows_what_arrives(served: Metaq) -> None:
    served.run("topic", "create", "Follow", "--queues", "2")
    served.run("send", "Follow", "before")
    with subprocess.Popen(
        [*COMMAND, "tail", "Follow", "--last", "1", "--namesrv", served.nameserver],
        stdout=subprocess.PIPE,
        text=True,
    ) as tail:
        assert tail.stdout is not None
        try:
            assert tail.stdout.readline().endswith(" before\n")
            for number in range(3):
                served.run("send", "Follow", f"after {number}")
                assert tail.stdout.readline().endswith(f" after {number}\n")
            tail.send_signal(signal.SIGINT)
            assert tail.wait(60) == 0
        finally:
            tail.kill()


def test_a_reader_that_has_seen_enough_is_no_error(served: Metaq) -> None:
    served.run("topic", "create", "Pipe", "--queues", "1")
    served.run("send", "Pipe", "-", text="x" * 1_000_000)
    served.run("send", "Pipe", "-", text="x" * 1_000_000)
    metaq = f"{' '.join(COMMAND)} tail Pipe --no-follow --namesrv {served.nameserver}"
    outcome = subprocess.run(
        f"{metaq} | head -c 10", shell=True, capture_output=True, text=True, check=True, timeout=60
    )
    assert (len(outcome.stdout), outcome.stderr) == (10, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("send", "Read", "x", "--queue", "99"), "metaq: Read has no queue 99 that can be written to"),
        (("send", "bad topic", "x"), "metaq: .*topic.*"),
        (("topic", "create", "bad/name"), "metaq: .*topic.*"),
        (
            ("topic", "create", "T", "--cluster", "Other"),
            "metaq: no broker is registered with cluster Other.*",
        ),
        (("send", "SCHEDULE_TOPIC_XXXX", "x"), "metaq: .*"),
    ],
)
def test_refusals_are_one_line(served: Metaq, arguments: tuple[str, ...], message: str) -> None:
    served.run("topic", "create", "Read", "--queues", "2")
    outcome = served.run(*arguments)
    assert outcome.returncode == (NOT_FOUND if "Other" in arguments else 1)
    assert re.fullmatch(message + "\n", outcome.stderr), outcome.stderr


def invoke(served: Metaq, *arguments: str, text: str | None = None) -> Result:
    """A command in this process, which is quicker than one of its own."""
    return CliRunner().invoke(app, arguments, input=text, env={"METAQ_NAMESRV": served.nameserver})


def invoked(served: Metaq, *arguments: str, text: str | None = None) -> str:
    outcome = invoke(served, *arguments, text=text)
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


def committed(served: Metaq, group: str) -> list[object]:
    shown = json.loads(invoked(served, "group", "show", group, "-o", "json"))
    return [queue["committed"] for queue in shown["queues"]]


def test_a_group_is_reset_after_a_look_and_a_question(served: Metaq) -> None:
    invoked(served, "topic", "create", "Reset", "--queues", "2")
    for number in range(3):
        invoked(served, "send", "Reset", f"m{number}", "--queue", "0")
    reset = ("group", "reset", "Mover", "Reset", "--to")
    missing = served.run(*reset, "latest", "--yes")
    assert missing.returncode == NOT_FOUND
    assert missing.stderr.startswith("metaq: group Mover does not exist; ")
    invoked(served, "group", "limit", "Mover", "--create")
    plan = {"broker": "broker-a", "queue": 0, "committed": None, "new": 3}
    shown = {"group": "Mover", "topic": "Reset", "queues": [plan, {**plan, "queue": 1, "new": 0}]}
    dry = json.loads(invoked(served, *reset, "latest", "--dry-run", "-o", "json"))
    assert dry == {**shown, "dry_run": True}
    assert committed(served, "Mover") == []
    assert invoke(served, *reset, "latest", text="n\n").exit_code == 1
    assert committed(served, "Mover") == [], "the answer was no"
    assert invoked(served, *reset, "latest", text="y\n").endswith("Mover is moved in 2 queues of Reset\n")
    assert committed(served, "Mover") == [3, 0]
    done = json.loads(invoked(served, *reset, "1", "--queue", "broker-a:0", "--yes", "-o", "json"))
    assert done == {**shown, "dry_run": False, "queues": [{**plan, "committed": 3, "new": 1}]}
    assert committed(served, "Mover") == [1, 0]
    printed = [line.split() for line in invoked(served, *reset, "-1h", "--dry-run").splitlines()]
    assert ["broker-a", "0", "1", "0", "-1"] in printed
    invoked(served, *reset, "earliest", "--yes")
    assert committed(served, "Mover") == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--to", "yesterday"),
            '--to: "yesterday" is not a valid time; use -10m, 2026-01-31T12:00 or an offset',
        ),
        (
            ("--to", "9", "--queue", "broker-a:0"),
            "offset 9 is outside queue 0 of Bad on broker-a; it holds 0 to 0",
        ),
        (("--to", "latest", "--queue", "3"), '--queue: "3" is not a queue; write it as broker-a:3'),
        (("--to", "latest", "--queue", "broker-a:9"), "topic Bad has no queue 9 on broker-a"),
    ],
)
def test_a_reset_that_cannot_be(served: Metaq, arguments: tuple[str, ...], message: str) -> None:
    invoked(served, "topic", "create", "Bad")
    invoked(served, "group", "limit", "BadGroup", "--create")
    error = invoke(served, "group", "reset", "BadGroup", "Bad", *arguments, "--yes").exception
    assert isinstance(error, MetaqError)
    assert "; ".join(text for text in (error.args[0], error.hint) if text) == message


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_cleanly(start_metaq: Start, tmp_path: Path, number: signal.Signals) -> None:
    started = start_metaq("serve", "--namesrv-port", "0", "--broker-port", "0", "--data", "data")
    assert set(started.ready) == {"role", "nameserver", "broker", "broker_old", "data", "metrics"}
    assert (tmp_path / "data" / "abort").exists()
    started.child.process.send_signal(number)
    assert started.child.process.wait(60) == 0
    assert not (tmp_path / "data" / "abort").exists()
    assert "Traceback" not in started.child.tail()


def test_messages_outlive_the_process(start_metaq: Start) -> None:
    arguments = (
        "serve",
        "--namesrv-port",
        "0",
        "--broker-port",
        "0",
        "--data",
        "data",
        "--set",
        "commit_log_file_bytes=1MiB",
    )
    first = start_metaq(*arguments)
    lines(first.run("send", "Lasting", "still here"))
    first.child.kill()
    second = start_metaq(*arguments)
    [read] = messages(second.run("tail", "Lasting", "--no-follow", "-o", "json"))
    assert read["body"] == "still here"


@pytest.mark.parametrize("role", ["serve", "nameserver"])
def test_what_tools_have_set_outlives_the_process(start_metaq: Start, role: str) -> None:
    arguments = {
        "serve": ("--namesrv-port", "0", "--broker-port", "0", "--data", "data"),
        "nameserver": ("--listen", "127.0.0.1:0", "--set", "kv_file=kept/values.json"),
    }[role]

    async def ask(nameserver: str, command: Command) -> Reply:
        connection = await Connection.open(nameserver)
        try:
            return (await connection.call(command)).check()
        finally:
            await connection.close()

    first = start_metaq(role, *arguments)
    asyncio.run(ask(first.nameserver, PutKeyValue("ORDER_TOPIC_CONFIG", "T", "broker-a:4")))
    first.child.kill()
    second = start_metaq(role, *arguments)
    reply = asyncio.run(ask(second.nameserver, GetKeyValue("ORDER_TOPIC_CONFIG", "T")))
    assert reply.header(ValueOfKey).value == "broker-a:4"


def test_each_role_tells_its_own_addresses(start_metaq: Start) -> None:
    nameserver = start_metaq("nameserver", "--listen", "127.0.0.1:0")
    assert set(nameserver.ready) == {"role", "nameserver"}
    broker = start_metaq(
        *(
            "broker",
            "--name",
            "b7",
            "--listen",
            "127.0.0.1:0",
            "--namesrv",
            nameserver.nameserver,
            "--data",
            "b7",
        )
    )
    assert set(broker.ready) == {"role", "broker", "broker_old", "data", "metrics"}
    assert "SEND_OK T b7 " in nameserver.run("send", "T", "x").stdout


def test_a_taken_port_says_what_to_do(start_metaq: Start) -> None:
    nameserver = start_metaq("nameserver", "--listen", "127.0.0.1:0")
    outcome = run("nameserver", "--listen", nameserver.nameserver)
    assert outcome.returncode == 1
    assert outcome.stderr.startswith(
        f"metaq: cannot listen on {nameserver.nameserver}: Address already in use"
    )
    assert "; choose another port with --listen; 0 takes a free one\n" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_a_store_belongs_to_one_process(served: Metaq) -> None:
    outcome = run("broker", "--listen", "127.0.0.1:0", "--data", served.ready["data"])
    assert outcome.returncode == 1
    assert "metaq: the store cannot be opened: " in outcome.stderr
    assert "Traceback" not in outcome.stderr
