"""Decisions of a master."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from metaq.ha.actions import (
    AcknowledgeUntil,
    EndSwitch,
    NoteDamage,
    SetGate,
    SetRequired,
    StepDown,
    Swap,
    Wait,
)
from metaq.ha.decisions import decide
from metaq.ha.decisions.electorate import change_set
from metaq.ha.decisions.master import CANNOT_LEAVE, cannot_leave
from metaq.ha.group_record import GroupRecord, Member, NodeState
from metaq.ha.settings import HaSettings, ReplicaMode
from metaq.ha.view import Disk, PendingSwap, Role, SendGate, SwapPurpose, SwitchRequest
from tests.support.ha_views import NOW, ONE, RECORD, THREE, TWO, beat, link, own, view

PAIR = RECORD.replace(in_sync=(ONE, TWO))
EXPANDED = PAIR.replace(in_sync=RECORD.in_sync)
ASYNC = HaSettings(replicas=ReplicaMode.ASYNC)


def master(**fields: Any) -> Any:
    return own(Role.MASTER, ONE, **fields)


def decided(*args: Any, **fields: Any) -> list[Any]:
    return [action for action in decide(view(*args, **fields)) if not isinstance(action, Wait)]


def test_a_master_of_a_healthy_group_has_nothing_to_do() -> None:
    assert decided(master()) == []


# ---- losing the mastership


@pytest.mark.parametrize(
    ("node", "record"),
    [
        (master(), RECORD.replace(epoch=6, master=2)),
        (master(), RECORD.replace(master=0)),
        (master(peer_epoch=6), RECORD),
    ],
)
def test_it_steps_down_when_it_is_deposed(node: Any, record: Any) -> None:
    (action,) = decided(node, record=record)
    assert isinstance(action, StepDown)


# ---- the set


def test_a_member_that_is_behind_leaves_by_a_swap_and_is_required_until_then() -> None:
    links = {TWO: link(TWO), THREE: link(THREE, behind_s=1.0)}
    assert decided(master(), links=links) == [Swap(SwapPurpose.SHRINK, 7, RECORD.replace(in_sync=(ONE, TWO)))]
    assert decided(master(), links={**links, THREE: link(THREE, behind_s=0.9)}) == []


def test_a_dead_replica_of_an_idle_master_is_behind() -> None:
    links = {TWO: link(TWO), THREE: link(THREE, connected=False, caught_up_at=NOW, contact_at=NOW - 1)}
    assert isinstance(decided(master(), links=links)[0], Swap)


def test_a_member_that_is_about_to_stop_leaves_at_once() -> None:
    node = own(Role.MASTER, ONE)
    leaving = beat(THREE, state=NodeState.LEAVING)
    actions = decide(view(node, beats={1: beat(ONE), 2: beat(TWO), 3: leaving}))
    assert actions == [Swap(SwapPurpose.SHRINK, 7, RECORD.replace(in_sync=(ONE, TWO)))]
    without = RECORD.replace(in_sync=(ONE, TWO))
    node = own(Role.MASTER, ONE, required=without.members)
    beats = {1: beat(ONE), 2: beat(TWO), 3: leaving}
    assert not any(isinstance(action, Swap) for action in decide(view(node, record=without, beats=beats)))


def test_a_member_that_is_about_to_stop_stays_if_too_few_would_remain() -> None:
    record = RECORD.replace(in_sync=(ONE, TWO))
    node = own(Role.MASTER, ONE, required=record.members)
    beats = {1: beat(ONE), 2: beat(TWO, state=NodeState.LEAVING)}
    links = {TWO: link(TWO)}
    actions = decide(view(node, record=record, beats=beats, links=links))
    assert not any(isinstance(action, Swap | SetGate) for action in actions), "it still holds everything"


def test_the_set_never_falls_below_its_minimum() -> None:
    behind = {TWO: link(TWO, behind_s=5), THREE: link(THREE, behind_s=5)}
    (action,) = decided(master(), links=behind)
    assert (action.gate, "1 of at least 2" in action.reason) == (SendGate.REFUSE, True)
    (action,) = decided(master(required=PAIR.members), record=PAIR, links={TWO: link(TWO, behind_s=5)})
    assert action.gate is SendGate.REFUSE


def test_the_set_does_not_shrink_to_a_doubtful_member() -> None:
    links = {TWO: link(TWO, behind_s=0.6), THREE: link(THREE, behind_s=1.1)}
    assert decided(master(), links=links) == []


def test_after_its_own_pause_it_does_not_blame_the_replicas() -> None:
    links = {TWO: link(TWO, behind_s=9), THREE: link(THREE, behind_s=9)}
    assert decided(master(awake_since=NOW - 0.1), links=links) == []


def test_a_replica_joins_in_two_steps() -> None:
    node = master(required=PAIR.members)
    assert decided(node, record=PAIR) == [SetRequired(RECORD.members)]
    node = replace(node, required=RECORD.members)
    assert decided(node, record=PAIR) == [Swap(SwapPurpose.EXPAND, 7, EXPANDED)]


@pytest.mark.parametrize(
    "late",
    [
        link(THREE, flushed_end=99),
        link(THREE, connected=False),
        link(THREE, behind_s=2),
        link(THREE, caught_up_at=float("-inf")),
    ],
)
def test_a_replica_that_lacks_something_does_not_join(late: Any) -> None:
    actions = decided(master(required=RECORD.members), record=PAIR, links={TWO: link(TWO), THREE: late})
    assert not any(isinstance(action, Swap) for action in actions)


def test_a_replica_without_the_newest_state_does_not_join() -> None:
    node = master(required=PAIR.members, state_version=(5, 4))
    assert decided(node, record=PAIR, links={TWO: link(TWO, state_version=(5, 4)), THREE: link(THREE)}) == []


def test_the_union_must_acknowledge_until_the_outcome_is_certain() -> None:
    pending = PendingSwap(SwapPurpose.EXPAND, 7, EXPANDED, in_flight=True)
    node = master(required=RECORD.members)
    assert decided(node, record=PAIR, pending=pending) == []
    assert decided(master(required=PAIR.members), record=PAIR, pending=pending) == [
        SetRequired(RECORD.members)
    ]
    # No answer came: ask again at the same revision, and keep the union.
    unknown = replace(pending, in_flight=False)
    assert decided(node, record=PAIR, pending=unknown) == [Swap(SwapPurpose.EXPAND, 7, EXPANDED)]
    beats = {member.id: beat(member, promised_version=PAIR.version) for member in (ONE, TWO, THREE)}
    links = {TWO: link(TWO)}
    assert decided(node, record=PAIR, links=links, beats=beats) == [SetRequired(PAIR.members)]


def test_a_new_incarnation_replaces_the_old_one() -> None:
    wiped = Member(2, "new")
    links = {TWO: link(TWO, connected=False, behind_s=9), wiped: link(wiped)}
    union = PAIR.members | {wiped}
    actions = decided(master(required=union, gate=SendGate.REFUSE), record=PAIR, links=links)
    replaced = PAIR.replace(in_sync=(ONE, wiped)).with_voters((ONE, wiped, THREE), RECORD.members)
    assert actions == [Swap(SwapPurpose.EXPAND, 7, replaced)]


def test_without_the_register_it_goes_on_and_changes_nothing() -> None:
    assert decided(master(), readable=False) == []
    links = {TWO: link(TWO), THREE: link(THREE, behind_s=2)}
    (action,) = decided(master(), readable=False, links=links)
    assert (action.gate, action.reason) == (
        SendGate.REFUSE,
        "a node is behind and cannot be removed from the set",
    )


def test_a_member_that_must_stay_is_named() -> None:
    # Node 2 of a pair dies, and node 3 joins: only node 1 knows that the voters changed.
    joined = replaced(PAIR.with_voters(PAIR.in_sync, ()), in_sync=RECORD.in_sync)
    links = {TWO: link(TWO, behind_s=9), THREE: link(THREE)}
    promised = {1: joined.version, 2: joined.version - 1, 3: joined.version}
    beats = {member.id: beat(member, promised_version=promised[member.id]) for member in RECORD.in_sync}
    (action,) = decided(master(), record=joined, links=links, beats=beats)
    assert (action.gate, action.reason) == (SendGate.REFUSE, f"node 2 is behind, and {CANNOT_LEAVE}")
    assert cannot_leave(view(master(), record=joined, links=links, beats=beats), joined) == {TWO}
    beats[2] = beat(Member(2, "new"))
    assert not cannot_leave(view(master(), record=joined, links=links, beats=beats), joined)
    assert not cannot_leave(view(master(), links=links), RECORD), "it leaves by a swap"


def replaced(record: GroupRecord, in_sync: tuple[Member, ...]) -> GroupRecord:
    """Returns the record after a join."""
    changed = change_set(record, in_sync, lambda member: record.version)
    assert changed is not None
    return changed


def test_it_accepts_again_when_all_keep_up() -> None:
    assert decided(master(gate=SendGate.REFUSE)) == [SetGate(SendGate.OPEN)]
    alone = RECORD.replace(in_sync=(ONE,))
    node = master(required=alone.members, gate=SendGate.REFUSE)
    assert decided(node, record=alone, links={}) == []


# ---- resignation

CUT_OFF = {TWO: link(TWO, behind_s=9), THREE: link(THREE, behind_s=9)}


def test_it_resigns_when_others_could_acknowledge() -> None:
    node = master(progress_at=NOW - 3, gate=SendGate.REFUSE)
    resign = [Swap(SwapPurpose.RESIGN, 7, RECORD.replace(master=0))]
    assert decided(node, links=CUT_OFF) == resign
    assert decided(replace(node, progress_at=NOW - 2.9), links=CUT_OFF) == []
    assert decided(node, links={}) == []
    assert decided(replace(node, progress_at=NOW - 10), links={}) == resign
    assert decided(master(disk=Disk.HANGING, gate=SendGate.REFUSE)) == resign
    assert decided(master(disk=Disk.FAILED))[0].gate is SendGate.REFUSE
    assert decided(master(disk=Disk.CUT, gate=SendGate.REFUSE)) == resign
    assert decided(master(disk=Disk.FULL)) == resign


@pytest.mark.parametrize(
    "beats",
    [
        {},
        {2: beat(TWO)},
        {2: beat(TWO), 3: beat(THREE, age_s=10)},
        {2: beat(TWO), 3: beat(THREE, state=NodeState.FAILED)},
        {2: beat(TWO), 3: beat(THREE, state=NodeState.FULL)},
    ],
)
def test_it_stays_when_too_few_others_live(beats: Any) -> None:
    node = master(progress_at=NOW - 30, gate=SendGate.REFUSE)
    assert decided(node, links=CUT_OFF, beats=beats) == []


FULL_THREE = {1: beat(ONE), 2: beat(TWO), 3: beat(THREE, state=NodeState.FULL)}


def test_a_replica_whose_disk_is_full_leaves_the_set_and_stays_out() -> None:
    shrunk = [Swap(SwapPurpose.SHRINK, 7, PAIR)]
    assert decided(master(), beats=FULL_THREE) == shrunk
    assert decided(master(required=PAIR.members), record=PAIR, beats=FULL_THREE) == []
    (action,) = decided(master(gate=SendGate.HOLD), beats=FULL_THREE, switch=switching(3))
    assert action == EndSwitch("the disk of node 3 is full, so it cannot take messages")


def test_a_full_master_that_nobody_can_replace_leaves_the_refusal_to_its_store() -> None:
    """It still takes requests that make room, such as the deletion of a topic."""
    full = {member.id: beat(member, state=NodeState.FULL) for member in (TWO, THREE)}
    node = master(disk=Disk.FULL, required=RECORD.members)
    late = {member: link(member, behind_s=1.5) for member in (TWO, THREE)}
    (action,) = decided(node, beats=full, links=late)
    assert action == SetGate(SendGate.REFUSE, "1 of at least 2 nodes keep up")
    node, links = replace(node, required=PAIR.members), {TWO: link(TWO)}
    assert decided(node, record=PAIR, beats={2: beat(TWO)}, links=links) == []


# ---- planned switch


def switching(target: int = 2, age_s: float = 0.5) -> SwitchRequest:
    return SwitchRequest(target, NOW - age_s)


def test_a_switch_drains_then_hands_over() -> None:
    (action,) = decided(master(), switch=switching())
    assert action.gate is SendGate.HOLD
    node = master(gate=SendGate.HOLD)
    handed_over = RECORD.replace(epoch=1002, master=2)
    assert decided(node, switch=switching()) == [Swap(SwapPurpose.HAND_OVER, 7, handed_over)]
    assert decided(replace(node, confirmed_end=90), switch=switching()) == []
    links = {TWO: link(TWO, flushed_end=90), THREE: link(THREE)}
    assert decided(node, switch=switching(), links=links) == []
    done = decided(node, switch=switching(), record=handed_over)
    assert done == [EndSwitch(), StepDown("node 2 is master of epoch 1002")]


@pytest.mark.parametrize(
    ("switch", "why"),
    [
        (switching(1), "master already"),
        (switching(9), "not in sync"),
        (switching(2, age_s=5), "did not catch up"),
    ],
)
def test_a_switch_that_cannot_work_is_called_off(switch: SwitchRequest, why: str) -> None:
    (action,) = decided(master(gate=SendGate.HOLD), switch=switch)
    assert isinstance(action, EndSwitch)
    assert why in action.error


def test_a_switch_does_not_wait_for_the_register_for_ever() -> None:
    pending = PendingSwap(SwapPurpose.HAND_OVER, 7, RECORD.replace(epoch=6, master=2), in_flight=True)
    actions = decided(master(gate=SendGate.HOLD), switch=switching(age_s=5), pending=pending)
    assert actions == [EndSwitch("the register does not answer; the switch may still happen")]


def test_another_election_ends_a_switch_with_an_error() -> None:
    actions = decided(master(), switch=switching(), record=RECORD.replace(epoch=6, master=3))
    assert isinstance(actions[0], EndSwitch) and "another change came first" in actions[0].error


# ---- replicas=async

REFUSED = [SetGate(SendGate.REFUSE, "the register does not answer, so another node may be master")]


def test_with_async_replicas_the_lease_follows_the_beat() -> None:
    node = master(required=frozenset((ONE,)), beat_sent_at=NOW - 0.5)
    assert decided(node, settings=ASYNC) == [AcknowledgeUntil(NOW + 1.5), *REFUSED]
    late = master(required=frozenset((ONE,)), beat_sent_at=NOW - 2, acknowledge_until=NOW)
    (action,) = decided(late, settings=ASYNC)
    assert action.gate is SendGate.REFUSE


def test_a_lease_that_ended_needs_a_beat_and_a_swap() -> None:
    node = master(required=frozenset((ONE,)), gate=SendGate.REFUSE, acknowledge_until=NOW - 1)
    assert decided(replace(node, beat_sent_at=NOW - 3), settings=ASYNC) == []
    fresh = replace(node, beat_sent_at=NOW - 0.1)
    assert decided(fresh, settings=ASYNC) == [Swap(SwapPurpose.RENEW, 7, RECORD.replace())]
    renewed = replace(fresh, renewed_at=NOW - 0.05)
    assert decided(renewed, settings=ASYNC) == [AcknowledgeUntil(NOW + 1.9)]


def test_with_async_replicas_the_master_alone_confirms() -> None:
    node = master(acknowledge_until=NOW + 1.5)
    assert decided(node, settings=ASYNC) == [SetRequired(frozenset((ONE,)))]


@pytest.mark.parametrize(
    "settings",
    [
        {"replicas": ReplicaMode.ASYNC, "async_lease_s": 3.0},
        {"behind_limit_s": 3.0},
        {"min_in_sync": 0},
        {"election_after_s": 1.9, "hung_after_s": 1.9},
        {"hung_after_s": 1.4},
        {"hung_after_s": 3.1},
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: Any) -> None:
    with pytest.raises(ValueError):
        HaSettings(**settings)


# ---- damaged logs

DAMAGED = {"damaged_at": 10, "noted_damage": 10}


def test_a_damaged_master_resigns_if_a_sound_member_can_take_over() -> None:
    resigns = [Swap(SwapPurpose.RESIGN, 7, RECORD.replace(master=0))]
    assert decided(master(**DAMAGED)) == resigns
    one_left = {1: beat(ONE), 2: beat(TWO), 3: beat(THREE, age_s=60)}
    assert decided(master(**DAMAGED), beats=one_left) == resigns
    pair = {1: beat(ONE), 2: beat(TWO)}
    node = master(**DAMAGED, required=PAIR.members)
    assert decided(node, record=PAIR, beats=pair, links={TWO: link(TWO)}) == [
        Swap(SwapPurpose.RESIGN, 7, PAIR.replace(master=0))
    ]


@pytest.mark.parametrize(
    "beats",
    [
        {1: beat(ONE), 2: beat(TWO, age_s=60), 3: beat(THREE, age_s=60)},
        {1: beat(ONE), 2: beat(Member(2, "new")), 3: beat(THREE, state=NodeState.FAILED)},
    ],
)
def test_a_damaged_master_serves_on_while_nobody_sound_can_take_over(beats: Any) -> None:
    assert decided(master(**DAMAGED), beats=beats) == []


def test_a_damaged_master_does_not_resign_for_a_replica_that_is_late() -> None:
    links = {TWO: link(TWO, behind_s=1.5)}
    node = master(**DAMAGED, required=PAIR.members)
    beats = {1: beat(ONE), 2: beat(TWO)}
    assert not any(
        isinstance(action, Swap) for action in decided(node, record=PAIR, links=links, beats=beats)
    )


def test_a_damaged_replica_leaves_the_set_and_does_not_enter_it() -> None:
    beats = {1: beat(ONE), 2: beat(TWO), 3: beat(THREE, damaged_at=5)}
    assert decided(master(), beats=beats) == [Swap(SwapPurpose.SHRINK, 7, PAIR)]
    assert decided(master(required=PAIR.members), record=PAIR, beats=beats) == []
    # In a set that cannot shrink it still counts for new records.
    damaged = {1: beat(ONE), 2: beat(TWO, damaged_at=5)}
    assert decided(master(required=PAIR.members), record=PAIR, beats=damaged, links={TWO: link(TWO)}) == []


def test_no_switch_to_a_damaged_node() -> None:
    beats = {1: beat(ONE), 2: beat(TWO, damaged_at=5), 3: beat(THREE)}
    node = master(gate=SendGate.HOLD)
    (answer, *_) = decided(node, beats=beats, switch=SwitchRequest(2, NOW))
    assert answer == EndSwitch("the log of node 2 is damaged: wait until it is repaired")


def test_nothing_that_others_wait_for_waits_for_a_note_about_damage() -> None:
    assert decided(master(damaged_at=10)) == [NoteDamage(10)]
    (action,) = decided(master(damaged_at=10), record=RECORD.replace(epoch=6, master=2))
    assert isinstance(action, StepDown)
    hanging = decided(master(damaged_at=10, disk=Disk.HANGING, gate=SendGate.REFUSE))
    assert hanging == [Swap(SwapPurpose.RESIGN, 7, RECORD.replace(master=0))]
