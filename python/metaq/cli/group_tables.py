"""Broker groups as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import typer

from metaq.cli.formats import size
from metaq.cli.output import print_table
from metaq.protocol.replication import GroupStatus, NodeStatus


def print_groups(groups: Sequence[GroupStatus]) -> None:
    """Prints the groups, their nodes, and a line for each group that needs attention."""
    if not groups:
        typer.echo("No broker group was found.")
        return
    print_table(("group", "epoch", "master", "in sync", "at least"), [_group_row(group) for group in groups])
    heads = ("group", "node", "role", "state", "behind", "behind for", "address")
    rows = [_node_row(group, node) for group in groups for node in group.nodes]
    print_table(heads, rows, right=("node", "behind", "behind for"))
    for line in warnings(groups):
        typer.echo(line)


def warnings(groups: Sequence[GroupStatus]) -> Iterator[str]:
    """Yields what an operator should know about groups that are not well."""
    for group in groups:
        master = group.node(group.master)
        if master is None:
            yield f"{group.name} has no master: it takes no messages."
        elif master.state == "gone":
            yield f"The master of {group.name}, node {master.id}, does not answer."
        elif (living := _living_in_sync(group)) < group.min_in_sync:
            yield (
                f"{group.name} takes no messages, unless it has replicas=async: {living} of at least "
                f"{group.min_in_sync} nodes are in sync and answer."
            )


def _living_in_sync(group: GroupStatus) -> int:
    """The set never shrinks below its least size, so it may have nodes that are gone."""
    gone = {node.id for node in group.nodes if node.state in ("gone", "failed")}
    return len(set(group.in_sync) - gone)


def _group_row(group: GroupStatus) -> tuple[str, ...]:
    master = group.node(group.master)
    return (
        group.name,
        str(group.epoch),
        "–" if master is None else f"node {master.id}",
        ", ".join(map(str, group.in_sync)) or "–",
        str(group.min_in_sync),
    )


def _node_row(group: GroupStatus, node: NodeStatus) -> tuple[str, ...]:
    return (
        group.name,
        str(node.id),
        node.role,
        node.state,
        "–" if node.lag_bytes is None else size(node.lag_bytes),
        "–" if node.lag_ms is None else f"{node.lag_ms / 1000:.1f} s",
        node.address or "–",
    )
