"""Decisions of a candidate: who goes first, and when to ask for the mastership."""

from __future__ import annotations

from metaq.ha.actions import Action, BecomeMaster, Follow, Swap, Wait
from metaq.ha.decisions.electorate import Promised, change_set, has_agreement, promised_by
from metaq.ha.decisions.membership import can_stand, is_beating, is_electable, must_acknowledge
from metaq.ha.group_record import NO_MASTER, Beat, GroupRecord, NodeState, next_epoch
from metaq.ha.settings import ReplicaMode
from metaq.ha.view import StateVersion, SwapPurpose, View

_Standing = tuple[int, StateVersion, int, int]
"""The highest one goes first: the newest epoch, then the newest control state, then the longest log."""

NO_AGREEMENT = "too few nodes answer to know that the register is not an older copy"


def decide_candidate(view: View) -> list[Action]:
    """Returns what a candidate should do now. It follows nobody, so nothing is acknowledged through it."""
    own, record, pending = view.own, view.register.record, view.pending
    if pending is not None:
        if pending.in_flight:
            return [_wait(view, "the register has not answered")]
        # It may still be applied. Asking again settles it: at most one of the two can succeed.
        return [Swap(pending.purpose, pending.expected_revision, pending.record)]
    if record is None:
        return [_create(view)]
    if (
        record.master == own.member.id
        and is_electable(record, own.member)
        and record.epoch > own.promised_epoch
    ):
        if not has_agreement(view, record):
            return [_wait(view, NO_AGREEMENT)]
        return [BecomeMaster(record.epoch, must_acknowledge(record, None))]
    if not can_stand(view, record) or _has_master(view, record):
        if record.master in (NO_MASTER, own.member.id):
            return [_wait(view, "it cannot stand for master now")]
        return [Follow(record.master, record.epoch)]
    ask_at = _ask_at(view, record)
    if view.now < ask_at:
        return [Wait(ask_at, "others may have a longer log")]
    if not has_agreement(view, record):
        return [_wait(view, NO_AGREEMENT)]
    won = elected(record, own.member.id, promised_by(view))
    return [Swap(SwapPurpose.ELECT, view.register.revision, won)]


def elected(record: GroupRecord, node_id: int, promised: Promised) -> GroupRecord:
    """Returns the record in which a member takes over.

    The old master leaves the set if enough members remain: nothing was acknowledged without them.
    """
    old = record.member(record.master) if record.master not in (NO_MASTER, node_id) else None
    epoch = next_epoch(record.epoch, node_id)
    remaining = [member for member in record.in_sync if member != old]
    if len(remaining) >= record.min_in_sync:
        smaller = change_set(record, remaining, promised, epoch=epoch, master=node_id)
        if smaller is not None:
            return smaller
    return record.replace(epoch=epoch, master=node_id)


def _create(view: View) -> Action:
    """The first record of a new group. The node with the longest log writes it."""
    own, settings = view.own, view.settings
    if not view.register.readable:
        return _wait(view, "the register cannot be read")
    if not own.may_create:
        return _wait(view, "the group has no record yet, and only its former master may write one")
    others = [seen.beat for node_id, seen in view.beats.items() if node_id != own.member.id]
    longer = sum(_standing(beat) > _own_standing(view) for beat in others)
    ask_at = view.register.readable_since + settings.beat_interval_s + longer * settings.stagger_s
    if view.now < ask_at:
        return Wait(ask_at, "others may have a longer log")
    newest = max(own.promised_epoch, *(beat.promised_epoch for beat in others), 0)
    record = GroupRecord(
        epoch=next_epoch(newest, own.member.id),
        master=own.member.id,
        in_sync=(own.member,),
        min_in_sync=settings.min_in_sync,
        version=1,
        voters=(own.member,),
    )
    return Swap(SwapPurpose.CREATE, 0, record)


def _has_master(view: View, record: GroupRecord) -> bool:
    """Whether somebody else was elected, or the old master still serves after all."""
    own = view.own
    if record.master in (NO_MASTER, own.member.id):
        return False
    if record.epoch > own.promised_epoch:
        return True
    # A beat just before the master's end may be noticed a little later. With a lease it counts all the same.
    leased = view.settings.replicas is ReplicaMode.ASYNC
    doubt_s = 0.0 if leased else view.settings.beat_interval_s
    seen = view.beats.get(record.master)
    return (
        seen is not None
        and seen.beat.state is NodeState.MASTER
        and is_electable(record, seen.beat.member)
        and seen.changed_at > own.role_since + doubt_s
    )


def _ask_at(view: View, record: GroupRecord) -> float:
    """When this candidate may ask: the longest log first, then the others, one after another."""
    own, settings = view.own, view.settings
    rivals = [
        seen.beat
        for member in record.in_sync
        if member != own.member
        and (seen := view.beats.get(member.id)) is not None
        and is_beating(view, seen)
        and seen.beat.member == member
        and seen.beat.damaged_at is None
        and not (member.id == record.master and seen.beat.state is NodeState.MASTER)
    ]
    longer = sum(_standing(beat) > _own_standing(view) for beat in rivals)
    ask_at = own.role_since + settings.settle_s + longer * settings.stagger_s
    if own.resigned_at is not None and rivals:
        ask_at = max(ask_at, own.resigned_at + settings.stand_back_s)
    return ask_at


def _standing(beat: Beat) -> _Standing:
    return (beat.log_epoch, beat.state_version, beat.flushed_end, -beat.id)


def _own_standing(view: View) -> _Standing:
    own = view.own
    return (own.history.log_epoch(own.flushed_end), own.state_version, own.flushed_end, -own.member.id)


def _wait(view: View, reason: str) -> Wait:
    return Wait(view.now + view.settings.urgent_poll_interval_s, reason)
