"""metaq dlq against a running MetaQ."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from metaq._core import Record
from metaq.admin import READ, WRITE, Admin
from metaq.admin.messages.dead_letters import general_reason
from metaq.cli.exits import NOT_FOUND, code_of
from metaq.errors import MetaqError, explained
from metaq.protocol.commands.messages import ConsumerSendMsgBack
from tests.support.broker_cluster import connected
from tests.support.invoking import CommandLine
from tests.support.metaq import Metaq


@dataclass(frozen=True)
class Outcome:
    """The end of a command that ran in this process, which costs less than a process for each."""

    returncode: int
    stdout: str
    stderr: str


def run(served: Metaq, *arguments: str) -> Outcome:
    result = CommandLine(served.nameserver).invoke(*arguments)
    error = result.exception
    stderr = f"metaq: {explained(error)}" if isinstance(error, MetaqError) else result.stderr
    code = code_of(error) if isinstance(error, MetaqError) else result.exit_code
    return Outcome(code, result.stdout, stderr)


@pytest.fixture
def group(served: Metaq) -> str:
    """A group that has given up three messages."""
    name = f"G_{uuid4().hex[:8]}"
    topic = f"T_{name}"

    async def give_up() -> None:
        async with connected(served.broker) as client:
            await client.heartbeat(name, topic)
            for number in range(3):
                unique_id = f"{uuid4().hex[:24]}{number:08d}".upper()
                sent = await client.send(topic, b"letter-%d" % number, KEYS=f"k{number}", UNIQ_KEY=unique_id)
                back = ConsumerSendMsgBack(
                    physical_offset=int(sent.msg_id[-16:], 16),
                    group=name,
                    delay_level=-1,
                    failure_reason="no customer\x01KEYS\x02" if number == 1 else None,
                    failure_type="LookupError" if number == 1 else None,
                )
                (await client.connection.call(back)).check()

    asyncio.run(give_up())
    return name


def retried(served: Metaq, group: str) -> list[Record]:
    """Reads the group's retry topic."""

    async def read() -> list[Record]:
        async with connected(served.broker, "reader") as client:
            await client.heartbeat(group, f"%RETRY%{group}")
            return (await client.pull(group, f"%RETRY%{group}"))[1]

    return asyncio.run(read())


def listed(served: Metaq, group: str, *more: str) -> list[dict[str, object]]:
    outcome = run(served, "dlq", "list", group, "-o", "json", *more)
    assert outcome.returncode == 0, outcome.stderr
    return list(json.loads(outcome.stdout))


def test_all_are_sent_again_once(served: Metaq, group: str) -> None:
    letters = listed(served, group)
    assert [letter["body"] for letter in letters] == ["letter-0", "letter-1", "letter-2"]
    assert {letter["origin_topic"] for letter in letters} == {f"T_{group}"}
    outcome = run(served, "dlq", "resend", group)
    assert outcome.stdout.endswith(f"3 dead letters of {group} sent again\n")
    sent = [line.removeprefix("sent ") for line in outcome.stdout.splitlines()[:-1]]
    assert sent == [letter["offset_id"] for letter in letters]
    again = retried(served, group)
    assert [record.body for record in again] == [b"letter-0", b"letter-1", b"letter-2"]
    for number, record in enumerate(again):
        assert record.reconsume_times == 0
        assert record.properties["RETRY_TOPIC"] == f"T_{group}"
        assert record.properties["KEYS"] == f"k{number}"
        assert "DLQ_ORIGIN_TOPIC" not in record.properties
    assert listed(served, group) == []
    assert len(listed(served, group, "--all")) == 3
    assert json.loads(run(served, "dlq", "resend", group, "-o", "json").stdout) == {
        "group": group,
        "resent": 0,
        "failed": 0,
        "letters": [],
    }


