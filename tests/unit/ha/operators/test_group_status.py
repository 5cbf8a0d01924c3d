"""The state of a group as its nodes and the register show it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from metaq.ha.decisions.fixed import FixedView
from metaq.ha.decisions.master import CANNOT_LEAVE
from metaq.ha.group_record import Member, NodeState
from metaq.ha.operators.group_control import StandAlone
from metaq.ha.operators.group_status import fixed_status, group_status, register_status
from metaq.ha.settings import HaSettings
from metaq.ha.view import Compared, Disk, Own, Role, SourceState
from metaq.protocol.commands.replication import GroupStatus, NodeStatus
from tests.support.ha_views import NOW, ONE, RECORD, THREE, TWO, beat, connected, link, own, view

ADDRESS = "10.0.0.1:10911"


def nodes(status: GroupStatus) -> dict[int, NodeStatus]:
    return {node.id: node for node in status.nodes}


def test_a_master_knows_how_far_everybody_is() -> None:
    links = {TWO: link(TWO), THREE: link(THREE, behind_s=0.7, flushed_end=60)}
    seen = view(own(Role.MASTER, ONE), links=links)
    status = group_status("broker-a", seen, ADDRESS)
    assert (status.name, status.epoch, status.master, status.min_in_sync) == ("broker-a", 5, 1, 2)
    assert status.in_sync == (1, 2, 3)
    assert nodes(status)[1] == NodeStatus(1, ADDRESS, "master", "in sync", 0, 0)
    assert nodes(status)[2] == NodeStatus(2, "", "replica", "in sync", 0, 0)
    assert nodes(status)[3] == NodeStatus(3, "", "replica", "in sync", 40, 700)


def test_a_master_says_why_the_set_keeps_a_dead_member() -> None:
    joined = msgspec.structs.replace(RECORD, version=2, voters_before=(ONE, TWO), voters_since=2)
    beats = {ONE.id: beat(ONE), TWO.id: beat(TWO, age_s=9, promised_version=1)}
    links = {TWO: link(TWO, behind_s=9, connected=False), THREE: link(THREE)}
    seen = view(own(Role.MASTER, ONE), record=joined, links=links, beats=beats)
    found = nodes(group_status("g", seen, ADDRESS))
    assert (found[2].problem, found[3].problem) == (CANNOT_LEAVE, "")
    beats[TWO.id] = beat(TWO, age_s=9, promised_version=2)
    assert nodes(group_status("g", replace(seen, beats=beats), ADDRESS))[2].problem == ""


def test_a_lost_link_keeps_its_lag_and_grows_older() -> None:
    seen = view(
        own(Role.MASTER, ONE),
        record=RECORD.replace(in_sync=(ONE, TWO)),
        links={TWO: link(TWO), THREE: link(THREE, behind_s=9.0, connected=False)},
        beats={
            member.id: beat(member, age_s=9.0 if member is THREE else 0.5) for member in (ONE, TWO, THREE)
        },
    )
    assert nodes(group_status("g", seen, ADDRESS))[3] == NodeStatus(3, "", "replica", "gone", 0, 9000)


def test_a_replica_does_not_know_lags() -> None:
    status = group_status("g", view(own(Role.REPLICA, TWO)), ADDRESS)
    assert status.master == 1
    assert nodes(status)[2] == NodeStatus(2, ADDRESS, "replica", "in sync", None, None)
    assert (nodes(status)[1].role, nodes(status)[1].lag_bytes) == ("master", None)


def test_the_words_for_a_node() -> None:
    without_three = RECORD.replace(in_sync=(ONE, TWO))
    seen = view(
        own(Role.CANDIDATE, TWO),
        record=without_three,
        beats={1: beat(ONE, age_s=4.0), 2: beat(TWO), 3: beat(THREE)},
    )
    assert {node.id: node.state for node in group_status("g", seen, "").nodes} == {
        1: "gone",
        2: "candidate",
        3: "catching up",
    }
    resigned = view(
        own(Role.REPLICA, TWO, disk=Disk.HANGING),
        record=without_three.replace(master=0),
        beats={3: beat(THREE)},
    )
    status = group_status("g", resigned, "")
    assert (status.master, nodes(status)[2].state, nodes(status)[3].state) == (0, "failed", "waiting")


def test_a_node_whose_disk_is_full_says_so() -> None:
    beats = {1: beat(ONE), 2: beat(TWO, state=NodeState.FULL), 3: beat(THREE)}
    for seen in (
        view(own(Role.REPLICA, TWO, disk=Disk.FULL), beats=beats),
        view(own(Role.MASTER, ONE, disk=Disk.FULL), beats=beats),
    ):
        status = group_status("g", seen, "")
        assert [node.state for node in status.nodes] == ["in sync", "full", "in sync"]


def test_nobody_is_gone_while_the_register_was_away() -> None:
    seen = view(own(Role.MASTER, ONE), beats={2: beat(TWO, age_s=60.0)}, links={})
    assert nodes(group_status("g", seen, ""))[2].state == "gone"
    back = replace(seen, register=replace(seen.register, readable_since=NOW - 1.0))
    assert nodes(group_status("g", back, ""))[2].state == "in sync"


def test_another_incarnation_is_not_in_sync() -> None:
    wiped = beat(TWO, incarnation="new")
    seen = view(own(Role.MASTER, ONE), beats={2: wiped}, links={})
    assert nodes(group_status("g", seen, ""))[2].state == "catching up"


def test_a_group_without_a_record() -> None:
    status = group_status("g", view(own(Role.REPLICA, TWO), record=None), "")
    assert (status.epoch, status.master, status.in_sync, status.min_in_sync) == (0, 0, (), 2)
    assert {node.state for node in status.nodes} == {"waiting"}


def test_a_node_that_was_asked_to_stop_is_leaving() -> None:
    beats = {member.id: beat(member) for member in (ONE, THREE)}
    beats[2] = beat(TWO, state=NodeState.LEAVING)
    for seen in (view(own(Role.REPLICA, TWO), beats=beats), view(own(Role.MASTER, ONE), beats=beats)):
        assert nodes(group_status("g", seen, ""))[2].state == "leaving"


def test_a_damaged_log_is_shown_by_everybody() -> None:
    beats = {1: beat(ONE), 2: beat(TWO, damaged_at=40), 3: beat(THREE)}
    for node in (own(Role.MASTER, ONE), own(Role.REPLICA, TWO, damaged_at=40)):
        found = nodes(group_status("g", view(node, beats=beats), ""))[2]
        assert (found.state, found.damaged_at) == ("damaged", 40)
    found = nodes(register_status("g", RECORD, [seen.beat for seen in beats.values()]))[2]
    assert (found.state, found.damaged_at) == ("damaged", 40)


def test_a_replica_says_why_it_does_not_follow() -> None:
    differs = connected(compared=Compared(100, False))
    for status in (
        group_status("g", view(own(Role.REPLICA, TWO), source=differs), ADDRESS),
        fixed_status("g", fixed(own(Role.REPLICA, TWO), source=differs), ADDRESS, ""),
    ):
        assert "differ from those of node 1" in nodes(status)[2].problem
    foreign = view(own(Role.REPLICA, TWO, joined=False), source=differs)
    assert "does not belong to this group" in nodes(group_status("g", foreign, ADDRESS))[2].problem
    follows = connected(compared=Compared(100, True))
    assert nodes(group_status("g", view(own(Role.REPLICA, TWO), source=follows), ""))[2].problem == ""


def test_a_fixed_master_shows_its_damage() -> None:
    damaged = own(Role.MASTER, ONE, damaged_at=40)
    found = fixed_status("g", fixed(damaged, links={TWO: link(TWO)}), ADDRESS, "").nodes[0]
    assert (found.state, found.damaged_at) == ("damaged", 40)


def test_a_fixed_master_knows_how_long_its_replicas_take() -> None:
    links = {TWO: link(TWO, ack_ms=412)}
    replica = fixed_status("g", fixed(own(Role.MASTER, ONE), links=links), ADDRESS, "").nodes[1]
    assert (replica.ack_ms, replica.damaged_at) == (412, None)


def fixed(node: Own, **fields: Any) -> FixedView:
    return FixedView(
        now=NOW,
        settings=HaSettings(),
        own=node,
        master=ONE.id,
        replica_ids=frozenset({2, 3}),
        started_at=NOW - 60,
        incomplete=False,
        **fields,
    )


def test_a_fixed_master_has_the_id_0() -> None:
    master = own(Role.MASTER, ONE, required=frozenset({ONE, TWO}))
    links = {TWO: link(TWO), Member(4, "d"): link(Member(4, "d"), behind_s=2.0, flushed_end=90)}
    status = fixed_status("g", fixed(master, links=links), ADDRESS, "")
    assert (status.epoch, status.master, status.in_sync) == (5, 0, (0, 2))
    assert status.nodes == (
        NodeStatus(0, ADDRESS, "master", "in sync", 0, 0),
        NodeStatus(2, "", "replica", "in sync", 0, 0),
        NodeStatus(3, "", "replica", "gone", None, None),
        NodeStatus(4, "", "replica", "catching up", 10, 2000),
    )


def test_a_fixed_replica_knows_its_master() -> None:
    replica = own(Role.REPLICA, TWO)
    streaming = connected(state=SourceState.STREAMING)
    assert fixed_status("g", fixed(replica, source=streaming), ADDRESS, "h:1").nodes == (
        NodeStatus(0, "h:1", "master", "in sync"),
        NodeStatus(2, ADDRESS, "replica", "catching up"),
    )
    alone = fixed_status("g", fixed(replica), ADDRESS, "")
    assert [node.state for node in alone.nodes] == ["gone", "waiting"]


def test_the_register_alone_shows_the_last_beats() -> None:
    beats = [
        beat(ONE, client_address="h:1").beat,
        beat(TWO, flushed_end=70, state=NodeState.FAILED, client_address="h:2").beat,
    ]
    status = register_status("g", RECORD, beats)
    assert status.in_sync == (1, 2, 3)
    assert status.nodes == (
        NodeStatus(1, "h:1", "master", "in sync", 0, None),
        NodeStatus(2, "h:2", "replica", "failed", 30, None),
        NodeStatus(3, "", "replica", "gone", None, None),
    )


def test_a_status_survives_the_wire() -> None:
    status = group_status("g", view(own(Role.MASTER, ONE)), ADDRESS)
    assert GroupStatus.decode(status.encode()) == status
    assert list(msgspec.json.decode(status.encode())) == [
        *("name", "epoch", "master", "min_in_sync", "in_sync", "nodes")
    ]


def test_a_broker_alone_is_its_own_group() -> None:
    status = StandAlone("broker-a", ADDRESS).status()
    assert status.node(status.master) == NodeStatus(0, ADDRESS, "master", "in sync", 0, 0)


def test_a_node_that_was_drained_is_not_missed_when_it_has_stopped() -> None:
    pair = RECORD.replace(in_sync=(ONE, TWO))
    beats = {1: beat(ONE), 2: beat(TWO), 3: beat(THREE, state=NodeState.LEFT)}
    stopping = view(own(Role.MASTER, ONE), record=pair, beats=beats, links={})
    assert nodes(group_status("g", stopping, ""))[3].state == "leaving"
    for age_s, state in [(60.0, NodeState.LEFT), (60.0, NodeState.LEAVING)]:
        stopped = replace(stopping, beats={**beats, 3: beat(THREE, state=state, age_s=age_s)})
        is_listed = 3 in nodes(group_status("g", stopped, ""))
        assert is_listed == (state is NodeState.LEAVING), "one that was only stopped is missed"
    member = replace(stopping, register=replace(stopping.register, record=RECORD))
    silent = replace(member, beats={**beats, 3: beat(THREE, state=NodeState.LEFT, age_s=60.0)})
    assert nodes(group_status("g", silent, ""))[3].state == "gone", "it is still in the set"
    known = [seen.beat for seen in beats.values()]
    assert [node.id for node in register_status("g", pair, known).nodes] == [1, 2]
    assert [node.id for node in register_status("g", RECORD, known).nodes] == [1, 2, 3]


def test_a_node_says_why_it_waits_and_who_has_its_id() -> None:
    record = RECORD.replace(in_sync=(ONE, THREE))
    waiting = view(own(Role.REPLICA, TWO), record=record)
    found = nodes(group_status("g", waiting, "h:2", reason="its log is foreign", same_id="h:9"))[2]
    assert (found.problem, found.same_id) == ("its log is foreign", "h:9")
    assert nodes(group_status("g", waiting, "h:2", reason="following"))[2].problem == ""
    in_sync = view(own(Role.REPLICA, TWO))
    assert nodes(group_status("g", in_sync, "h:2", reason="its log is foreign"))[2].problem == ""
