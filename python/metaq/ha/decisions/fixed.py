"""Decisions of a group with fixed roles. There is no election, so only the master knows the in-sync set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from metaq.ha.actions import (
    Action,
    BecomeMaster,
    FetchTail,
    Follow,
    NoteDamage,
    Promise,
    Reopen,
    SetGate,
    SetRequired,
    Wait,
)
from metaq.ha.decisions.following import FOREIGN_LOG, may_take, needs_repair, next_copy_step
from metaq.ha.decisions.membership import must_reopen, should_note_damage
from metaq.ha.epochs import common_end
from metaq.ha.group_record import Member
from metaq.ha.node import Offer
from metaq.ha.settings import HaSettings, ReplicaMode
from metaq.ha.view import Link, Own, Role, SendGate, Source, SourceState


@dataclass(frozen=True, slots=True)
class FixedView:
    """All that a decision of a fixed role depends on."""

    now: float
    settings: HaSettings
    own: Own
    master: int
    """The id of the node that an operator made master."""
    replica_ids: frozenset[int]
    """The replicas that a starting master waits for."""
    started_at: float
    incomplete: bool
    """The store may lack records that were acknowledged."""
    offers: Mapping[Member, Offer] = field(default_factory=dict)
    links: Mapping[Member, Link] = field(default_factory=dict)
    source: Source | None = None


def decide_fixed(view: FixedView) -> list[Action]:
    """Returns what a node with a fixed role should do now."""
    if must_reopen(view.own):
        return [Reopen()]
    if should_note_damage(view.own):
        return [NoteDamage(view.own.damaged_at)]
    if view.own.member.id != view.master:
        return [_follow(view)]
    if view.own.role is not Role.MASTER:
        return [_begin(view)]
    return _serve(view) or [_wait(view, "")]


def _follow(view: FixedView) -> Action:
    own, source = view.own, view.source
    if own.following != view.master or needs_repair(own, source):
        return Follow(view.master, own.promised_epoch)
    if source is None or source.state is not SourceState.CONNECTED:
        return _wait(view, "following")
    if source.epoch < own.promised_epoch:
        return _wait(
            view, f"the master serves epoch {source.epoch}, but {own.promised_epoch} was seen before"
        )
    if source.epoch > own.promised_epoch:
        return Promise(source.epoch)
    step = next_copy_step(own, source)
    if isinstance(step, str):
        return _wait(view, step if own.joined else FOREIGN_LOG)
    return step if may_take(step, own) else _wait(view, FOREIGN_LOG)


def _begin(view: FixedView) -> Action:
    """A starting master takes over a longer log of a replica before its first write."""
    own = view.own
    if not own.disk.can_serve:
        return _wait(view, f"its disk is {own.disk.value}")
    longer = [
        member
        for member, offer in view.offers.items()
        if offer.log_end > own.appended_end
        and common_end(own.history, own.appended_end, offer.history, offer.log_end) == own.appended_end
    ]
    if longer:
        member = max(longer, key=lambda member: (view.offers[member].log_end, member))
        return FetchTail(member, own.appended_end, view.offers[member].history)
    missing = view.replica_ids - {member.id for member in view.offers}
    if missing and view.incomplete:
        return _wait(
            view, f"its store lost records, so it waits for nodes {sorted(missing)} to get them back"
        )
    if missing and view.now - view.started_at < view.settings.fixed_wait_s:
        return _wait(view, f"nodes {sorted(missing)} may have a longer log")
    newest = max((offer.history.last_epoch for offer in view.offers.values()), default=0)
    return BecomeMaster(max(own.promised_epoch, newest) + 1, frozenset((own.member,)))


def _serve(view: FixedView) -> list[Action]:
    own, settings = view.own, view.settings
    needed = settings.min_in_sync if settings.replicas is ReplicaMode.SYNC else 1
    keeping_up = {
        member
        for member, link in view.links.items()
        if link.connected and view.now - min(link.caught_up_at, link.contact_at) < settings.behind_limit_s
    }
    wanted = frozenset((own.member,))
    if settings.replicas is ReplicaMode.SYNC:
        staying = {
            member
            for member in own.required
            if member in keeping_up or view.now - own.awake_since < settings.behind_limit_s
        }
        wanted |= keeping_up | staying
        if len(wanted) < needed:
            # Nothing can be acknowledged anyway. Whoever is in the set stays, so that nothing is hurried.
            wanted |= own.required
    actions: list[Action] = []
    if wanted != own.required:
        actions.append(SetRequired(wanted))
    gate, reason = SendGate.OPEN, ""
    if not own.disk.can_serve:
        gate, reason = SendGate.REFUSE, f"the disk of the master is {own.disk.value}"
    elif settings.replicas is ReplicaMode.SYNC and len(keeping_up) + 1 < needed:
        gate, reason = SendGate.REFUSE, f"{len(keeping_up) + 1} of at least {needed} nodes keep up"
    if gate is not own.gate:
        actions.append(SetGate(gate, reason))
    return actions


def _wait(view: FixedView, reason: str) -> Wait:
    return Wait(view.now + view.settings.tick_s, reason)
