"""Decisions of a candidate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from metaq.ha.actions import BecomeMaster, Follow, Swap, Wait
from metaq.ha.decisions import decide
from metaq.ha.decisions.candidate import elected
from metaq.ha.group_record import GroupRecord, Member, NodeState
from metaq.ha.settings import HaSettings
from metaq.ha.view import Disk, PendingSwap, RegisterView, Role, SwapPurpose
from tests.support.ha_views import NOW, ONE, RECORD, THREE, TWO, beat, own, view

DEAD_MASTER = {1: beat(ONE, age_s=2), 2: beat(TWO), 3: beat(THREE, state=NodeState.CANDIDATE)}


def candidate(**fields: Any) -> Any:
    return own(Role.CANDIDATE, **{"role_since": NOW - 0.3, **fields})


def won(record: GroupRecord, node_id: int) -> GroupRecord:
    return elected(record, node_id, lambda member: 0)


def decided(*args: Any, **fields: Any) -> Any:
    (action,) = decide(view(*args, **{"beats": DEAD_MASTER, **fields}))
    return action


def test_the_longest_log_asks_first() -> None:
    assert decided(candidate()) == Swap(SwapPurpose.ELECT, 7, won(RECORD, 2))
    longer = {**DEAD_MASTER, 3: beat(THREE, flushed_end=101)}
    assert decided(candidate(), beats=longer) == Wait(NOW - 0.3 + 0.25 + 0.5, "others may have a longer log")
    newer = {**DEAD_MASTER, 3: beat(THREE, flushed_end=60, log_epoch=6)}
    assert isinstance(decided(candidate(), beats=newer), Wait)


def test_the_newest_control_state_goes_before_the_longest_log() -> None:
    newer = {**DEAD_MASTER, 3: beat(THREE, state_version=(5, 9), flushed_end=90)}
    assert isinstance(decided(candidate(state_version=(5, 8)), beats=newer), Wait)
    older = {**DEAD_MASTER, 3: beat(THREE, state_version=(5, 8), flushed_end=101)}
    assert isinstance(decided(candidate(state_version=(5, 9)), beats=older), Swap)


def test_a_node_whose_disk_is_full_stands_only_if_nobody_has_room() -> None:
    full, resigned = candidate(disk=Disk.FULL), RECORD.replace(master=0)
    assert isinstance(decided(full, record=resigned), Wait)
    # Only a master deletes old files, so a group of full disks needs one.
    others = {1: beat(ONE, age_s=60), 3: beat(THREE, state=NodeState.FULL)}
    assert isinstance(decided(full, record=resigned, beats=others), Swap)


def test_a_full_and_a_damaged_node_do_not_wait_for_each_other() -> None:
    resigned = RECORD.replace(master=0, in_sync=(TWO, THREE))
    beats = {2: beat(TWO, state=NodeState.FULL), 3: beat(THREE, damaged_at=50)}
    assert isinstance(decided(candidate(disk=Disk.FULL), record=resigned, beats=beats), Swap)
    damaged = candidate(member=THREE, damaged_at=50, noted_damage=50)
    assert isinstance(decided(damaged, record=resigned, beats=beats), Wait)
    # If all are damaged, one with room goes first.
    beats[2] = beat(TWO, state=NodeState.FULL, damaged_at=9)
    both = candidate(disk=Disk.FULL, damaged_at=9, noted_damage=9)
    assert isinstance(decided(both, record=resigned, beats=beats), Wait)
    assert isinstance(decided(damaged, record=resigned, beats=beats), Swap)


def test_it_waits_a_moment_for_the_others() -> None:
    assert decided(candidate(role_since=NOW - 0.1)).until == pytest.approx(NOW + 0.15)


@pytest.mark.parametrize(
    "rival",
    [
        beat(THREE, flushed_end=500, age_s=10),
        beat(THREE, flushed_end=500, state=NodeState.FAILED),
        beat(Member(3, "wiped"), flushed_end=500),
    ],
)
def test_nobody_waits_for_a_rival_that_cannot_win(rival: Any) -> None:
    assert isinstance(decided(candidate(), beats={**DEAD_MASTER, 3: rival}), Swap)


def test_the_old_master_leaves_the_set_if_enough_remain() -> None:
    assert won(RECORD, 2) == RECORD.replace(epoch=1002, master=2, in_sync=(TWO, THREE))
    pair = RECORD.replace(in_sync=(ONE, TWO))
    assert won(pair, 2) == pair.replace(epoch=1002, master=2)
    assert won(RECORD.replace(master=0), 2).in_sync == RECORD.in_sync
    assert won(RECORD, 1).in_sync == RECORD.in_sync


def test_only_the_same_incarnation_in_the_set_is_electable() -> None:
    assert decided(candidate(member=Member(2, "wiped"))) == Follow(1, 5)
    assert decided(candidate(), record=RECORD.replace(in_sync=(ONE, THREE))) == Follow(1, 5)
    assert isinstance(decided(candidate(disk=Disk.FAILED), record=RECORD.replace(master=0)), Wait)


def test_it_follows_whoever_was_elected_first() -> None:
    assert decided(candidate(), record=won(RECORD, 3)) == Follow(3, 1003)


def test_it_goes_back_to_a_master_that_still_beats() -> None:
    node = candidate(role_since=NOW - 3)
    assert decided(node, beats={1: beat(ONE, age_s=0.1)}) == Follow(1, 5)
    # A beat that was noticed right after the master's end proves nothing.
    assert isinstance(decided(node, beats={1: beat(ONE, age_s=2.5)}), Swap)


def test_it_serves_an_epoch_only_once() -> None:
    first = won(RECORD, 2)
    assert decided(candidate(), record=first) == BecomeMaster(1002, first.members)
    again = decided(candidate(promised_epoch=1002), record=first)
    assert again == Swap(SwapPurpose.ELECT, 7, won(first, 2))
    assert again.record.epoch == 2002


def test_an_uncertain_election_is_settled_by_asking_again() -> None:
    pending = PendingSwap(SwapPurpose.ELECT, 7, won(RECORD, 2), in_flight=True)
    assert isinstance(decided(candidate(), pending=pending), Wait)
    assert decided(candidate(), pending=replace(pending, in_flight=False)) == Swap(
        SwapPurpose.ELECT, 7, won(RECORD, 2)
    )


def test_without_the_register_nobody_is_elected() -> None:
    assert not isinstance(decided(candidate(), readable=False), Swap)


def test_a_node_that_resigned_lets_others_go_first() -> None:
    node = candidate(resigned_at=NOW - 1)
    nobody = RECORD.replace(master=0)
    assert decided(node, record=nobody).until == NOW + 9
    dead = {member.id: beat(member, age_s=60) for member in (ONE, THREE)}
    assert isinstance(decided(node, record=nobody, beats=dead), Swap)


def test_the_longest_log_creates_the_group() -> None:
    node = candidate(joined=False, promised_epoch=0)
    settings = HaSettings(min_in_sync=2)
    created = GroupRecord(epoch=2, master=2, in_sync=(TWO,), min_in_sync=2, version=1, voters=(TWO,))
    assert decided(node, record=None, beats={}, settings=settings) == Swap(SwapPurpose.CREATE, 0, created)
    assert isinstance(decided(replace(node, may_create=False), record=None, beats={}), Wait)
    promised = {3: beat(THREE, promised_epoch=8)}
    assert decided(node, record=None, beats=promised).record.epoch == 1002
    longer = view(node, record=None, beats={3: beat(THREE, flushed_end=900)})
    fresh = replace(longer, register=RegisterView(None, 0, True, NOW - 1.2))
    assert isinstance(decide(fresh)[0], Wait)
