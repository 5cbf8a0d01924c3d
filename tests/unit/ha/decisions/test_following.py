"""Decisions of a replica."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from metaq.ha.actions import (
    CompareBelow,
    Follow,
    NoteDamage,
    Reopen,
    Repair,
    StartOver,
    StopFollowing,
    Stream,
    Swap,
    Truncate,
    Wait,
)
from metaq.ha.decisions import decide
from metaq.ha.decisions.membership import may_have_hung
from metaq.ha.epochs import History
from metaq.ha.group_record import Member, NodeState
from metaq.ha.settings import HaSettings, ReplicaMode
from metaq.ha.view import Compared, Disk, PendingSwap, Role, Source, SourceState, SwapPurpose
from tests.support.ha_views import NOW, ONE, RECORD, beat, connected, own, view


def replica(**fields: Any) -> Any:
    return own(Role.REPLICA, **fields)


def decided(*args: Any, **fields: Any) -> Any:
    (action,) = decide(view(*args, **fields))
    return action


def test_a_replica_in_a_healthy_group_waits() -> None:
    assert isinstance(decided(replica()), Wait)


@pytest.mark.parametrize("role", [Role.REPLICA, Role.CANDIDATE])
def test_a_node_whose_log_was_cut_opens_its_store_again_before_anything_else(role: Role) -> None:
    node = own(role, disk=Disk.CUT, damaged_at=9)
    assert decided(node) == Reopen()
    assert decided(node, record=RECORD.replace(master=0)) == Reopen()


def test_it_follows_the_master_of_a_new_epoch() -> None:
    assert decided(replica(), record=RECORD.replace(epoch=6, master=3)) == Follow(3, 6)


@pytest.mark.parametrize(("age_s", "stands"), [(2.9, False), (3.0, True)])
def test_it_stands_after_three_seconds_without_a_beat(age_s: float, stands: bool) -> None:
    action = decided(replica(), beats={1: beat(ONE, age_s=age_s)})
    assert (action == StopFollowing()) is stands


@pytest.mark.parametrize(
    ("beat_age_s", "stream_age_s", "stands"), [(2.0, 2.0, True), (2.0, 1.9, False), (1.9, 2.9, False)]
)
def test_it_stands_earlier_if_the_stream_is_silent_too(
    beat_age_s: float, stream_age_s: float, stands: bool
) -> None:
    beats = {1: beat(ONE, age_s=beat_age_s)}
    source = connected(heard_at=NOW - stream_age_s)
    assert (decided(replica(), beats=beats, source=source) == StopFollowing()) is stands


def test_a_silent_stream_counts_only_if_it_is_sure() -> None:
    beats = {1: beat(ONE, age_s=2.9)}
    silent = connected(state=SourceState.STREAMING, heard_at=NOW - 2.9)
    assert decided(replica(), beats=beats, source=silent) == StopFollowing()
    unsure = (
        None,
        replace(silent, heard_at=None),
        replace(silent, epoch=4),
        replace(silent, node_id=3),
    )
    for source in unsure:
        assert isinstance(decided(replica(), beats=beats, source=source), Wait), source
    paused = replica(awake_since=NOW - 1)
    assert isinstance(decided(paused, beats=beats, source=silent), Wait), "its own pause explains the silence"
    leased = HaSettings(replicas=ReplicaMode.ASYNC)
    assert isinstance(decided(replica(), beats=beats, source=silent, settings=leased), Wait)


def test_it_looks_again_at_the_moment_at_which_a_silent_master_counts_as_hung() -> None:
    beats = {1: beat(ONE, age_s=1.9)}
    silent = connected(state=SourceState.STREAMING, heard_at=NOW - 1.5)
    assert may_have_hung(view(replica(), beats=beats, source=silent))
    [action] = decide(view(replica(), beats=beats, source=silent))
    assert isinstance(action, Wait) and action.until == pytest.approx(NOW + 0.25), "a tick is sooner"
    silent = replace(silent, heard_at=NOW - 1.85)
    [action] = decide(view(replica(), beats=beats, source=silent))
    assert isinstance(action, Wait) and action.until == pytest.approx(NOW + 0.15)
    assert not may_have_hung(view(replica(), source=replace(silent, heard_at=NOW - 0.3)))


def test_it_stands_at_once_if_the_port_of_the_master_refuses() -> None:
    refused = Source(1, 5, SourceState.REFUSED, refused_since=NOW - 0.2)
    assert decided(replica(), source=refused) == StopFollowing()
    assert isinstance(decided(replica(), source=Source(1, 4, SourceState.REFUSED, NOW - 9)), Wait)


def test_silence_counts_only_while_the_register_is_readable() -> None:
    silent = {1: beat(ONE, age_s=100)}
    assert isinstance(decided(replica(), beats=silent, readable=False), Wait)
    healthy = view(replica(), beats=silent)
    just_back = healthy.register.__class__(RECORD, 7, True, NOW - 1)
    changed = healthy.__class__(NOW, healthy.settings, healthy.own, just_back, silent)
    assert isinstance(decide(changed)[0], Wait)


def test_it_stands_if_the_master_resigned_or_lost_its_store() -> None:
    assert decided(replica(), record=RECORD.replace(master=0)) == StopFollowing()
    assert decided(replica(), beats={1: beat(Member(1, "new"))}) == StopFollowing()


def test_it_stands_if_the_master_came_back_with_a_full_disk() -> None:
    full = beat(ONE, state=NodeState.FULL)
    assert decided(replica(), beats={1: full}) == StopFollowing()
    assert isinstance(decided(replica(), beats={1: beat(ONE)}), Wait), "it serves, whatever its disk"
    # It said so before its election.
    elected = {1: beat(ONE, state=NodeState.FULL, promised_epoch=4)}
    assert isinstance(decided(replica(role_since=NOW - 2.9), beats=elected), Wait)
    assert decided(replica(role_since=NOW - 3), beats=elected) == StopFollowing()
    leased = HaSettings(replicas=ReplicaMode.ASYNC)
    assert isinstance(decided(replica(), beats=elected, settings=leased), Wait)
    assert decided(replica(), beats={1: full}, settings=leased) == StopFollowing()


@pytest.mark.parametrize("node", [replica(member=Member(2, "wiped")), replica(disk=Disk.HANGING)])
def test_a_node_that_cannot_be_master_does_not_stand(node: Any) -> None:
    action = decided(node, record=RECORD.replace(master=0))
    assert isinstance(action, Wait)


def test_a_restarted_master_stands_for_a_new_epoch() -> None:
    assert decided(replica(member=ONE, following=0)) == StopFollowing()


def test_a_restarted_master_that_lost_its_store_waits() -> None:
    node = replica(member=Member(1, "new"), following=0)
    assert "others must take over" in decided(node).reason


def test_a_log_from_elsewhere_is_not_cut() -> None:
    parts = connected(log_end=80, compared=Compared(80, True))
    assert "does not belong" in decided(replica(joined=False), source=parts).reason
    differs = connected(compared=Compared(100, False))
    assert "does not belong" in decided(replica(joined=False), source=differs).reason
    assert decided(replica(joined=False), source=connected(compared=Compared(100, True))) == Stream(100)


def test_a_new_group_needs_a_candidate() -> None:
    assert decided(replica(joined=False, promised_epoch=0), record=None) == StopFollowing()


@pytest.mark.parametrize(
    ("source", "action"),
    [
        (connected(), CompareBelow(100)),
        (connected(compared=Compared(90, True)), CompareBelow(100)),
        (connected(compared=Compared(100, True)), Stream(100)),
        (connected(log_end=80, compared=Compared(80, True)), Truncate(80)),
        (connected(history=History.of([(1, 0), (6, 60)]), compared=Compared(50, True)), Truncate(50)),
        (connected(epoch=4), None),
        (connected(state=SourceState.STREAMING), None),
    ],
)
def test_the_way_from_a_connection_to_a_stream(source: Source, action: object) -> None:
    found = decided(replica(), source=source)
    assert found == action if action is not None else isinstance(found, Wait)


def test_a_log_that_cannot_be_continued_is_copied_anew() -> None:
    assert isinstance(decided(replica(), source=connected(log_start=110)), StartOver)
    empty = replica(appended_end=110, flushed_end=110, history=History())
    assert decided(empty, source=connected(log_start=110)) == Stream(110)


def test_a_master_with_a_failed_disk_is_left_to_resign() -> None:
    assert isinstance(decided(replica(), beats={1: beat(ONE, state=NodeState.FAILED)}), Wait)


# ---- damaged logs


def test_nothing_is_dropped_if_both_logs_verify_and_differ() -> None:
    action = decided(replica(), source=connected(compared=Compared(100, False)))
    assert isinstance(action, Wait)
    assert "no damage that either node finds explains it" in action.reason
    tail = replica(appended_end=110, flushed_end=110)
    assert isinstance(decided(tail, source=connected(log_end=100, compared=Compared(100, False))), Wait)


def test_own_damage_is_repaired_where_the_master_is_sound() -> None:
    damage = ((10, 20), (60, 70))
    other = Compared(100, False, damage, ((65, 66), (90, 95)))
    assert decided(replica(), source=connected(compared=other)) == Repair(((10, 20),))
    known = Compared(100, True, damage)
    assert decided(replica(), source=connected(compared=known)) == Repair(damage)
    assert "does not belong" in decided(replica(joined=False), source=connected(compared=known)).reason


@pytest.mark.parametrize(
    ("compared", "reason"),
    [
        (Compared(100, False, ((10, 20),), ((15, 16),)), "and so is the log of node 1"),
        (Compared(100, False, ((10, 20),), None), "node 1 cannot prove its own bytes"),
        (Compared(100, False, ((10, 20),), (), complaint="no space"), "cannot be repaired: no space"),
        (Compared(100, False, (), None), "cannot prove its own"),
        (Compared(100, False, (), ((10, 20),), is_explained=False), "explains it"),
    ],
)
def test_a_log_that_cannot_be_judged_or_repaired_is_kept(compared: Compared, reason: str) -> None:
    action = decided(replica(), source=connected(compared=compared))
    assert isinstance(action, Wait)
    assert reason in action.reason


def test_a_sound_log_follows_a_master_whose_damage_explains_the_difference() -> None:
    compared = Compared(100, False, (), ((10, 20),), is_explained=True)
    assert decided(replica(), source=connected(compared=compared)) == Stream(100)


def test_nothing_is_copied_from_where_the_master_is_damaged() -> None:
    compared = Compared(100, True, (), ((100, 110),))
    action = decided(replica(), source=connected(compared=compared))
    assert isinstance(action, Wait)
    assert "node 1 is damaged at 100, where this node's ends" in action.reason
    later = Compared(100, True, (), ((110, 120),))
    assert decided(replica(), source=connected(compared=later)) == Stream(100)


def test_damage_is_noted_first_and_forgotten_when_it_is_repaired() -> None:
    assert decided(replica(damaged_at=10)) == NoteDamage(10)
    assert decided(replica(damaged_at=10, noted_damage=20)) == NoteDamage(10)
    assert decided(replica(noted_damage=10)) == NoteDamage(None)


def test_a_replica_that_finds_damage_while_it_streams_connects_again() -> None:
    damaged = replica(damaged_at=10, noted_damage=10)
    assert decided(damaged, source=connected(state=SourceState.STREAMING)) == Follow(1, 5)
    assert isinstance(decided(damaged, source=connected(state=SourceState.CONNECTING)), Wait)


def test_a_damaged_node_does_not_stand_while_another_member_may_be_sound() -> None:
    damaged, resigned = replica(damaged_at=10, noted_damage=10), RECORD.replace(master=0)
    assert isinstance(decided(damaged, record=resigned), Wait)
    assert isinstance(decided(damaged, record=resigned, beats={1: beat(ONE, age_s=100)}), Wait)
    worse = {1: beat(ONE, damaged_at=5), 3: beat(Member(3, "new"))}
    assert decided(damaged, record=resigned, beats=worse) == StopFollowing()
    alone = RECORD.replace(master=0, in_sync=(replica().member,))
    assert decided(damaged, record=alone) == StopFollowing()


def test_a_master_that_comes_back_damaged_resigns() -> None:
    back = replica(member=ONE, following=0, damaged_at=10, noted_damage=10)
    resign = Swap(SwapPurpose.RESIGN, 7, RECORD.replace(master=0))
    assert decided(back) == resign
    assert isinstance(decided(back, readable=False), Wait)
    pending = PendingSwap(resign.purpose, 7, resign.record, in_flight=True)
    assert isinstance(decided(back, pending=pending), Wait)
    assert decided(back, pending=replace(pending, in_flight=False)) == resign
    alone = RECORD.replace(in_sync=(ONE,))
    assert decided(back, record=alone) == StopFollowing()
