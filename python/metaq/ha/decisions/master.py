"""Decisions of a master: who must acknowledge, who is in the set, when to refuse, resign or hand over."""

from __future__ import annotations

from typing import Final

from metaq.ha.actions import (
    AcknowledgeUntil,
    Action,
    EndSwitch,
    SetGate,
    SetRequired,
    StepDown,
    Swap,
    Wait,
)
from metaq.ha.decisions.electorate import change_set, is_in_force, promised_by
from metaq.ha.decisions.membership import (
    behind_s,
    is_beating,
    is_damaged,
    is_full,
    is_leaving,
    must_acknowledge,
)
from metaq.ha.group_record import NO_MASTER, GroupRecord, Member, next_epoch
from metaq.ha.settings import ReplicaMode
from metaq.ha.view import Disk, Role, SendGate, SwapPurpose, View

CANNOT_LEAVE: Final = (
    "the set cannot go on without it: start it, or an empty node with its id, because a node with a new id "
    "does not replace it"
)


def decide_master(view: View) -> list[Action]:
    """Returns what a master should do now."""
    record = view.register.record
    assert record is not None, "only a record makes a master"
    if reason := _deposed(view, record):
        return _step_down(view, record, reason)
    joiner = _joiner(view, record)
    actions: list[Action] = []
    actions += _lease(view)
    actions += _required(view, record, joiner)
    swap = _swap(view, record, joiner)
    actions += _gate(view, record)
    if isinstance(swap, EndSwitch):
        actions.append(swap)
    elif swap is not None and not actions:
        # Whatever the swap relies on must be in force before it is sent, so it waits for the next look.
        actions.append(swap)
    return actions or [Wait(view.now + view.settings.tick_s)]


def is_deposed(view: View) -> bool:
    """Whether this node is a master that must stop serving."""
    record = view.register.record
    return view.own.role is Role.MASTER and record is not None and bool(_deposed(view, record))


def awaits_promises(view: View) -> bool:
    """Whether a member that left the set must acknowledge until the others have promised the record."""
    own, record = view.own, view.register.record
    if own.role is not Role.MASTER or record is None or view.settings.replicas is ReplicaMode.ASYNC:
        return False
    return not own.required <= must_acknowledge(record, view.pending) and not is_in_force(view, record)


def lagging(view: View, record: GroupRecord) -> frozenset[Member]:
    """Returns the members that are too far behind to stay in the set, or say that they cannot stay."""
    return frozenset(
        member
        for member in record.in_sync
        if member != view.own.member
        and (
            _is_late(view, member)
            or is_leaving(view, member)
            or is_damaged(view, member)
            or is_full(view, member)
        )
    )


def cannot_leave(view: View, record: GroupRecord) -> frozenset[Member]:
    """Returns the members that are behind and must stay, although enough others keep up: without them, an
    older record could elect a node that lacks messages."""
    limit_s = view.settings.behind_limit_s * 2
    others = record.members - {view.own.member}
    behind = frozenset(member for member in others if behind_s(view, member) >= limit_s)
    remaining = record.members - behind
    if not behind or not view.register.readable or len(remaining) < _min_in_sync(view, record):
        return frozenset()
    return behind if change_set(record, remaining, promised_by(view)) is None else frozenset()


def _is_late(view: View, member: Member) -> bool:
    return behind_s(view, member) >= view.settings.behind_limit_s


def _deposed(view: View, record: GroupRecord) -> str:
    own = view.own
    if own.peer_epoch > own.epoch:
        return f"a peer has seen epoch {own.peer_epoch}"
    if record.epoch > own.epoch:
        return f"node {record.master} is master of epoch {record.epoch}"
    if record.master != own.member.id:
        return "it resigned"
    return ""


def _step_down(view: View, record: GroupRecord, reason: str) -> list[Action]:
    actions: list[Action] = []
    if view.switch is not None:
        done = record.epoch > view.own.epoch and record.master == view.switch.target
        # First the answer: the end of the role waits for requests that are being handled.
        actions.append(EndSwitch("" if done else f"another change came first: {reason}"))
    return [*actions, StepDown(reason)]


def _lease(view: View) -> list[Action]:
    """Moves the lease of `replicas=async` with every beat, unless it ended in between."""
    own = view.own
    if view.settings.replicas is not ReplicaMode.ASYNC or _lease_to_renew(view):
        return []
    deadline = own.beat_sent_at + view.settings.async_lease_s
    return [AcknowledgeUntil(deadline)] if deadline > own.acknowledge_until else []


