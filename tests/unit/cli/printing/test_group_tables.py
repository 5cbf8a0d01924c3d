"""Broker groups as tables."""

from __future__ import annotations

import pytest

from metaq.cli.printing.group_tables import print_groups
from metaq.protocol.commands.replication import GroupStatus, NodeStatus

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
