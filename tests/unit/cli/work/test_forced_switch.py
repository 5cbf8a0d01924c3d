"""A forced switch says what may be lost before it asks."""

from __future__ import annotations

from metaq.cli.work.forced_switch import consequences
from metaq.ha.group_record import GroupRecord, Member
from metaq.ha.operators.register_groups import RegisteredGroup, plan_force
from metaq.protocol.commands.replication import GroupStatus, NodeStatus
from tests.support.ha_views import ONE, RECORD, THREE, TWO, beat

MASTER = NodeStatus(1, "h:1", "master", "in sync", 0, 0)
REPLICA = NodeStatus(2, "h:2", "replica", "catching up", 5 * 1024 * 1024, 2400)
GROUP = GroupStatus("broker-a", 7, 1, 2, (1, 3), (MASTER, REPLICA, NodeStatus(3, "", "replica", "gone")))


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
