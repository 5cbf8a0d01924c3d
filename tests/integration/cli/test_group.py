"""metaq group, against a running broker."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import threading

import pytest

import metaq
import metaq.aio
from metaq.admin import Admin
from metaq.cli.exits import NOT_FOUND
from metaq.client.session.routes import Queue
from tests.support.invoking import CommandLine, cells
from tests.support.metaq import Metaq
from tests.support.waiting import wait_until

DOWN = "127.0.0.1:1"


@pytest.fixture(scope="module")
def command(served: Metaq) -> CommandLine:
    return CommandLine(served.nameserver)


def filled(served: Metaq, command: CommandLine, topic: str, *queues: int) -> None:
    """A topic of two queues with a message for each of the given queues."""
    command.printed("topic", "create", topic, "--queues", "2")
    with metaq.Client(served.nameserver) as client, client.producer() as producer:
        for number in queues:
            producer.send(topic, b"x", queue=Queue(topic, "broker-a", number))


def commit(served: Metaq, group: str, topic: str, *offsets: int) -> None:
    """Commits an offset for each queue of the topic, from queue 0 on."""
    with Admin(served.nameserver) as admin:
        places = {Queue(topic, "broker-a", number): offset for number, offset in enumerate(offsets)}
        admin.offsets.commit(group, places)


def test_the_worst_group_is_listed_first(served: Metaq, command: CommandLine) -> None:
    filled(served, command, "Backlog", 0, 0, 0, 1)
    for group in ("L_idle", "L_current", "L_behind"):
        command.printed("group", "create", group)
    commit(served, "L_current", "Backlog", 3, 1)
    commit(served, "L_behind", "Backlog", 1, 0)
    rows = command.document("group", "list", "L_")
    assert [row["group"] for row in rows] == ["L_behind", "L_current", "L_idle"]
    behind, current, idle = rows
    assert (behind["lag"], behind["member_count"], behind["brokers"]) == (3, 0, ["broker-a"])
    assert 0 <= behind["lag_ms"] < 300_000
    assert (current["lag"], current["lag_ms"]) == (0, None)
    assert (idle["lag"], idle["lag_ms"]) == (None, None), "a group that committed nothing has no known lag"
    printed = cells(command.printed("group", "list", "L_*"))
    assert [line[:2] for line in printed if line and line[0].startswith("L_")] == [
        ["L_behind", "3"],
        ["L_current", "0"],
        ["L_idle", "–"],
    ]
    assert command.document("group", "list", "nothing") == []
    names = {row["group"] for row in command.document("group", "list")}
    everything = {row["group"]: row["kind"] for row in command.document("group", "list", "--all")}
    assert everything["TOOLS_CONSUMER"] == "system"
    assert names == {name for name, kind in everything.items() if kind == "normal"}


def test_a_group_is_created_once_and_updated(command: CommandLine) -> None:
    create = ("group", "create", "Made", "--retries", "3", "--no-broadcast")
    assert command.printed(*create) == "Made is created on broker-a\n"
    assert command.printed(*create) == "Made exists already on broker-a\n"
    error = command.refused("group", "create", "Made")
    assert error.args[0] == "group Made exists on broker-a with retries_max 3, not 16"
    assert "`metaq group update Made`" in error.hint
    [settings] = command.document("group", "update", "Made", "--disabled", "--order", "--yes")["settings"]
    assert settings == {
        "broker": "broker-a",
        "enabled": False,
        "broadcast": False,
        "ordered": True,
        "retries": 3,
        "retry_queues": 1,
        "attributes": {},
    }
    assert command.document("group", "show", "Made")["settings"] == [settings]
    assert command.refused("group", "update", "Made").args[0] == "there is nothing to change"


def test_a_running_group_is_shown_with_members_owners_and_conflicts(
    served: Metaq, command: CommandLine
) -> None:
    filled(served, command, "Watched", 0, 1)
    with (
        metaq.Client(served.nameserver) as one,
        metaq.Client(served.nameserver) as other,
        one.subscribe("Watched", group="Watchers", tags="a"),
        other.subscribe("Watched", group="Watchers"),
    ):
        commit(served, "Watchers", "Watched", 1, 0)
        wait_until(lambda: len(owners(command)) == 2)
        shown = command.document("group", "show", "Watchers")
        connected = command.document("cluster", "connections")
        printed = command.printed("group", "show", "Watchers", "--stacks")
        refused = command.refused("group", "delete", "Watchers", "--yes")
    members = {member["client_id"]: member for member in shown["members"]}
    assert set(members) == {one.client_id, other.client_id}
    assert {member["language"] for member in members.values()} == {"PYTHON"}
    assert {member["version"] for member in members.values()} == {metaq.__version__}
    listed = {row["client_id"]: row for row in connected if row["group"] == "Watchers"}
    for client_id in members:
        assert (listed[client_id]["language"], listed[client_id]["version"]) == ("PYTHON", metaq.__version__)
    assert members[one.client_id]["subscriptions"]["Watched"] == "a"
    assert (members[one.client_id]["error"], members[one.client_id]["stack"]) == (None, None)
    [conflict] = shown["conflicts"]
    assert conflict == {"topic": "Watched", "filters": {one.client_id: "TAG a", other.client_id: "TAG *"}}
    assert shown["broadcasting"] is False
    assert printed.startswith("Watchers: 2 members; ")
    assert "CONFLICT: the members subscribe to Watched in different ways:\n" in printed
    assert printed.count("Stacks of ") == 2 and printed.count("0 busy handlers of Watchers") == 2
    assert printed.rindex("messages per second") > printed.rindex("Stacks of "), "limits come last"
    assert refused.args[0].startswith("2 members of Watchers are connected: ")


def test_stacks_begin_with_the_handlers_that_are_stuck(served: Metaq, command: CommandLine) -> None:
    filled(served, command, "Stuck", *[0] * 3)
    stuck, lets_go = threading.Barrier(4), threading.Event()

    def waits_for_the_bank(message: metaq.Message) -> None:
        stuck.wait(60)
        lets_go.wait(60)

    async def asks_the_bank(message: metaq.Message) -> None:
        while not lets_go.is_set():
            await asyncio.sleep(0.05)

    async def consume_with_tasks() -> None:
        async with metaq.aio.Client(served.nameserver) as client:
            client.consumer("Stuck", group="StuckTasks", start="earliest")(asks_the_bank)
            await client.start()
            while not lets_go.is_set():
                await asyncio.sleep(0.05)

    def stacks(group: str) -> str:
        return command.printed("group", "show", group, "--stacks")

    for _ in range(100):
        threading.Thread(target=lets_go.wait, args=(120,), daemon=True).start()
    try:
        with metaq.Client(served.nameserver) as client:
            client.consumer("Stuck", group="StuckThreads", start="earliest")(waits_for_the_bank)
            client.start()
            stuck.wait(60)
            threads = stacks("StuckThreads")
            raw = command.document("group", "show", "StuckThreads", "--stacks")["members"][0]["stack"]
            lets_go.set()
        lets_go.clear()
        consuming = threading.Thread(target=lambda: asyncio.run(consume_with_tasks()))
        consuming.start()
        wait_until(lambda: "3 busy handlers" in stacks("StuckTasks"), interval_s=0.2)
        tasks = stacks("StuckTasks")
        lets_go.set()
        consuming.join()
    finally:
        lets_go.set()
    for printed, group, culprit in (
        (threads, "StuckThreads", "waits_for_the_bank"),
        (tasks, "StuckTasks", "asks_the_bank"),
    ):
        shown = printed[printed.index("Stacks of ") :].splitlines()
        assert shown[2] == f"3 busy handlers of {group}:"
        assert shown[4].startswith(f"metaq {group} worker ")
        assert any(culprit in line for line in shown[5:25]), printed
        assert len(shown) < 100, printed
    assert raw.count("\n") > 500, "programs get everything"


def owners(command: CommandLine) -> set[str]:
    queues = command.document("group", "show", "Watchers")["queues"]
    return {owner for queue in queues if queue["topic"] == "Watched" for owner in queue["owners"]}


def test_a_group_is_cloned_after_a_preview(served: Metaq, command: CommandLine) -> None:
    filled(served, command, "Cloned", 0, 0, 1)
    command.printed("group", "create", "Source")
    commit(served, "Source", "Cloned", 2, 0)
    clone = ("group", "clone", "Source", "Copy")
    assert ["Cloned", "broker-a", "0", "–", "2", "–"] in cells(command.printed(*clone, "--dry-run"))
    assert command.document("group", "list", "Copy") == [], "a dry run creates nothing"
    refused = command.invoke(*clone, "--topic", "Cloned", text="n\n")
    assert refused.exit_code == 1 and "Move Copy in 2 queues of Cloned?" in refused.stderr
    assert command.printed(*clone, "--yes").endswith("Copy is where Source is, in 2 queues of Cloned\n")
    assert [row["lag"] for row in command.document("group", "list", "Copy")] == [1]
    commit(served, "Source", "Cloned", 2, 1)
    done = command.document(*clone, "--yes")
    place = {"broker": "broker-a", "queue": 0, "committed": 2, "new": 2}
    assert done == {
        "source": "Source",
        "group": "Copy",
        "dry_run": False,
        "topics": [{"topic": "Cloned", "queues": [place, {**place, "queue": 1, "committed": 0, "new": 1}]}],
    }
    command.printed("group", "create", "Blank")
    assert command.refused("group", "clone", "Blank", "Copy").args[0] == "group Blank has committed nothing"


def test_a_reset_prints_each_queue_as_csv(served: Metaq, command: CommandLine) -> None:
    filled(served, command, "Moved", 0, 0)
    command.printed("group", "create", "Mover")
    flags = ("--to", "latest", "--yes", "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(command.printed("group", "reset", "Mover", "Moved", *flags))))
    assert [(row["queue"], row["committed"], row["new"]) for row in rows] == [("0", "", "2"), ("1", "", "0")]
    one = ("--to", "1", "--queue", "broker-a:0", "--yes")
    printed = command.printed("group", "reset", "Mover", "Moved", *one)
    assert ["Moved", "broker-a", "0", "2", "1", "-1"][1:] in cells(printed)
    assert printed.endswith("Mover is moved in 1 queue of Moved\n")


def test_a_limit_creates_the_group_it_names(command: CommandLine) -> None:
    outcome = command.invoke("group", "limit", "Billing", "--messages-per-second", "80000")
    assert outcome.exit_code == 0
    assert outcome.stderr == "metaq: group Billing did not exist and is created\n"
    assert command.document("group", "show", "Billing")["limits"] == [
        {"broker": "broker-a", "messages_per_second": 80_000, "bytes_per_second": None}
    ]
    assert "Biling does not exist" in command.refused("group", "limit", "Biling").args[0]


def test_a_deletion_says_what_goes(served: Metaq, command: CommandLine) -> None:
    filled(served, command, "Left", 0, 0)
    command.printed("group", "create", "Gone")
    commit(served, "Gone", "Left", 1, 0)
    asked = command.invoke("group", "delete", "Gone", text="n\n")
    assert asked.exit_code == 1
    assert asked.stderr.startswith(
        "metaq: this deletes the offsets of Gone in 2 queues of Left; it has not consumed 1 message yet\n"
    )
    with metaq.Client(served.nameserver) as client, client.subscribe("Left", group="Gone"):
        wait_until(lambda: bool(command.document("group", "show", "Gone")["members"]))
        refused = command.refused("group", "delete", "Gone", "--yes")
        assert refused.args[0] == f"1 member of Gone is connected: {client.client_id}"
        assert refused.hint == "stop its consumers first, or add --force"
        forced = command.document("group", "delete", "Gone", "--yes", "--force")
    assert forced == {"group": "Gone", "deleted": True, "brokers": ["broker-a"], "offsets_kept": False}


@pytest.mark.parametrize(
    "arguments",
    [
        ("group", "show", "Absent"),
        ("group", "update", "Absent", "--disabled"),
        ("group", "delete", "Absent", "--yes"),
        ("group", "clone", "Absent", "Other"),
    ],
    ids=lambda arguments: arguments[1],
)
def test_a_group_that_does_not_exist(command: CommandLine, arguments: tuple[str, ...]) -> None:
    assert command.refused(*arguments).args[0] == "group Absent does not exist"


@pytest.mark.parametrize(
    "arguments",
    [
        ("group", "list"),
        ("group", "show", "G"),
        ("group", "create", "G"),
        ("group", "update", "G", "--enabled"),
        ("group", "reset", "G", "T", "--to", "latest"),
        ("group", "clone", "G", "H"),
        ("group", "limit", "G"),
        ("group", "delete", "G", "--yes"),
    ],
    ids=lambda arguments: arguments[1],
)
def test_no_server_is_one_error(arguments: tuple[str, ...]) -> None:
    error = CommandLine(DOWN).refused(*arguments)
    assert error.args[0].startswith(f"no name server answers: {DOWN}: ")


def test_a_process_prints_errors_as_json(served: Metaq) -> None:
    missing = served.run("group", "show", "Nobody", "-o", "json")
    assert (missing.returncode, missing.stdout) == (NOT_FOUND, "")
    assert json.loads(missing.stderr)["error"]["message"] == "group Nobody does not exist"
