"""Broker groups as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from metaq.cli.printing.formats import size
from metaq.cli.printing.output import print_table
from metaq.protocol.commands.replication import GroupStatus, NodeStatus


def print_groups(groups: Sequence[GroupStatus]) -> None:
    """Prints the groups and their nodes."""
    if not groups:
        typer.echo("No broker group was found.")
        return
    print_table(("group", "epoch", "master", "in sync", "at least"), [_group_row(group) for group in groups])
    heads = ("group", "node", "role", "state", "behind", "behind for", "address")
    rows = [_node_row(group, node) for group in groups for node in group.nodes]
    print_table(heads, rows, right=("node", "behind", "behind for"))


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
