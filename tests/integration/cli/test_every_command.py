"""Rules that hold for the results of every command, on a broker with messages, members and dead letters."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metaq import Client, Message, Reject
from metaq.admin import Admin
from metaq.cli.exits import NOT_FOUND
from tests.integration.cli.conftest import Run
from tests.support.invoking import CommandLine
from tests.support.metaq import Metaq
from tests.support.waiting import wait_until
from tests.unit.cli.test_command_table import commands

TOPIC, GROUP = "every", "every-group"
SNAKE = re.compile(r"[a-z][a-z0-9_]*")

NOT_HERE = {
    "serve": "runs until it is stopped",
    "nameserver": "runs until it is stopped",
    "dev cluster": "runs until it is stopped",
    "completion": "prints a script",
    "broker drain": "needs a broker group: tests/integration/ha",
    "broker take-over": "needs Apache's broker: tests/interop/test_take_over.py",
    "cluster switch": "needs a broker group: tests/integration/ha",
    "console link": "needs a console: tests/integration/console",
    "pipeline run": "needs a database: tests/integration/pipelines",
    "pipeline verify": "needs Spark: tests/spark",
    "pipeline reread": "needs a database: tests/integration/pipelines",
    "parked list": "needs a consumer's folder: tests/integration/client/test_consumer_modes.py",
    "parked replay": "needs a consumer's folder: tests/integration/client/test_consumer_modes.py",
    "filter list": "needs functions: tests/integration/test_filter_functions.py",
    "transaction commit": "needs an open transaction: test_delayed_and_transaction.py",
    "transaction rollback": "needs an open transaction: test_delayed_and_transaction.py",
    "delayed recall": "needs a delayed message: test_delayed_and_transaction.py",
    "config set": "is `cluster config set`",
    "config unset": "is `cluster config unset`",
    "config export": "needs the folder of a stopped broker: tests/unit/cli/commands/test_config_export.py",
}
SOME = ("send", "tail", "consume", "dlq list")
"""They may print one object per line."""


class Scene:
    """A broker, and the ids of messages on it."""

    def __init__(self, served: Metaq, folder: Path) -> None:
        self.nameserver = served.nameserver
        with Admin(served.nameserver) as admin, Client(served.nameserver) as client:
            admin.topics.create(TOPIC, queues=2)
            with client.producer() as producer:
                for _ in range(3):
                    sent = producer.send(
                        TOPIC, b'{"n": 1}', tag="T", keys=["k1", "k2"], properties={"a": "b;c=d"}
                    )
                self.id = sent.id
                producer.send(TOPIC, b"later", delay=3600)

            @client.consumer(TOPIC, group=GROUP, start="earliest")
            def reject(message: Message) -> None:
                raise Reject("no stock")

            client.start()
            wait_until(lambda: admin.dead_letters.counts([GROUP])[0].stored == 3)
        self.calls: dict[str, tuple[str, ...]] = {
            "send": (TOPIC, "x"),
            "tail": (TOPIC, "--from", "earliest", "--count", "2"),
            "consume": (TOPIC, "--group", "every-reader", "--from", "earliest", "--count", "2"),
            "message trace": (self.id, "--topic", TOPIC),
            "message get": (self.id, "--topic", TOPIC),
            "message find": (TOPIC, "--key", "k1"),
            "message resend": (self.id, "--topic", TOPIC, "--yes"),
            "dlq list": (GROUP, "--all"),
            "dlq show": (GROUP, self.id),
            "dlq reasons": (GROUP,),
            "dlq resend": (GROUP,),
            "dlq purge": (GROUP, "--to", "0", "--yes"),
            "dlq export": (GROUP, str(folder / "letters.jsonl"), "--all"),
            "delayed show": (),
            "delayed list": (),
            "transaction list": (),
            "topic create": (TOPIC, "--queues", "2"),
            "topic list": (TOPIC,),
            "topic show": (TOPIC,),
            "topic update": (TOPIC, "--no-order", "--yes"),
            "topic limit": (TOPIC, "--messages-per-second", "33333"),
            "topic retain": (TOPIC, "--age", "7d", "--size", "10GB"),
            "topic purge": (TOPIC, "--to", "0", "--yes"),
            "topic delete": ("every-gone", "--yes"),
            "group list": (GROUP,),
            "group show": (GROUP, "--stacks"),
            "group create": (GROUP,),
            "group update": (GROUP, "--retries", "16", "--yes"),
            "group reset": (GROUP, TOPIC, "--to", "latest", "--yes"),
            "group clone": (GROUP, "every-copy", "--yes"),
            "group limit": (GROUP, "--messages-per-second", "33333"),
            "group delete": ("every-gone", "--yes"),
            "cluster status": (),
            "cluster connections": (),
            "cluster support-bundle": (str(folder / "bundle.zip"),),
            "cluster config get": ("broker-a",),
            "cluster config set": ("broker-a", "slow_request_ms=1000"),
            "cluster config unset": ("broker-a", "slow_request_ms"),
            "doctor": (),
            "config get": ("broker-a",),
            "config show": (),
            "spark pack": (str(folder / "environment.tar.gz"), "--package", "msgspec"),
            "top": ("--once",),
            "bench produce": ("every-bench", "--seconds", "1"),
            "bench consume": ("every-bench", "--seconds", "1"),
            "bench run": ("every-bench", "--seconds", "1"),
            "context list": (),
            "context show": ("here",),
            "context set": ("here", "--namesrv", served.nameserver),
            "context use": ("here",),
            "context delete": ("gone", "--yes"),
            "pipeline list": (),
            "pipeline status": (),
        }


@pytest.fixture(scope="module")
def scene(served: Metaq, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(served, tmp_path_factory.mktemp("every"))


def leaves() -> Iterator[str]:
    for path, command in commands():
        if not getattr(command, "commands", None):
            yield path


def test_every_command_is_tried_or_has_its_place(scene: Scene) -> None:
    assert sorted({*scene.calls, *NOT_HERE}) == sorted(leaves())
    assert not scene.calls.keys() & NOT_HERE.keys()


def prepared(scene: Scene, metaq: Run, path: str) -> tuple[str, ...]:
    if path == "topic delete":
        metaq("topic", "create", "every-gone")
    elif path == "group delete":
        metaq("group", "create", "every-gone")
    elif path == "cluster support-bundle":
        Path(scene.calls[path][0]).unlink(missing_ok=True)
    elif path.startswith("context"):
        metaq("context", "set", "here", "--namesrv", scene.nameserver)
        metaq("context", "set", "gone", "--namesrv", scene.nameserver)
    return (*path.split(), *scene.calls[path])


@pytest.mark.parametrize("path", [path for path in leaves() if path not in NOT_HERE])
def test_json_and_csv_have_the_same_rules(scene: Scene, metaq: Run, path: str) -> None:
    outcome = metaq(*prepared(scene, metaq, path), "-o", "json")
    assert outcome.exit_code in (0, 10), (outcome.output, outcome.exception)
    lines = outcome.stdout.splitlines()
    document = (
        [json.loads(line) for line in lines] if path in ("tail", "consume") else json.loads(outcome.stdout)
    )
    for key, value in values("", document):
        assert not isinstance(value, float) or value == round(value, 6), (key, value)
    rows = document if isinstance(document, list) else [document]
    for row in rows:
        assert all(SNAKE.fullmatch(key) for key in row), row
        assert "name" not in row or path.split()[0] not in ("topic", "group", "dlq", "message"), row
    outcome = metaq(*prepared(scene, metaq, path), "-o", "csv")
    assert outcome.exit_code in (0, 10), (outcome.output, outcome.exception)
    head, *table = list(csv.reader(io.StringIO(outcome.stdout)))
    assert all(SNAKE.fullmatch(key) for key in head), outcome.stdout
    for fields in table:
        assert len(fields) == len(head), outcome.stdout
        for key, text in zip(head, fields, strict=True):
            assert key == "body" or not is_json(text), (key, text)
            assert not re.fullmatch(r"-?[0-9]+\.[0-9]{7,}", text), (key, text)


def values(key: str, found: Any) -> Iterator[tuple[str, Any]]:
    inside: Any = (
        found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    )
    for name, value in inside:
        yield from values(f"{key}.{name}", value)
    yield key, found


def is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except ValueError:
        return False


@pytest.mark.parametrize(("kind", "name"), [("topic", TOPIC), ("group", GROUP)])
def test_a_list_and_a_show_have_the_same_keys(scene: Scene, kind: str, name: str) -> None:
    command = CommandLine(scene.nameserver)
    [listed] = [row for row in command.document(kind, "list", name) if row[kind] == name]
    shown = command.document(kind, "show", name)
    assert listed[kind] == shown[kind] == name
    same = listed.keys() & shown.keys()
    assert {kind, "kind", "brokers"} <= same
    for key in same:
        # A lag may be unknown in one of them.
        assert None in (listed[key], shown[key]) or type(listed[key]) is type(shown[key]), key


def test_no_letters_are_an_empty_list(scene: Scene, metaq: Run) -> None:
    assert metaq("group", "create", "lives").exit_code == 0
    assert metaq("dlq", "list", "lives", "-o", "json").stdout == "[]\n"
    assert metaq("dlq", "list", "lives", "-o", "csv").stdout.startswith("topic,broker,")
    assert metaq("dlq", "list", "lives").stdout == "lives has no dead letters to send again\n"
    letters = json.loads(metaq("dlq", "list", GROUP, "--all", "-o", "json").stdout)
    assert len(letters) >= 3 and {letter["reason"] for letter in letters} == {"no stock"}


def test_nothing_found_has_a_code_of_its_own(scene: Scene, served: Metaq) -> None:
    assert NOT_FOUND == 3
    for arguments, printed in (
        (("message", "find", TOPIC, "--key", "nobody", "-o", "json"), "[]\n"),
        (
            ("message", "find", TOPIC, "--time", "2001-01-01", "--to", "2001-01-02"),
            f"no message of {TOPIC} was found\n",
        ),
        (("message", "get", "00FF", "--topic", TOPIC), ""),
        (("topic", "show", "nowhere"), ""),
        (("group", "show", "nobody"), ""),
    ):
        outcome = served.run(*arguments)
        assert (outcome.returncode, outcome.stdout) == (NOT_FOUND, printed), (arguments, outcome.stderr)
    unreachable = served.run("topic", "list", "--namesrv", "127.0.0.1:1")
    assert unreachable.returncode == 1


def test_a_group_with_members_is_disabled_only_after_a_yes(scene: Scene, metaq: Run) -> None:
    with (
        Client(scene.nameserver) as client,
        Admin(scene.nameserver) as admin,
        client.subscribe(TOPIC, group="disabled-soon"),
    ):
        wait_until(lambda: admin.groups.members("disabled-soon").members)
        asked = metaq("group", "update", "disabled-soon", "--disabled", text="n\n")
        assert asked.exit_code == 1
        assert "Stop delivery to 1 connected member of disabled-soon?" in asked.stderr
        assert metaq("group", "update", "disabled-soon", "--retries", "3").exit_code == 0, "nothing is lost"
        assert admin.groups.show("disabled-soon").settings[0].enabled
        assert metaq("group", "update", "disabled-soon", "--disabled", "--yes").exit_code == 0
        assert not admin.groups.show("disabled-soon").settings[0].enabled
