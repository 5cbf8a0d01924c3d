"""The nodes that must agree to an election: an old copy of the register elects nobody who lacks messages.

Somebody may put any old record R back into the register, and start the nodes in any order. Three rules keep
the acknowledged messages. `m` is `min_in_sync`, and V the voters of R:

1. Every node promises each record on its disk before it acts on it, and refuses older ones (`promises.py`).
2. An election under R needs |V| - m + 1 voters that live and have promised nothing newer than R.
3. A master goes on waiting for a member that it removed until all that remain have promised the new record.
   A replica follows a master only after it has promised that master's record.

Claim: if a message was acknowledged that some member of R's set S may lack, then m voters of R (all of them,
if they are fewer) had promised a newer record before. Any election under R then meets one of them, because
the other voters are too few.

- While the voters stay V: a message without some member of S needs a later record whose set S' lacks that
  member. S' has at least m members, all of them are in V, and by rule 3 all of them have promised it.
- When the voters change, at version w, the record keeps V as `voters_before` and w as `voters_since`. A
  member may be removed only if m of V are in S' or have promised w already (`_may_drop`). The next change of
  the voters must wait until m of V have promised w (`_is_settled`); then the claim holds for V for ever.
- All of this is in the record itself, so a master that dies right after its swap leaves it to the next one.

Removed members stay voters while there are fewer than 2m - 1 others. So a set of two among three nodes still
needs two of the three, and a third node that comes back can help while the second stays dead. An incarnation
that was replaced by another one of the same node counts as one that refuses: its store is gone.

With `min_in_sync=1` rule 2 would need everybody and end automatic failover. So it is not asked for, and any
member may be removed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from metaq.ha.group_record import GroupRecord, Member
from metaq.ha.settings import ReplicaMode
from metaq.ha.view import View

Promised = Callable[[Member], float]
"""Returns the newest version that a member is known to have promised."""


def promised_by(view: View) -> Promised:
    """Returns what each member has promised, as its beat shows: -1 if that is not known."""

    def promised(member: Member) -> float:
        if member == view.own.member:
            return view.own.promised_record.version
        seen = view.beats.get(member.id)
        if seen is None:
            return -1
        return seen.beat.promised_version if seen.beat.member == member else math.inf

    return promised


def votes_needed(record: GroupRecord) -> int:
    """Returns how many voters must agree to an election; 0 if none is asked."""
    if record.min_in_sync == 1:
        return 0
    return max(len(record.electorate) - record.min_in_sync + 1, 1)


def has_agreement(view: View, record: GroupRecord) -> bool:
    """Whether enough voters live and have promised nothing newer than this record."""
    if view.settings.replicas is ReplicaMode.ASYNC:
        return True
    agreeing = 0
    for voter in record.electorate:
        seen = view.beats.get(voter.id)
        is_own = voter == view.own.member
        if is_own or (seen is not None and seen.is_fresh and seen.beat.member == voter):
            agreeing += promised_by(view)(voter) <= record.version
    return agreeing >= votes_needed(record)


def is_in_force(view: View, record: GroupRecord) -> bool:
    """Whether every member of the set has promised this record."""
    promised = promised_by(view)
    return all(promised(member) >= record.version for member in record.in_sync)


def change_set(
    record: GroupRecord,
    in_sync: Iterable[Member],
    promised: Promised,
    *,
    epoch: int | None = None,
    master: int | None = None,
) -> GroupRecord | None:
    """Returns the record with another set, or None if an older record could elect a node that lacks messages
    after that change."""
    members = frozenset(in_sync)
    if not record.members <= members and not _may_drop(record, members, promised):
        return None
    changed = record.replace(epoch=epoch, master=master, in_sync=members)
    voters = _voters(record, members)
    if not record.voters:
        # The record of an older broker. Its copies elect anybody in their set, so dead nodes need not agree.
        return changed.with_voters(voters, ())
    if voters == record.electorate:
        return changed
    if _is_settled(record, promised):
        return changed.with_voters(voters, record.electorate)
    # Too many voters do no harm for a while.
    return changed if members <= record.electorate else None


def _voters(record: GroupRecord, members: frozenset[Member]) -> frozenset[Member]:
    ids = {member.id for member in members}
    others = sorted(voter for voter in record.electorate if voter.id not in ids)
    wanted = max(2 * record.min_in_sync - 1 - len(members), 0)
    return members | frozenset(others[:wanted])


def _may_drop(record: GroupRecord, remaining: frozenset[Member], promised: Promised) -> bool:
    if record.min_in_sync == 1:
        return True
    before = record.voters_before
    knowing = sum(voter in remaining or promised(voter) >= record.voters_since for voter in before)
    return knowing >= min(record.min_in_sync, len(before))


def _is_settled(record: GroupRecord, promised: Promised) -> bool:
    return _may_drop(record, frozenset(), promised)