def test_single_ones_are_not_sent_a_second_time(served: Metaq, group: str) -> None:
    letters = listed(served, group)
    assert letters[1]["id"] != letters[1]["offset_id"]
    for wanted in (letters[1]["id"], letters[2]["offset_id"]):
        assert run(served, "dlq", "resend", group, "--id", str(wanted)).returncode == 0
    assert [record.body for record in retried(served, group)] == [b"letter-1", b"letter-2"]
    assert [letter["body"] for letter in listed(served, group)] == ["letter-0"]
    assert run(served, "dlq", "resend", group).stdout.endswith(f"1 dead letter of {group} sent again\n")
    assert [record.body for record in retried(served, group)] == [b"letter-1", b"letter-2", b"letter-0"]
    assert "DLQ_REASON" not in retried(served, group)[0].properties


def test_the_reason_is_shown(served: Metaq, group: str) -> None:
    letters = listed(served, group)
    assert [letter["error_type"] for letter in letters] == [None, "LookupError", None]
    assert letters[1]["reason"] == "no customer KEYS "
    assert letters[1]["properties"]["KEYS"] == "k1", "a reason cannot set other properties"  # type: ignore[index]
    assert "(LookupError: no customer KEYS )" in run(served, "dlq", "list", group).stdout


def test_a_wrong_id(served: Metaq, group: str) -> None:
    letters = listed(served, group)
    outcome = run(
        served, "dlq", "resend", group, "--id", "nonsense", "--id", str(letters[0]["id"]), "-o", "json"
    )
    assert outcome.returncode == 1
    result = json.loads(outcome.stdout)
    assert (result["resent"], result["failed"]) == (1, 1)
    wrong, right = result["letters"]
    assert wrong["id"] == "nonsense" and "metaq dlq list" in wrong["error"]
    assert (right["offset_id"], right["error"]) == (letters[0]["offset_id"], None)
    outcome = run(served, "dlq", "show", group, "0" * 32)
    assert outcome.returncode == NOT_FOUND and "metaq dlq list" in outcome.stderr


def check_planted_links(served: Metaq, group: str, folder: Path, letters: str) -> None:
    """Links of somebody else in the folder of an export lead to no other file."""
    folder.mkdir()
    victim = folder / "victim"
    victim.write_text("precious")
    file = folder / "letters.jsonl"
    for name in (file, Path(f"{file}.part")):
        name.symlink_to(victim)
    assert run(served, "dlq", "export", group, str(file)).returncode == 0
    assert victim.read_text() == "precious" and not file.is_symlink() and file.read_text() == letters
    (folder / "pipe").mkdir()
    refused = run(served, "dlq", "export", group, str(folder / "pipe"))
    assert refused.returncode == 1 and "it is not a file; - is standard output" in refused.stderr
    assert not list(folder.glob(".metaq-*"))


def test_one_is_shown_and_all_are_exported(served: Metaq, group: str, tmp_path: Path) -> None:
    letters = listed(served, group)
    shown = run(served, "dlq", "show", group, str(letters[1]["id"])).stdout
    for expected in ("no customer KEYS", "LookupError", f"T_{group}", "letter-1"):
        assert expected in shown
    assert run(served, "dlq", "show", group, str(letters[0]["id"]), "--body", "raw").stdout == "letter-0"
    file = tmp_path / "letters.jsonl"
    assert run(served, "dlq", "export", group, str(file)).returncode == 0
    assert [json.loads(line) for line in file.read_text().splitlines()] == letters
    assert file.stat().st_mode & 0o077 == 0, "bodies are nobody else's business"
    on_stdout = run(served, "dlq", "export", group, "-").stdout
    assert on_stdout == file.read_text()
    before = file.read_text()
    assert run(served, "dlq", "export", "nobody_here", str(file)).returncode == NOT_FOUND
    assert file.read_text() == before, "a failure leaves the older file"
    assert list(tmp_path.iterdir()) == [file]
    check_planted_links(served, group, tmp_path / "shared", before)
    sent = run(served, "send", f"T_{group}", "--json-lines", str(file), "-o", "json")
    assert json.loads(sent.stdout)["sent"] == 3, "an export can be sent as it is"


