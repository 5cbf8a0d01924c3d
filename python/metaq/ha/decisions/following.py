"""Decisions of a replica: whom to follow, from where, and when to stand for master."""

from __future__ import annotations

from metaq.ha.actions import (
    Action,
    CompareBelow,
    Follow,
    Repair,
    StartOver,
    StopFollowing,
    Stream,
    Swap,
    Truncate,
    Wait,
)
from metaq.ha.decisions.membership import can_stand, hung_at, is_electable, is_master_gone
from metaq.ha.epochs import common_end
from metaq.ha.group_record import NO_MASTER, GroupRecord, shown_id
from metaq.ha.view import Compared, Own, Range, Source, SourceState, SwapPurpose, View

FOREIGN_LOG = "its log does not belong to this group: empty its data directory to let it join"


def decide_following(view: View) -> list[Action]:
    """Returns what a replica should do now."""
    own, record = view.own, view.register.record
    if record is None:
        if view.register.readable and own.disk.can_serve:
            return [StopFollowing()]
        return [_wait(view, "the register has not been read yet")]
    if can_stand(view, record) and is_master_gone(view, record):
        return [StopFollowing()]
    if record.master == own.member.id:
        if not is_electable(record, own.member):
            return [_wait(view, "its store lost what the group acknowledged, so others must take over")]
        if own.damaged_at is not None and view.register.readable:
            return [_resign(view, record)]
        return [_wait(view, "it is master, but cannot serve yet")]
    if record.master == NO_MASTER:
        return [_wait(view, "the group has no master")]
    if (own.following, own.epoch) != (record.master, record.epoch):
        return [Follow(record.master, record.epoch)]
    return rejoin(view, record)


def _resign(view: View, record: GroupRecord) -> Action:
    """A master that came back with a damaged log leaves the mastership to a member that may be sound."""
    if view.pending is not None:
        if view.pending.in_flight:
            return _wait(view, "the register has not answered")
        # It may still be applied. Asking again settles it: at most one of the two can succeed.
        return Swap(view.pending.purpose, view.pending.expected_revision, view.pending.record)
    return Swap(SwapPurpose.RESIGN, view.register.revision, record.replace(master=NO_MASTER))


def rejoin(view: View, record: GroupRecord) -> list[Action]:
    """Returns the next step from a fresh connection to a running stream."""
    source = view.source
    if needs_repair(view.own, source):
        return [Follow(record.master, record.epoch)]
    if source is None or source.state is not SourceState.CONNECTED or source.epoch != record.epoch:
        # At the same moment on every replica, and not a tick later.
        hung = hung_at(view, record)
        until = view.now + view.settings.tick_s
        return [Wait(hung if view.now < hung < until else until, "following")]
    step = next_copy_step(view.own, source)
    if isinstance(step, str):
        return [_wait(view, step if view.own.joined else FOREIGN_LOG)]
    return [step if may_take(step, view.own) else _wait(view, FOREIGN_LOG)]


def needs_repair(own: Own, source: Source | None) -> bool:
    """Whether a replica has found damage in its log while it streams: it repairs that on a new connection."""
    return own.damaged_at is not None and source is not None and source.state is SourceState.STREAMING


def may_take(step: Action, own: Own) -> bool:
    """Whether a step is allowed: a log that is not known to belong to the group is never cut."""
    return own.joined or own.appended_end == 0 or not isinstance(step, Truncate | StartOver | Repair)


def next_copy_step(own: Own, source: Source) -> Action | str:
    """Returns how to make this log a prefix of the master's log, one step at a time, or why that must wait.

    One master wrote what both logs have below the point, so a difference there means that bytes were damaged.
    Nothing is dropped for it: bytes that verify are never replaced.
    """
    point = common_end(own.history, own.appended_end, source.history, source.log_end)
    if point < source.log_start:
        if own.appended_end == source.log_start and not own.history.truncate(own.appended_end).starts:
            return Stream(source.log_start)
        return StartOver(source.log_start, f"the master's log begins at {source.log_start}, after {point}")
    compared = source.compared
    if compared is None or compared.end != point:
        return CompareBelow(point)
    if compared.own_damage:
        return _repair(compared, source)
    if not compared.agrees and (reason := _why_not_joined(compared, source)):
        return reason
    if point < own.appended_end:
        return Truncate(point)
    if any(first <= point < last for first, last in compared.peer_damage or ()):
        return f"the log of node {shown_id(source.node_id)} is damaged at {point}, where this node's ends"
    return Stream(point)


def _repair(compared: Compared, source: Source) -> Repair | str:
    """Repairs what the master has sound bytes for. It proves its own bytes before any of ours is replaced."""
    first = f"its log is damaged from {compared.own_damage[0][0]} on"
    master = f"node {shown_id(source.node_id)}"
    if compared.complaint:
        return f"{first} and cannot be repaired: {compared.complaint}"
    if compared.peer_damage is None:
        return f"{first}, and {master} cannot prove its own bytes: upgrade it"
    peer_damage = compared.peer_damage
    repairable = tuple(
        damaged for damaged in compared.own_damage if not any(_overlap(damaged, bad) for bad in peer_damage)
    )
    if not repairable:
        return f"{first}, and so is the log of {master}: repair one of them from another node or a backup"
    return Repair(repairable)


def _why_not_joined(compared: Compared, source: Source) -> str:
    """Returns why a log whose bytes verify cannot follow one that differs, or an empty text if it can."""
    master = f"node {shown_id(source.node_id)}"
    differs = f"its bytes below {compared.end} differ from those of {master}"
    if compared.peer_damage is None:
        return f"{differs}, which cannot prove its own: upgrade it"
    if compared.is_explained:
        # The master's bytes are damaged and these are not, so its stream can be followed from its end on.
        return ""
    return (
        f"{differs}, and no damage that either node finds explains it: empty the data directory of the node "
        "that is wrong"
    )


def _overlap(one: Range, other: Range) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _wait(view: View, reason: str) -> Wait:
    return Wait(view.now + view.settings.tick_s, reason)
