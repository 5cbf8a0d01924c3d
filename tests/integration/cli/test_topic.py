"""metaq topic, against a running broker."""

from __future__ import annotations

import csv
import io
import json
import time

import pytest

import metaq
from metaq.admin import Admin
from metaq.client.session.routes import Queue
from tests.support.invoking import CommandLine, cells
from tests.support.metaq import Metaq, run

DOWN = "127.0.0.1:1"


@pytest.fixture(scope="module")
def command(served: Metaq) -> CommandLine:
    return CommandLine(served.nameserver)


def fill(served: Metaq, topic: str, *queues: int) -> None:
    """Sends one message to each of these queues."""
    with metaq.Client(served.nameserver) as client, client.producer() as producer:
        for number in queues:
            producer.send(topic, b"x", queue=Queue(topic, "broker-a", number))


def commit(served: Metaq, group: str, offsets: dict[Queue, int]) -> None:
    with Admin(served.nameserver) as admin:
        admin.groups.create(group)
        admin.offsets.commit(group, offsets)


def test_a_topic_is_created_once_and_never_changed_by_create(served: Metaq, command: CommandLine) -> None:
    create = ("topic", "create", "Once")
    assert command.printed(*create, "--queues", "3") == "Once has 3 queues on broker-a\n"
    assert command.printed(*create, "--queues", "3") == "Once exists already, with 3 queues on broker-a\n"
    record = {"topic": "Once", "queue_count": 3, "permission": 6, "brokers": ["broker-a"], "created": False}
    assert command.document(*create, "--queues", "3") == record
    fill(served, "Once", 2)
    error = command.refused(*create, "--queues", "2")
    assert type(error).__name__ == "AlreadyExists"
    assert error.args[0] == "topic Once exists on broker-a with queues 3, not 2"
    assert "`metaq topic update Once`" in error.hint
    assert [queue["messages"] for queue in command.document("topic", "show", "Once")["queues"]] == [0, 0, 1]
    typed = (*create[:2], "Typed", "--attribute", "message.type=FIFO", "--queues", "1")
    assert command.printed(*typed) == "Typed has 1 queue on broker-a\n"
    [settings] = command.document("topic", "show", "Typed")["settings"]
    assert settings["attributes"] == {"message.type": "FIFO"}


def test_the_list_has_figures_and_hides_what_is_not_the_users(served: Metaq, command: CommandLine) -> None:
    began_ms = time.time() * 1000
    command.printed("topic", "create", "Listed", "--queues", "2")
    command.printed("topic", "create", "%RETRY%ListedGroup", "--queues", "1")
    fill(served, "Listed", 0, 1, 1)
    [row] = command.document("topic", "list", "listed")
    stored = (row.pop("first_stored_ms"), row.pop("last_stored_ms"))
    assert began_ms - 1 <= stored[0] <= stored[1] <= time.time() * 1000 + 1
    # The broker knows rates after ten seconds.
    del row["in_per_second"], row["out_per_second"]
    assert 3 * 100 < row.pop("size_bytes") < 3 * 400
    assert row == {
        "topic": "Listed",
        "kind": "normal",
        "queue_count": 2,
        "messages": 3,
        "brokers": ["broker-a"],
    }
    assert ["Listed", "2", "3"] in [line[:3] for line in cells(command.printed("topic", "list"))]
    names = {row["topic"] for row in command.document("topic", "list")}
    everything = {row["topic"]: row["kind"] for row in command.document("topic", "list", "--all")}
    assert names == {name for name, kind in everything.items() if kind == "normal"}
    assert (everything["TBW102"], everything["%RETRY%ListedGroup"]) == ("system", "retry")
    assert command.document("topic", "list", "Lis?ed")[0]["topic"] == "Listed"
    assert command.document("topic", "list", "none*") == []
    assert command.printed("topic", "list", "none*") == "No topic matches none*.\n"
    table = list(csv.DictReader(io.StringIO(command.printed("topic", "list", "Listed", "-o", "csv"))))
    assert [(line["topic"], line["messages"], line["brokers"]) for line in table] == [
        ("Listed", "3", "broker-a")
    ]


def test_a_topic_is_shown_with_settings_queues_and_groups(served: Metaq, command: CommandLine) -> None:
    command.printed("topic", "create", "Shown", "--queues", "2", "--order")
    fill(served, "Shown", 1, 1)
    commit(served, "Reader", {Queue("Shown", "broker-a", 1): 1})
    shown = command.document("topic", "show", "Shown")
    assert (shown["topic"], shown["kind"], shown["messages"]) == ("Shown", "normal", 2)
    assert (shown["groups"], shown["brokers"]) == (["Reader"], ["broker-a"])
    assert shown["first_stored_ms"] <= shown["last_stored_ms"]
    setting = {"broker": "broker-a", "read_queues": 2, "write_queues": 2, "permission": 6, "ordered": True}
    assert shown["settings"] == [
        {**setting, "messages_per_second": None, "bytes_per_second": None, "attributes": {}}
    ]
    last = shown["queues"][1]
    assert (last["queue"], last["min_offset"], last["max_offset"], last["messages"]) == (1, 0, 2, 2)
    printed = command.printed("topic", "show", "Shown")
    assert printed.startswith("Shown: 2 messages in 2 queues on broker-a\noldest message stored ")
    assert "consumed by Reader\n" in printed
    assert ["broker-a", "1", "0", "2", "2"] in [line[:5] for line in cells(printed)]


