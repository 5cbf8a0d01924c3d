"""A forced switch says what may be lost before it asks."""

from __future__ import annotations

import msgspec

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
    answering = [node.id for node in seen.nodes if node.state != "gone"]
    return "\n".join(consequences(group, plan_force(group, target, answering), seen))


def test_forcing_a_node_in_sync_loses_nothing() -> None:
    text = said(msgspec.structs.replace(RECORD, version=3), 3, GROUP)
    assert "Node 3 is in the in-sync set: no acknowledged message is lost." in text
    assert "LOST" not in text
    assert "Node 1 is master of broker-a and answers" in text
    assert "Node 3 is gone" in text
    assert "until 2 nodes are in sync" in text


def test_damage_of_the_forced_node_is_named() -> None:
    group = registered(msgspec.structs.replace(RECORD, version=3))
    group.beats[3] = beat(THREE, damaged_at=4_096).beat
    text = "\n".join(consequences(group, plan_force(group, 3), GROUP))
    assert "no acknowledged message is lost" not in text
    assert "Whether node 3 has every acknowledged message is unknown." in text
    assert "The log of node 3 is damaged at 4,096." in text


def test_a_record_without_a_version_proves_nothing() -> None:
    assert "no acknowledged message is lost" not in said(RECORD, 3, GROUP)


def test_forcing_another_node_says_what_is_lost() -> None:
    record = RECORD.replace(in_sync=(ONE,))
    text = said(record, 2, GROUP, end_1=4096 + 100)
    assert "ARE LOST" in text
    assert "Node 1 reported a log that is 4.0 KiB longer" in text
    assert "no acknowledged message is lost" not in text


def test_a_loss_that_nobody_can_measure_is_named_as_well() -> None:
    text = said(RECORD.replace(in_sync=(Member(1, "a"),)), 2, GROUP)
    assert "ARE LOST" in text and "No other node has reported a longer log" in text


def test_it_says_what_every_node_has() -> None:
    text = said(RECORD, 2, GROUP, end_1=4_096)
    has = "a log of epoch 5 that ends at 4,096, version 0 of the control state (epoch 0)"
    assert f"Node 1 has {has}, and has seen version 0 of the record." in text
    assert "Node 3 does not answer: what it has now is unknown. Its last report: a log of epoch 5" in text


def test_with_silent_nodes_nobody_knows_what_is_lost() -> None:
    alone = msgspec.structs.replace(GROUP, nodes=(REPLICA,))
    text = said(RECORD, 2, alone)
    assert "Whether node 2 has every acknowledged message is unknown." in text
    assert "no acknowledged message is lost" not in text


def test_a_register_that_went_back_is_told() -> None:
    group = registered()
    group.beats[1] = beat(ONE, promised_version=8).beat
    group.beats[2] = beat(TWO, promised_version=8).beat
    text = "\n".join(consequences(group, plan_force(group, 3), GROUP))
    assert "The register went back to an older state: the register has version 0 (epoch 5)" in text
    assert "Node 3 lacks what another node has" in text and "ARE LOST" in text
    text = "\n".join(consequences(group, plan_force(group, 1), GROUP))
    assert "Whether node 1 has every acknowledged message is unknown." in text
    assert "no acknowledged message is lost" not in text


def test_after_an_emptied_register_the_minimum_stays() -> None:
    group = registered()
    group.record = None
    group.beats = {1: beat(ONE, promised_version=8, min_in_sync=2).beat}
    forced = plan_force(group, 1)
    assert forced.record.min_in_sync == 2
    text = "\n".join(consequences(group, forced, GROUP))
    assert "the register has no record of the group, but node 1 has seen version 8" in text
    assert "takes no messages until 2 nodes are in sync" in text