def test_letters_that_a_broker_refuses_are_tried_again_by_the_next_call(served: Metaq, group: str) -> None:
    letters = listed(served, group)
    with Admin(served.nameserver) as admin:
        admin.topics.change(f"%RETRY%{group}", permission=READ)
        refused = run(served, "dlq", "resend", group)
        assert refused.returncode == 1
        assert refused.stdout.endswith(f"0 dead letters of {group} sent again, 3 failed\n")
        for letter in letters:
            assert f"failed {letter['offset_id']}: " in refused.stdout
        assert listed(served, group) == letters
        admin.topics.change(f"%RETRY%{group}", permission=READ | WRITE)
    assert run(served, "dlq", "resend", group).stdout.endswith(f"3 dead letters of {group} sent again\n")
    assert len(retried(served, group)) == 3


def test_groups_are_listed_with_counts(served: Metaq, group: str) -> None:
    def counted() -> dict[str, object]:
        rows = json.loads(run(served, "dlq", "list", "-o", "json").stdout)
        [row] = [row for row in rows if row["group"] == group]
        assert isinstance(row, dict)
        return row

    assert counted() == {"group": group, "waiting": 3, "stored": 3, "error": None}
    run(served, "dlq", "resend", group)
    assert counted() == {"group": group, "waiting": 0, "stored": 3, "error": None}


def test_not_faster_than_asked_for(served: Metaq, group: str) -> None:
    began_s = time.monotonic()
    assert run(served, "dlq", "resend", group, "--rate", "2").returncode == 0
    assert time.monotonic() - began_s >= 1.0, "three at two a second"


def test_a_group_without_any(served: Metaq, group: str) -> None:
    run(served, "group", "limit", "Clean", "--create")
    assert listed(served, "Clean") == []
    assert run(served, "dlq", "resend", "Clean").stdout == "0 dead letters of Clean sent again\n"
    for command in (("list",), ("resend",), ("export", "-"), ("show", "0" * 32)):
        outcome = run(served, "dlq", command[0], group.lower(), *command[1:])
        assert outcome.returncode == NOT_FOUND
        # Groups of other tests have random names, which may be similar; the nearest comes first.
        assert outcome.stderr.startswith(f"metaq: group {group.lower()} does not exist; did you mean {group}")


def test_letters_are_counted_by_reason_and_sent_again_as_a_set(served: Metaq, group: str) -> None:
    found = json.loads(run(served, "dlq", "reasons", group, "-o", "json").stdout)
    kinds = {(row["error_type"], row["letters"]) for row in found}
    assert kinds == {("LookupError", 1), (None, 2)}
    [row] = [row for row in found if row["error_type"] == "LookupError"]
    assert row["reason"].startswith("no customer") and row["topics"] == [f"T_{group}"]
    refused = run(served, "dlq", "resend", group, "--error", "KeyError")
    assert refused.returncode != 0 and "no such dead letters" in refused.stderr
    refused = run(served, "dlq", "resend", group, "--error", "LookupError", "--id", "x")
    assert refused.returncode != 0 and "--id names single" in refused.stderr
    done = run(served, "dlq", "resend", group, "--error", "LookupError", "--reason", "no customer")
    assert done.returncode == 0 and "1 dead letter" in done.stdout, done
    assert len(retried(served, group)) == 1
    found = json.loads(run(served, "dlq", "reasons", group, "-o", "json").stdout)
    assert [(row["error_type"], row["letters"]) for row in found] == [(None, 2)]


def test_numbers_do_not_tell_reasons_apart() -> None:
    assert general_reason("order 17 of 10.0.0.5") == general_reason("order 4711 of 192.168.1.1")
    assert general_reason("order 17") != general_reason("customer 17")
    assert general_reason("order #") == general_reason("order 17"), "a shown reason selects its letters"
    assert general_reason(None) is None
