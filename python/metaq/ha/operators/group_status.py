"""The state of a broker group: as one of its nodes sees it, and as the register has it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from metaq.ha.decisions.fixed import FixedView
from metaq.ha.decisions.following import FOREIGN_LOG, may_take, next_copy_step
from metaq.ha.group_record import NO_MASTER, Beat, GroupRecord, Member, NodeState
from metaq.ha.settings import ReplicaMode
from metaq.ha.view import Disk, Link, Own, Role, SeenBeat, Source, SourceState, View
from metaq.protocol.commands.replication import GroupStatus, NodeRole, NodeStateWord, NodeStatus
from metaq.protocol.names import MASTER_ID

DAMAGED_FIXED_MASTER: Final = (
    "a master with a fixed role cannot repair its log, so make a replica the master, and this node a replica"
)


def group_status(name: str, view: View, address: str) -> GroupStatus:
    """Returns the state of a group as one of its nodes sees it; `address` is the node's own, for clients.

    Only the master knows how far others are behind, so other nodes answer None there.
    """
    record = view.register.record
    members = {} if record is None else {member.id: member for member in record.in_sync}
    links = {
        member.id: link for member, link in sorted(view.links.items(), key=lambda item: item[1].contact_at)
    }
    ids = {view.own.member.id, *members, *view.beats, *links}
    return GroupStatus(
        name=name,
        epoch=0 if record is None else record.epoch,
        master=NO_MASTER if record is None else record.master,
        min_in_sync=view.settings.min_in_sync if record is None else record.min_in_sync,
        in_sync=tuple(sorted(members)),
        nodes=tuple(
            _own_status(view, address)
            if node_id == view.own.member.id
            else _peer_status(view, node_id, view.beats.get(node_id), links.get(node_id))
            for node_id in sorted(ids)
        ),
    )


def state_of(
    record: GroupRecord | None, member: Member, state: NodeState, damaged_at: int | None = None
) -> NodeStateWord:
    """Returns the word for a node that lives."""
    if state is NodeState.FAILED:
        return "failed"
    if damaged_at is not None:
        return "damaged"
    if state is NodeState.CANDIDATE:
        return "candidate"
    if state is NodeState.LEAVING:
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
        state = state if own.disk is Disk.HEALTHY else "failed"
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
        nodes.append(NodeStatus(node_id, "", "replica", _fixed_state(own, link), lag_bytes, lag_ms))
    in_sync = sorted({MASTER_ID if member == own.member else member.id for member in own.required})
    return GroupStatus(name, own.epoch, MASTER_ID, min_in_sync, tuple(in_sync), tuple(nodes))


def _fixed_state(own: Own, link: Link | None) -> NodeStateWord:
    if link is None or not link.connected:
        return "gone"
    return "in sync" if link.member in own.required else "catching up"


def _own_status(view: View, address: str) -> NodeStatus:
    own, record = view.own, view.register.record
    is_master = own.role is Role.MASTER
    seen = view.beats.get(own.member.id)
    state = NodeState(own.role.value) if own.disk is Disk.HEALTHY else NodeState.FAILED
    if state is NodeState.REPLICA and seen is not None and seen.beat.state is NodeState.LEAVING:
        state = NodeState.LEAVING
    return NodeStatus(
        id=own.member.id,
        address=address,
        role="master" if is_master else "replica",
        state=state_of(record, own.member, state, own.damaged_at),
        lag_bytes=0 if is_master else None,
        lag_ms=0 if is_master else None,
        damaged_at=own.damaged_at,
        problem=_problem(own, view.source),
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
    )


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
    known = {beat.id: beat for beat in beats}
    longest = max((beat.flushed_end for beat in beats), default=0)
    master = NO_MASTER if record is None else record.master

    def node(node_id: int) -> NodeStatus:
        beat = known.get(node_id)
        role: NodeRole = "master" if node_id == master else "replica"
        if beat is None:
            return NodeStatus(node_id, "", role, "gone")
        state = state_of(record, beat.member, beat.state, beat.damaged_at)
        lag_bytes = longest - beat.flushed_end
        return NodeStatus(node_id, beat.client_address, role, state, lag_bytes, None, beat.damaged_at)

    return GroupStatus(
        name=name,
        epoch=0 if record is None else record.epoch,
        master=master,
        min_in_sync=0 if record is None else record.min_in_sync,
        in_sync=tuple(sorted(member.id for member in members)),
        nodes=tuple(node(node_id) for node_id in sorted({*known, *(member.id for member in members)})),
    )
