"""metaq cluster: tables, warnings, and what a forced switch says before it asks."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from metaq.cli import app
from metaq.cli.forced_switch import consequences
from metaq.cli.formats import size
from metaq.cli.group_tables import print_groups
from metaq.errors import ConfigError
from metaq.ha.group_record import GroupRecord, Member
from metaq.ha.register_groups import RegisteredGroup, plan_force
from metaq.protocol.replication import STATES, GroupStatus, NodeStatus
from tests.support.ha_views import ONE, RECORD, THREE, TWO, beat

MASTER = NodeStatus(1, "h:1", "master", "in sync", 0, 0)
REPLICA = NodeStatus(2, "h:2", "replica", "catching up", 5 * 1024 * 1024, 2400)
GROUP = GroupStatus("broker-a", 7, 1, 2, (1, 3), (MASTER, REPLICA, NodeStatus(3, "", "replica", "gone")))


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_groups((GROUP,))
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines() if line.strip()]
    assert ["broker-a", "7", "node", "1", "1,", "3", "2"] in rows
    assert ["broker-a", "1", "master", "in", "sync", "0", "B", "0.0", "s", "h:1"] in rows
    assert ["broker-a", "2", "replica", "catching", "up", "5.0", "MiB", "2.4", "s", "h:2"] in rows
    assert ["broker-a", "3", "replica", "gone", "–", "–", "–"] in rows


def test_no_groups(capsys: pytest.CaptureFixture[str]) -> None:
    print_groups(())
    assert capsys.readouterr().out == "No broker group was found.\n"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**40, "1.0 TiB"), (2**60, "1048576.0 TiB")],
)
def test_sizes(number: int, text: str) -> None:
    assert size(number) == text


def test_the_help_explains_every_word() -> None:
    shown = " ".join(CliRunner().invoke(app, ["cluster", "status", "--help"]).stdout.split())
    assert [word for word in STATES if f'"{word}"' not in shown] == []


# A forced switch


def registered(record: GroupRecord = RECORD, **ends: int) -> RegisteredGroup:
    beats = {
        member.id: beat(member, flushed_end=ends.get(f"end_{member.id}", 100)).beat
        for member in (ONE, TWO, THREE)
    }
    return RegisteredGroup("broker-a", record, 1, beats)


def said(record: GroupRecord, target: int, seen: GroupStatus, **ends: int) -> str:
    group = registered(record, **ends)
    return "\n".join(consequences(group, plan_force(group, target), seen))


def test_forcing_a_node_in_sync_loses_nothing() -> None:
    text = said(RECORD, 3, GROUP)
    assert "Node 3 is in the in-sync set: no acknowledged message is lost." in text
    assert "LOST" not in text
    assert "Node 1 is master of broker-a and answers" in text
    assert "Node 3 is gone" in text
    assert "until 2 nodes are in sync" in text


def test_forcing_another_node_says_what_is_lost() -> None:
    record = RECORD.replace(in_sync=(ONE,))
    text = said(record, 2, GROUP, end_1=4096 + 100)
    assert "ARE LOST" in text
    assert "Node 1 reported a log that is 4.0 KiB longer" in text
    assert "no acknowledged message is lost" not in text


def test_a_loss_that_nobody_can_measure_is_named_as_well() -> None:
    text = said(RECORD.replace(in_sync=(Member(1, "a"),)), 2, GROUP)
    assert "ARE LOST" in text and "No other node has reported a longer log" in text


def test_force_needs_a_register() -> None:
    outcome = CliRunner().invoke(app, ["cluster", "switch", "broker-a", "--to", "2", "--force"])
    assert isinstance(outcome.exception, ConfigError)
    assert "--force needs --register" in str(outcome.exception)


def test_flags_of_a_broker_are_not_lost_before_drain() -> None:
    outcome = CliRunner().invoke(app, ["broker", "--name", "x", "drain", "127.0.0.1:1"])
    assert isinstance(outcome.exception, ConfigError)
    assert str(outcome.exception).startswith("--name is a flag of `metaq broker` itself")