def _lease_to_renew(view: View) -> bool:
    """Whether the lease ended, so that another node may have been elected or may be just now."""
    own = view.own
    ended = own.acknowledge_until != float("-inf") and view.now >= own.acknowledge_until
    return ended and min(own.renewed_at, own.beat_sent_at) < own.acknowledge_until


def _required(view: View, record: GroupRecord, joiner: Member | None) -> list[Action]:
    """Sets who must acknowledge: everybody who may be electable now, or is about to be."""
    if view.settings.replicas is ReplicaMode.ASYNC:
        required = frozenset((view.own.member,))
    else:
        required = must_acknowledge(record, view.pending)
        if joiner is not None:
            required |= {joiner}
        if awaits_promises(view):
            # Otherwise an older record could elect one of them without anybody who knows better.
            required |= view.own.required
    return [SetRequired(required)] if required != view.own.required else []


def _joiner(view: View, record: GroupRecord) -> Member | None:
    """Returns a replica that has caught up and may enter the set."""
    if view.pending is not None or view.switch is not None or not view.register.readable:
        return None
    for member in sorted(view.links):
        link = view.links[member]
        if (
            link.connected
            and member not in record.members
            and not is_leaving(view, member)
            and not is_damaged(view, member)
            and not is_full(view, member)
            # One that cannot read the record could never promise the next one.
            and (record.version == 0 or member in view.register.readers)
            and not _is_late(view, member)
            and link.caught_up_at >= view.own.role_since
            and link.state_version >= view.own.state_version
            and _with_joiner(view, record, member) is not None
        ):
            return member
    return None


def _with_joiner(view: View, record: GroupRecord, joiner: Member) -> GroupRecord | None:
    others = [member for member in record.in_sync if member.id != joiner.id]
    return change_set(record, [*others, joiner], promised_by(view))


def _swap(view: View, record: GroupRecord, joiner: Member | None) -> Swap | EndSwitch | None:
    """Returns the change of the record that is needed most."""
    pending, revision = view.pending, view.register.revision
    if view.switch is not None and view.now - view.switch.asked_at >= view.settings.switch_timeout_s:
        return EndSwitch(_why_not_switched(view))
    if pending is not None:
        if pending.in_flight:
            return None
        # It may still be applied. Asking again settles it: at most one of the two can succeed.
        return Swap(pending.purpose, pending.expected_revision, pending.record)
    if view.switch is not None and (answer := _hand_over(view, record)) is not None:
        return answer
    if not view.register.readable:
        return None
    if (
        view.settings.replicas is ReplicaMode.ASYNC
        and _lease_to_renew(view)
        and view.own.beat_sent_at >= view.own.acknowledge_until
    ):
        # First a beat, which stops new candidates; then this, which stops those that have asked already.
        return Swap(SwapPurpose.RENEW, revision, record.replace())
    if _should_resign(view, record):
        return Swap(SwapPurpose.RESIGN, revision, record.replace(master=NO_MASTER))
    if (shrunk := _shrunk(view, record)) is not None:
        return Swap(SwapPurpose.SHRINK, revision, shrunk)
    if joiner is not None and view.links[joiner].flushed_end >= view.own.confirmed_end:
        expanded = _with_joiner(view, record, joiner)
        return Swap(SwapPurpose.EXPAND, revision, expanded) if expanded is not None else None
    return None


def _shrunk(view: View, record: GroupRecord) -> GroupRecord | None:
    """Returns the record without the members that are behind, if that helps."""
    remaining = record.members - (behind := lagging(view, record))
    if not behind or len(remaining) < _min_in_sync(view, record):
        return None
    # Nodes that die together are noticed one after the other: the set must not shrink to a dead one.
    doubtful_s = view.settings.behind_limit_s / 2
    if any(behind_s(view, member) >= doubtful_s for member in remaining if member != view.own.member):
        return None
    return change_set(record, remaining, promised_by(view))


