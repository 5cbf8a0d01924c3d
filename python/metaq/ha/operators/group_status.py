"""The state of a broker group: as one of its nodes sees it, and as the register has it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from metaq.ha.decisions.fixed import FixedView
from metaq.ha.decisions.following import FOREIGN_LOG, may_take, next_copy_step
from metaq.ha.decisions.master import CANNOT_LEAVE, cannot_leave
from metaq.ha.decisions.membership import is_leaving
from metaq.ha.group_record import NO_MASTER, Beat, GroupRecord, Member, NodeState
from metaq.ha.settings import ReplicaMode
from metaq.ha.view import Disk, Link, Own, Role, SeenBeat, Source, SourceState, View
from metaq.protocol.commands.replication import GroupStatus, NodeRole, NodeStateWord, NodeStatus
from metaq.protocol.names import MASTER_ID

_PROGRESS: Final = ("", "following", "the group has no master")
"""Reasons to wait that need no operator."""
DAMAGED_FIXED_MASTER: Final = (
    "a master with a fixed role cannot repair its log, so make a replica the master, and this node a replica"
)


def group_status(name: str, view: View, address: str, *, reason: str = "", same_id: str = "") -> GroupStatus:
    """Returns the state of a group as one of its nodes sees it; `address` is the node's own, for clients.

    `reason` says why this node waits, `same_id` is the address of another one with its id. A node that has
    left for good is not listed. Only the master knows how far others are behind, so other nodes answer None
    there.
    """
    record = view.register.record
    members = {} if record is None else {member.id: member for member in record.in_sync}
    links = {
        member.id: link for member, link in sorted(view.links.items(), key=lambda item: item[1].contact_at)
    }
    beats = {node_id for node_id, seen in view.beats.items() if not _has_left(view, seen, links.get(node_id))}
    ids = {view.own.member.id, *members, *beats, *(node_id for node_id in links if node_id not in view.beats)}
    return GroupStatus(
        name=name,
        epoch=0 if record is None else record.epoch,
        master=NO_MASTER if record is None else record.master,
        min_in_sync=view.settings.min_in_sync if record is None else record.min_in_sync,
        in_sync=tuple(sorted(members)),
        nodes=tuple(
            _own_status(view, address, reason, same_id)
            if node_id == view.own.member.id
            else _peer_status(view, node_id, view.beats.get(node_id), links.get(node_id))
            for node_id in sorted(ids)
        ),
    )


def _has_left(view: View, seen: SeenBeat, link: Link | None) -> bool:
    """Whether a drained node has stopped."""
    return (
        seen.beat.state is NodeState.LEFT
        and not (link is not None and link.connected)
        and view.now - seen.changed_at >= view.settings.election_after_s
    )


def state_of(
    record: GroupRecord | None, member: Member, state: NodeState, damaged_at: int | None = None
) -> NodeStateWord:
    """Returns the word for a node that lives."""
    if state is NodeState.FAILED:
        return "failed"
    if state is NodeState.FULL:
        return "full"
    if damaged_at is not None:
        return "damaged"
    if state is NodeState.CANDIDATE:
        return "candidate"
    if state in (NodeState.LEAVING, NodeState.LEFT):
        return "leaving"
    if record is not None and member in record.members:
        return "in sync"
    has_master = record is not None and record.master != NO_MASTER
    return "catching up" if has_master else "waiting"


def fixed_status(name: str, view: FixedView, address: str, master_address: str) -> GroupStatus:
    """Returns the state of a group with fixed roles as one of its nodes sees it.

    Its master has the id 0, as in RocketMQ. Only the master knows who is in sync.
    """
    own, settings = view.own, view.settings
    min_in_sync = settings.min_in_sync if settings.replicas is ReplicaMode.SYNC else 1
    if own.member.id != view.master:
        is_streaming = view.source is not None and view.source.state is SourceState.STREAMING
        master = NodeStatus(MASTER_ID, master_address, "master", "in sync" if is_streaming else "gone")
        state: NodeStateWord = "catching up" if is_streaming else "waiting"
        state = state if own.damaged_at is None else "damaged"
        if own.disk is not Disk.HEALTHY:
            state = "full" if own.disk is Disk.FULL else "failed"
        replica = NodeStatus(
            own.member.id,
            address,
            "replica",
            state,
            damaged_at=own.damaged_at,
            problem=_problem(own, view.source),
        )
        return GroupStatus(name, own.epoch, MASTER_ID, min_in_sync, (), (master, replica))
    links = {link.member.id: link for link in sorted(view.links.values(), key=lambda link: link.contact_at)}
    master_state: NodeStateWord = "in sync" if own.damaged_at is None else "damaged"
    problem = "" if own.damaged_at is None else DAMAGED_FIXED_MASTER
    nodes = [NodeStatus(MASTER_ID, address, "master", master_state, 0, 0, own.damaged_at, problem)]
    for node_id in sorted({*links, *view.replica_ids}):
        link = links.get(node_id)
        lag_bytes, lag_ms = _lag(view, link)
        state = _fixed_state(own, link)
        nodes.append(NodeStatus(node_id, "", "replica", state, lag_bytes, lag_ms, ack_ms=_ack_ms(view, link)))
    in_sync = sorted({MASTER_ID if member == own.member else member.id for member in own.required})
    return GroupStatus(name, own.epoch, MASTER_ID, min_in_sync, tuple(in_sync), tuple(nodes))


def _fixed_state(own: Own, link: Link | None) -> NodeStateWord:
    if link is None or not link.connected:
        return "gone"
    return "in sync" if link.member in own.required else "catching up"


def _own_status(view: View, address: str, reason: str, same_id: str) -> NodeStatus:
    own, record = view.own, view.register.record
    is_master = own.role is Role.MASTER
    state = NodeState(own.role.value)
    if own.disk is Disk.FULL:
        state = state if is_master else NodeState.FULL
    elif own.disk is not Disk.HEALTHY:
        state = NodeState.FAILED
    if state is NodeState.REPLICA and is_leaving(view, own.member):
        state = NodeState.LEAVING
    word = state_of(record, own.member, state, own.damaged_at)
    waits_for = reason if word in ("catching up", "waiting") and reason not in _PROGRESS else ""
    return NodeStatus(
        id=own.member.id,
        address=address,
        role="master" if is_master else "replica",
        state=word,
        lag_bytes=0 if is_master else None,
        lag_ms=0 if is_master else None,
        damaged_at=own.damaged_at,
        problem=(_problem(own, view.source) or waits_for)[:1024],
        register_fault=view.register.fault[:1024],
        same_id=same_id,
    )


def _problem(own: Own, source: Source | None) -> str:
    """Returns why a replica that is connected to its master does not follow it, if it does not."""
    if own.role is not Role.REPLICA or source is None or source.state is not SourceState.CONNECTED:
        return ""
    step = next_copy_step(own, source)
    if isinstance(step, str):
        return step if own.joined else FOREIGN_LOG
    return "" if may_take(step, own) else FOREIGN_LOG


def _peer_status(view: View, node_id: int, seen: SeenBeat | None, link: Link | None) -> NodeStatus:
    record = view.register.record
    lag_bytes, lag_ms = _lag(view, link)
    return NodeStatus(
        id=node_id,
        address="" if seen is None else seen.beat.client_address,
        role="master" if record is not None and record.master == node_id else "replica",
        state=_peer_state(view, seen, link),
        lag_bytes=lag_bytes,
        lag_ms=lag_ms,
        damaged_at=None if seen is None else seen.beat.damaged_at,
        ack_ms=_ack_ms(view, link),
        problem=_why_kept(view, node_id),
    )


def _why_kept(view: View, node_id: int) -> str:
    """Returns why a member that is behind stays in the set, if this node is master and cannot remove it."""
    record = view.register.record
    if record is None or view.own.role is not Role.MASTER or view.settings.replicas is ReplicaMode.ASYNC:
        return ""
    return CANNOT_LEAVE if record.member(node_id) in cannot_leave(view, record) else ""


def _ack_ms(view: View | FixedView, link: Link | None) -> int | None:
    return link.ack_ms if link is not None and view.own.role is Role.MASTER else None


def _peer_state(view: View, seen: SeenBeat | None, link: Link | None) -> NodeStateWord:
    record = view.register.record
    connected = link is not None and link.connected
    if seen is None:
        if link is None or not connected:
            return "gone"
        return state_of(record, link.member, NodeState.REPLICA)
    # While the register was away nobody could beat. A connection to the master is a sign of life as well.
    heard_at = max(seen.changed_at, view.register.readable_since)
    if not connected and view.now - heard_at >= view.settings.election_after_s:
        return "gone"
    return state_of(record, seen.beat.member, seen.beat.state, seen.beat.damaged_at)


def _lag(view: View | FixedView, link: Link | None) -> tuple[int | None, int | None]:
    if link is None or view.own.role is not Role.MASTER:
        return None, None
    behind = max(view.own.appended_end - link.flushed_end, 0)
    if behind == 0 and link.connected:
        return 0, 0
    # A master that has just started does not know when the replica had everything.
    had_all_at = max(link.caught_up_at, view.own.role_since)
    return behind, max(round((view.now - had_all_at) * 1000), 0)


def register_status(name: str, record: GroupRecord | None, beats: Collection[Beat]) -> GroupStatus:
    """Returns the state of a group as the register has it, without asking a node.

    A beat does not say how old it is, so nodes count as they were when they wrote it. Lags are measured from
    the longest log that was reported.
    """
    members = () if record is None else record.in_sync
    in_sync = {member.id for member in members}
    known = {beat.id: beat for beat in beats if beat.state is not NodeState.LEFT or beat.id in in_sync}
    longest = max((beat.flushed_end for beat in beats), default=0)
    master = NO_MASTER if record is None else record.master

    def node(node_id: int) -> NodeStatus:
        beat = known.get(node_id)
        role: NodeRole = "master" if node_id == master else "replica"
        if beat is None:
            return NodeStatus(node_id, "", role, "gone")
        state = state_of(record, beat.member, beat.state, beat.damaged_at)
        fault = ""
        if beat.promised_version > (0 if record is None else record.version):
            has = "no record" if record is None else f"version {record.version} (epoch {record.epoch})"
            fault = (
                f"the register has {has} of the group, but this node has seen version {beat.promised_version}"
            )
        return NodeStatus(
            *(node_id, beat.client_address, role, state, longest - beat.flushed_end),
            damaged_at=beat.damaged_at,
            register_fault=fault,
        )

    return GroupStatus(
        name=name,
        epoch=0 if record is None else record.epoch,
        master=master,
        min_in_sync=0 if record is None else record.min_in_sync,
        in_sync=tuple(sorted(member.id for member in members)),
        nodes=tuple(node(node_id) for node_id in sorted({*known, *(member.id for member in members)})),
    )
