"""Decisions of a replica: whom to follow, from where, and when to stand for master."""

from __future__ import annotations

from metaq.ha.actions import Action, CompareBelow, Follow, StartOver, StopFollowing, Stream, Truncate, Wait
from metaq.ha.decisions.membership import can_stand, is_electable, is_master_gone
from metaq.ha.epochs import common_end
from metaq.ha.group_record import NO_MASTER, GroupRecord
from metaq.ha.view import Disk, Own, Source, SourceState, View

FOREIGN_LOG = "its log does not belong to this group: empty its data directory to let it join"


def decide_following(view: View) -> list[Action]:
    """Returns what a replica should do now."""
    own, record = view.own, view.register.record
    if record is None:
        if view.register.readable and own.disk is Disk.HEALTHY:
            return [StopFollowing()]
        return [_wait(view, "the register has not been read yet")]
    if can_stand(view, record) and is_master_gone(view, record):
        return [StopFollowing()]
    if record.master == own.member.id:
        if is_electable(record, own.member):
            return [_wait(view, "it is master, but cannot serve yet")]
        return [_wait(view, "its store lost what the group acknowledged, so others must take over")]
    if record.master == NO_MASTER:
        return [_wait(view, "the group has no master")]
    if (own.following, own.epoch) != (record.master, record.epoch):
        return [Follow(record.master, record.epoch)]
    return rejoin(view, record)


def rejoin(view: View, record: GroupRecord) -> list[Action]:
    """Returns the next step from a fresh connection to a running stream."""
    source = view.source
    if source is None or source.state is not SourceState.CONNECTED or source.epoch != record.epoch:
        return [_wait(view, "following")]
    step = next_copy_step(view.own, source)
    return [step if may_take(step, view.own) else _wait(view, FOREIGN_LOG)]


def may_take(step: Action, own: Own) -> bool:
    """Whether a step is allowed: a log that is not known to belong to the group is never cut."""
    return own.joined or own.appended_end == 0 or not isinstance(step, Truncate | StartOver)


def next_copy_step(own: Own, source: Source) -> Action:
    """Returns how to make this log a prefix of the master's log, one step at a time."""
    point = common_end(own.history, own.appended_end, source.history, source.log_end)
    if point < source.log_start:
        if own.appended_end == source.log_start and not own.history.truncate(own.appended_end).starts:
            return Stream(source.log_start)
        return StartOver(source.log_start, f"the master's log begins at {source.log_start}, after {point}")
    if source.agrees_below is None or source.agrees_below[0] != point:
        return CompareBelow(point)
    if not source.agrees_below[1]:
        return StartOver(source.log_start, f"its bytes below {point} differ from the master's")
    if point < own.appended_end:
        return Truncate(point)
    return Stream(point)


def _wait(view: View, reason: str) -> Wait:
    return Wait(view.now + view.settings.tick_s, reason)