def _hand_over(view: View, record: GroupRecord) -> Swap | EndSwitch | None:
    """Drains, waits until the target holds everything, then names it as master."""
    assert view.switch is not None
    own, switch = view.own, view.switch
    target = record.member(switch.target)
    if switch.target == own.member.id:
        return EndSwitch(f"node {switch.target} is master already")
    if target is None:
        return EndSwitch(f"node {switch.target} is not in sync, so it cannot become master without losses")
    if is_damaged(view, target):
        return EndSwitch(f"the log of node {switch.target} is damaged: wait until it is repaired")
    if is_full(view, target):
        return EndSwitch(f"the disk of node {switch.target} is full, so it cannot take messages")
    link = view.links.get(target)
    drained = own.gate is SendGate.HOLD and own.confirmed_end == own.appended_end
    if not drained or link is None or not link.connected or not view.register.readable:
        return None
    if link.flushed_end < own.appended_end or link.state_version < own.state_version:
        return None
    handed_over = record.replace(epoch=next_epoch(record.epoch, target.id), master=target.id)
    return Swap(SwapPurpose.HAND_OVER, view.register.revision, handed_over)


def _why_not_switched(view: View) -> str:
    assert view.switch is not None
    if view.pending is not None and view.pending.purpose is SwapPurpose.HAND_OVER:
        # Going on is safe meanwhile: nothing is confirmed without the target, which stops following first.
        return "the register does not answer; the switch may still happen"
    return f"node {view.switch.target} did not catch up in {view.settings.switch_timeout_s:g} s"


def _should_resign(view: View, record: GroupRecord) -> bool:
    """Whether others could acknowledge where this master cannot."""
    own, settings = view.own, view.settings
    # A master that no replica ever reached has no reason to think that others are better off.
    patience_s = settings.resign_after_s if view.links else settings.stand_back_s
    stuck = view.now - own.progress_at >= patience_s
    if own.disk is Disk.HEALTHY and own.damaged_at is None and not stuck:
        return False
    beating = {
        node_id for node_id, seen in view.beats.items() if node_id != own.member.id and is_beating(view, seen)
    }
    # With a healthy disk, this node goes on as a replica.
    goes_on = own.disk is Disk.HEALTHY and not stuck
    heirs = {
        member.id
        for member in record.in_sync
        if member.id in beating
        and view.beats[member.id].beat.member == member
        and not is_damaged(view, member)
        # Whoever is late may be far behind, and this master still acknowledges.
        and not (goes_on and _is_late(view, member))
    }
    # Fewer nodes than that could not acknowledge either, and the mastership would go back and forth.
    return bool(heirs) and len(beating) + goes_on >= _min_in_sync(view, record)


def _gate(view: View, record: GroupRecord) -> list[Action]:
    gate, reason = wanted_gate(view, record)
    return [SetGate(gate, reason)] if gate is not view.own.gate else []


def wanted_gate(view: View, record: GroupRecord) -> tuple[SendGate, str]:
    """Returns whether to take requests that append, and why not."""
    own, settings = view.own, view.settings
    if not own.disk.can_serve:
        return SendGate.REFUSE, f"the disk of the master is {own.disk.value}"
    if settings.replicas is ReplicaMode.ASYNC:
        if view.now >= own.acknowledge_until:
            return SendGate.REFUSE, "the register does not answer, so another node may be master"
    else:
        if len(record.members) < record.min_in_sync:
            return (
                SendGate.REFUSE,
                f"{len(record.members)} of at least {record.min_in_sync} nodes are in sync",
            )
        others = record.members - {view.own.member}
        behind = frozenset(
            member for member in others if _is_late(view, member) and not is_leaving(view, member)
        )
        remaining = record.members - behind
        if behind and len(remaining) < record.min_in_sync:
            return SendGate.REFUSE, f"{len(remaining)} of at least {record.min_in_sync} nodes keep up"
        if any(behind_s(view, member) >= settings.behind_limit_s * 2 for member in behind):
            kept = ", ".join(str(member.id) for member in sorted(cannot_leave(view, record)))
            if kept:
                return SendGate.REFUSE, f"node {kept} is behind, and {CANNOT_LEAVE}"
            return SendGate.REFUSE, "a node is behind and cannot be removed from the set"
    if view.switch is not None:
        return SendGate.HOLD, f"switch to node {view.switch.target}"
    return SendGate.OPEN, ""


def _min_in_sync(view: View, record: GroupRecord) -> int:
    return record.min_in_sync if view.settings.replicas is ReplicaMode.SYNC else 1
