"""Questions about the group that more than one role asks."""

from __future__ import annotations

from metaq.ha.group_record import NO_MASTER, Beat, GroupRecord, Member, NodeState
from metaq.ha.settings import ReplicaMode
from metaq.ha.view import Disk, Own, PendingSwap, Role, SeenBeat, View


def is_electable(record: GroupRecord, member: Member) -> bool:
    """Whether a node holds everything that was acknowledged: it is in the set, with the same incarnation."""
    return member in record.members


def is_beating(view: View, seen: SeenBeat | None) -> bool:
    """Whether a node is alive and well as far as the register shows."""
    if seen is None or seen.beat.state in (NodeState.FAILED, NodeState.FULL):
        return False
    # One beat may be late by a poll, so a node is given up after two.
    limit_s = view.settings.beat_interval_s * 2 + view.settings.poll_interval_s / 2
    return view.now - seen.changed_at <= limit_s


def is_master_gone(view: View, record: GroupRecord) -> bool:
    """Whether the group needs another master: it resigned, its port refuses, or its beat stopped."""
    if record.master in (NO_MASTER, view.own.member.id):
        return True
    source, settings = view.source, view.settings
    if (
        source is not None
        and (source.node_id, source.epoch) == (record.master, record.epoch)
        and source.refused_since is not None
        and view.now - source.refused_since >= settings.refused_for_s
    ):
        return True
    seen = view.beats.get(record.master)
    if seen is not None and not is_electable(record, seen.beat.member):
        return True
    if seen is not None and seen.beat.state is NodeState.FULL and _is_not_serving(view, record, seen.beat):
        return True
    # While the register was away, nobody could beat. Only silence of a readable register counts.
    heard_at = view.register.readable_since
    if seen is not None:
        heard_at = max(heard_at, seen.changed_at)
    silent_s = view.now - heard_at
    return silent_s >= settings.election_after_s or view.register.read_at >= hung_at(view, record)


def may_have_hung(view: View) -> bool:
    """Whether the master that this node follows has missed two beats on the stream."""
    record = view.register.record
    if record is None or view.own.role is not Role.REPLICA:
        return False
    return _stream_silence_s(view, record) >= view.settings.hung_after_s / 5


def must_look_for_beat(view: View) -> bool:
    """Whether the followed master counts as hung unless the register has a beat that was not read yet."""
    record = view.register.record
    if record is None or view.own.role is not Role.REPLICA:
        return False
    return view.register.read_at < hung_at(view, record) <= view.now


def hung_at(view: View, record: GroupRecord) -> float:
    """Returns when a master that gives no sign of life until then counts as hung, or infinity."""
    seen = view.beats.get(record.master)
    silence_s = _stream_silence_s(view, record)
    if silence_s <= 0:
        return float("inf")
    beat_at = seen.changed_at if seen is not None else view.register.readable_since
    heard_at = max(beat_at, view.register.readable_since, view.now - silence_s)
    return heard_at + view.settings.hung_after_s


def _stream_silence_s(view: View, record: GroupRecord) -> float:
    """Returns for how long the master has sent nothing on the stream, on which it beats five times a second.

    Returns 0 where that proves nothing.
    """
    source, settings = view.source, view.settings
    if (
        # A lease may not have ended yet.
        settings.replicas is ReplicaMode.ASYNC
        or source is None
        or (source.node_id, source.epoch) != (record.master, record.epoch)
        or source.heard_at is None
    ):
        return 0.0
    # After a pause of its own, this node reads late what the master sent in time.
    return max(view.now - max(source.heard_at, view.own.awake_since), 0.0)


def _is_not_serving(view: View, record: GroupRecord, full: Beat) -> bool:
    """Whether the master that the record names has a full disk and will not serve in that epoch.

    A master that serves says so, even if its disk is full.
    """
    if full.promised_epoch >= record.epoch:
        return True
    # It may still take over. If it takes too long, others go first; with leases that would not be safe.
    has_waited = view.now - view.own.role_since >= view.settings.election_after_s
    return has_waited and view.settings.replicas is ReplicaMode.SYNC


def can_stand(view: View, record: GroupRecord) -> bool:
    """Whether this node may ask to become master."""
    own = view.own
    if not (view.register.readable and own.disk.can_serve and is_electable(record, own.member)):
        return False
    if own.disk is Disk.FULL and others_have_room(view, record):
        return False
    return own.damaged_at is None or not others_may_be_sound(view, record)


def others_have_room(view: View, record: GroupRecord) -> bool:
    """Whether another member of the set lives, has room for records and may become master.

    If all are full, one of them must become master all the same: only a master deletes what is old. A node
    with a damaged log waits for one that is sound, even if that one is full.
    """
    for member in record.members - {view.own.member}:
        seen = view.beats.get(member.id)
        if seen is None or not is_beating(view, seen):
            continue
        may_stand = seen.beat.damaged_at is None or view.own.damaged_at is not None
        if seen.beat.member == member and may_stand:
            return True
    return False


def others_may_be_sound(view: View, record: GroupRecord) -> bool:
    """Whether another member of the set may have the records that are damaged here.

    A member that does not beat may come back with them. One with a new incarnation will not.
    """
    for member in record.members - {view.own.member}:
        seen = view.beats.get(member.id)
        if seen is None or (seen.beat.member == member and seen.beat.damaged_at is None):
            return True
    return False


def should_note_damage(own: Own) -> bool:
    """Whether a node should write down that its log is damaged, or sound again."""
    return own.damaged_at != own.noted_damage and own.disk is Disk.HEALTHY


def must_reopen(own: Own) -> bool:
    """Whether a node should open its store again, because its log was cut. A master resigns first."""
    return own.disk is Disk.CUT and own.role is not Role.MASTER


def is_damaged(view: View, member: Member) -> bool:
    """Whether a node has said that its log is damaged."""
    seen = view.beats.get(member.id)
    return seen is not None and seen.beat.member == member and seen.beat.damaged_at is not None


def behind_s(view: View, member: Member) -> float:
    """Returns for how many seconds a member has not held everything, or not been heard of."""
    link = view.links.get(member)
    # After a pause of its own, a master must hear from its replicas before it judges them.
    good_at = max(view.own.role_since, view.own.awake_since)
    if link is not None:
        good_at = max(good_at, min(link.caught_up_at, link.contact_at))
    return view.now - good_at


def is_leaving(view: View, member: Member) -> bool:
    """Whether a node has said that it is about to stop."""
    seen = view.beats.get(member.id)
    leaving = (NodeState.LEAVING, NodeState.LEFT)
    return seen is not None and seen.beat.member == member and seen.beat.state in leaving


def is_full(view: View, member: Member) -> bool:
    """Whether a node has said that its disk takes no records."""
    seen = view.beats.get(member.id)
    return seen is not None and seen.beat.member == member and seen.beat.state is NodeState.FULL


def must_acknowledge(record: GroupRecord, pending: PendingSwap | None) -> frozenset[Member]:
    """Returns everybody who may be electable now: the record's set, and the set of a change on its way."""
    return record.members | (pending.record.members if pending is not None else frozenset())