def test_queues_shrink_only_after_a_warning_and_a_question(served: Metaq, command: CommandLine) -> None:
    command.printed("topic", "create", "Shrinks", "--queues", "4")
    fill(served, "Shrinks", 0, 2, 3, 3)
    update = ("topic", "update", "Shrinks", "--queues", "2")
    refused = command.invoke(*update, text="n\n")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("metaq: Shrinks would lose 2 queues, which hold 3 messages: ")
    assert len(command.document("topic", "show", "Shrinks")["queues"]) == 4, "the answer was no"
    kept = command.document("topic", "update", "Shrinks", "--write-queues", "2")["settings"][0]
    assert (kept["read_queues"], kept["write_queues"]) == (4, 2), "consumers still read all of them"
    assert command.invoke(*update, text="y\n").exit_code == 0
    assert len(command.document("topic", "show", "Shrinks")["queues"]) == 2
    [grown] = command.document("topic", "update", "Shrinks", "--queues", "6")["settings"]
    assert (grown["read_queues"], grown["write_queues"]) == (6, 6), "growing needs no question"
    without = command.invoke("topic", "update", "Shrinks", "--queues", "5", "--yes")
    assert without.exit_code == 0
    assert without.stderr == "metaq: Shrinks would lose 1 queue, without messages\n"


def test_other_settings_are_changed_and_the_rest_stays(command: CommandLine) -> None:
    command.printed("topic", "create", "Changed", "--queues", "2", "--attribute", "message.type=FIFO")
    flags = ("--permission", "4", "--order", "--attribute", "message.type=", "--messages-per-second", "50")
    [changed] = command.document("topic", "update", "Changed", *flags)["settings"]
    assert (changed["permission"], changed["ordered"], changed["read_queues"]) == (4, True, 2)
    assert (changed["messages_per_second"], "message.type" in changed["attributes"]) == (50, False)
    [again] = command.document("topic", "update", "Changed", "--no-order")["settings"]
    assert again == {**changed, "ordered": False}
    assert "read " in command.printed("topic", "show", "Changed")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "there is nothing to change"),
        (("--write-queues", "9"), "--write-queues 9 is more than the 2 queues that consumers read"),
        (("--attribute", "x"), '--attribute: "x" is not an attribute'),
        (("--messages-per-second", "many"), "--messages-per-second many: "),
    ],
)
def test_an_update_that_cannot_be(command: CommandLine, flags: tuple[str, ...], message: str) -> None:
    command.printed("topic", "create", "Stays", "--queues", "2")
    assert command.refused("topic", "update", "Stays", *flags).args[0].startswith(message)


def test_a_deletion_says_what_goes(served: Metaq, command: CommandLine) -> None:
    command.printed("topic", "create", "Doomed", "--queues", "2")
    fill(served, "Doomed", 0)
    commit(served, "Mourner", {Queue("Doomed", "broker-a", 0): 1})
    asked = command.invoke("topic", "delete", "Doomed", text="n\n")
    assert asked.exit_code == 1
    assert asked.stderr.startswith(
        "metaq: this deletes 1 message in 2 queues on broker-a, and the offsets of 1 group: Mourner\n"
    )
    assert command.document("topic", "delete", "Doomed", "--yes") == {
        "topic": "Doomed",
        "deleted": True,
        "brokers": ["broker-a"],
    }
    missing = command.refused("topic", "delete", "Doomed")
    assert missing.args[0] == "topic Doomed does not exist"


def test_a_name_that_is_nearly_right_is_suggested(command: CommandLine) -> None:
    command.printed("topic", "create", "Payments")
    for subcommand in ("show", "update", "delete"):
        flags = ("--queues", "9") if subcommand == "update" else ()
        error = command.refused("topic", subcommand, "payment", *flags)
        assert error.hint.startswith("did you mean Payments?"), subcommand


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "list"),
        ("topic", "show", "T"),
        ("topic", "create", "T"),
        ("topic", "update", "T", "--queues", "1"),
        ("topic", "delete", "T", "--yes"),
    ],
    ids=lambda arguments: arguments[1],
)
def test_no_server_is_one_error(arguments: tuple[str, ...]) -> None:
    error = CommandLine(DOWN).refused(*arguments)
    assert error.args[0].startswith(f"no name server answers: {DOWN}: ")


def test_a_process_ends_with_one_line_and_a_code(served: Metaq) -> None:
    served.run("topic", "create", "Process", "--queues", "1")
    differs = served.run("topic", "create", "Process", "--queues", "2", "-o", "json")
    assert (differs.returncode, differs.stdout) == (1, "")
    error = json.loads(differs.stderr)["error"]
    assert (error["type"], error["exit_code"]) == ("AlreadyExists", 1)
    assert run("topic", "list", "--namesrv", DOWN).returncode == 1
    assert served.run("topic", "create", "Process", "--queues", "0").returncode == 2
