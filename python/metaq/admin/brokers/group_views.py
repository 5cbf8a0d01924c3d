"""Puts the views that nodes have of their group together into one."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from metaq.errors import MetaqError
from metaq.ha.group_record import NO_MASTER
from metaq.ha.operators.group_status import register_status
from metaq.ha.operators.register_groups import RegisteredGroup
from metaq.protocol.commands.replication import GroupStatus, NodeRole, NodeStatus
from metaq.protocol.errors import Refused
from metaq.protocol.names import MASTER_ID

NodeAnswer = GroupStatus | MetaqError
"""The view of a node, or the reason why it has not answered."""


def combined(
    name: str, answers: Mapping[str, NodeAnswer], registered: RegisteredGroup | None
) -> GroupStatus | None:
    """Returns the state of a group from the answers of its nodes, by address, and from the register.

    The register's record counts where there is one that no node refuses. Otherwise the newest view counts,
    the master's first. Only a node itself knows its state, only the master how far the others are behind.
    Returns None if there is neither a record nor an answer.
    """
    views = {place: answer for place, answer in answers.items() if isinstance(answer, GroupStatus)}
    stored = None
    if registered is not None and (registered.record is not None or registered.beats):
        stored = register_status(name, registered.record, registered.beats.values())
    newest = max(views.items(), key=_rank, default=None)
    if newest is None:
        return None if stored is None else _with_nodes(stored, [_gone(node) for node in stored.nodes])
    best = newest[1]
    own = {node.id: node for place, view in views.items() if (node := _self(place, view)) is not None}
    is_refused = best.epoch > 0 and any(node.register_fault for node in own.values())
    base = stored if stored is not None and stored.epoch >= best.epoch and not is_refused else best
    # A node refuses while it changes its role. It lives, and the others know more of it.
    busy = {place for place, answer in answers.items() if isinstance(answer, Refused)}
    nodes: dict[int, NodeStatus] = {}
    for source in (stored, *views.values(), best):
        nodes.update({node.id: node for node in source.nodes} if source is not None else {})
    return _with_nodes(
        base, [_merged(nodes[node_id], own.get(node_id), base, busy) for node_id in sorted(nodes)]
    )


def gone_group(name: str, announced: Mapping[int, str]) -> GroupStatus:
    """Returns a group of which only the name servers know. None of its nodes answers."""
    nodes = tuple(
        NodeStatus(node_id, place, "master" if node_id == MASTER_ID else "replica", "gone")
        for node_id, place in sorted(announced.items())
    )
    return GroupStatus(name, 0, NO_MASTER, 0, (), nodes)


def _rank(item: tuple[str, GroupStatus]) -> tuple[int, bool]:
    place, view = item
    own = _self(place, view)
    return view.epoch, own is not None and own.role == "master" and view.master == own.id


def _self(place: str, view: GroupStatus) -> NodeStatus | None:
    """Returns the node that gave this view, which is the one that has the address."""
    return next((node for node in view.nodes if node.address == place), None)


def _merged(node: NodeStatus, own: NodeStatus | None, base: GroupStatus, busy: Collection[str]) -> NodeStatus:
    """Returns a node with the master's figures and its own state; one that did not answer is gone."""
    role: NodeRole = "master" if node.id == base.master else "replica"
    if own is None:
        return msgspec.structs.replace(node if node.address in busy else _gone(node), role=role)
    state = own.state
    if state == "in sync" and node.id not in base.in_sync:
        # It was removed from the set and has not heard of that yet.
        state = "catching up"
    elif state == "catching up" and node.id in base.in_sync and node.lag_bytes == 0:
        # A replica with a fixed master never hears that it is in the set.
        state = "in sync"
    return msgspec.structs.replace(
        node,
        role=role,
        state=state,
        address=own.address,
        damaged_at=own.damaged_at,
        problem=own.problem,
        register_fault=own.register_fault,
        same_id=own.same_id,
    )


def _gone(node: NodeStatus) -> NodeStatus:
    return msgspec.structs.replace(node, state="gone")


def _with_nodes(status: GroupStatus, nodes: list[NodeStatus]) -> GroupStatus:
    return msgspec.structs.replace(status, nodes=tuple(nodes))
