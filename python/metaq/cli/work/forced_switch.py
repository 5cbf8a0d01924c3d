"""metaq cluster switch --force: says what may be lost, asks, and replaces the record in the register."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from metaq.cli.invocation import Format
from metaq.cli.printing.formats import size
from metaq.cli.printing.output import print_one
from metaq.cli.reading.connection import broker_groups, cluster_name, register_address
from metaq.cli.reading.questions import confirm
from metaq.errors import ConfigError
from metaq.ha.decisions.forced import Loss
from metaq.ha.operators.register_groups import RegisteredGroup, plan_force, read_group, write_forced
from metaq.ha.register import open_register

if TYPE_CHECKING:
    from metaq.ha.decisions.forced import Forced, NodeReport
    from metaq.protocol.commands.replication import GroupStatus


async def force_switch(
    name: str, target: int, register: str | None, cluster: str | None, *, yes: bool, output: Format
) -> None:
    """Makes a node master without asking the others. Raises CommandError or RegisterUnavailable."""
    address = register_address(register)
    if address is None:
        raise ConfigError(
            "--force needs --register, because it replaces the record of the group there",
            hint="add --register etcd://host:2379,… or set METAQ_REGISTER",
        )
    opened = open_register(address)
    try:
        named = cluster_name(cluster)
        async with broker_groups(address, None, cluster) as groups:
            seen = await groups.group(name)
        # Read again, so that the beats are as new as the answers.
        group = await read_group(opened, named, name)
        forced = plan_force(group, target, [node.id for node in seen.nodes if node.state != "gone"])
        for line in consequences(group, forced, seen):
            typer.echo(line, err=True)
        if not yes:
            confirm(f"Make node {target} the master of {name}?")
        await write_forced(opened, named, group, forced)
    finally:
        await opened.close()
    text = (
        f"node {target} is named as master of {name} (epoch {forced.record.epoch})",
        "It becomes master within seconds if it runs; `metaq cluster status` shows it.",
    )
    print_one(output, {"name": name, "epoch": forced.record.epoch, "to": target, "forced": True}, text)


def consequences(group: RegisteredGroup, forced: Forced, seen: GroupStatus) -> list[str]:
    """Returns what the operator must know before the record is replaced."""
    record, target = forced.record, forced.record.master
    lines: list[str] = []
    master = seen.node(seen.master)
    is_served = master is not None and master.state != "gone" and not forced.register_fault
    if master is not None and is_served and master.id != target:
        lines.append(
            f"Node {master.id} is master of {group.name} and answers. Without --force, it hands over without "
            "losses."
        )
    chosen = seen.node(target)
    if chosen is None or chosen.state in ("gone", "failed"):
        state = "unknown" if chosen is None else chosen.state
        lines.append(f"Node {target} is {state}: {group.name} has no master until it runs.")
    lines += [_report(report) for report in forced.reports]
    if forced.register_fault:
        lines.append(
            f"The register went back to an older state: {forced.register_fault}. Who was in sync last is "
            "unknown."
        )
    lines += _losses(group, forced)
    if forced.damaged_at is not None:
        lines.append(
            f"The log of node {target} is damaged at {forced.damaged_at:,}. Messages that are damaged there "
            "and that no other node has ARE LOST. Start the other nodes first if you can: they may have them."
        )
    lines.append(
        f"All other nodes leave the in-sync set. When they come back, they cut from their logs whatever node "
        f"{target} does not have, and keep a copy of it aside."
    )
    if record.min_in_sync > 1:
        lines.append(
            f"{group.name} takes no messages until {record.min_in_sync} nodes are in sync (min_in_sync)."
        )
    return lines


def _report(report: NodeReport) -> str:
    """Describes the log of a node. Without an answer the report in the register may be of any age."""
    if report.beat is None:
        return f"Node {report.id} does not answer and has left no report: what it has is unknown."
    beat = report.beat
    has = (
        f"a log of epoch {beat.log_epoch} that ends at {beat.flushed_end:,}, version {beat.state_version[1]} "
        f"of the control state (epoch {beat.state_version[0]}), and has seen version {beat.promised_version} "
        "of the record"
    )
    if report.answers:
        return f"Node {report.id} has {has}."
    return f"Node {report.id} does not answer: what it has now is unknown. Its last report: {has}."


def _losses(group: RegisteredGroup, forced: Forced) -> list[str]:
    target = forced.record.master
    if forced.loss is Loss.NONE:
        return [f"Node {target} is in the in-sync set: no acknowledged message is lost."]
    if forced.loss is Loss.UNKNOWN:
        return [
            f"Whether node {target} has every acknowledged message is unknown. Messages that it lacks ARE "
            "LOST, with the offsets, topics and transactions of that time. Start silent nodes first, if you "
            "can.",
            *_known_loss(group, forced),
        ]
    record = group.record
    if not forced.register_fault and (record is None or record.member(target) is None):
        reason = "is not in the in-sync set: messages that were acknowledged since it left the set"
    else:
        reason = "lacks what another node has: messages that were acknowledged without it"
    return [
        f"Node {target} {reason} ARE LOST, with the offsets, topics and transactions of that time.",
        *(
            _known_loss(group, forced)
            or [
                "No other node has reported a longer log, but the last messages before a failure are not in "
                "the reports."
            ]
        ),
    ]


def _known_loss(group: RegisteredGroup, forced: Forced) -> list[str]:
    if not forced.bytes_lost_max:
        return []
    longest = max(group.beats.values(), key=lambda beat: beat.flushed_end)
    return [
        f"Node {longest.id} reported a log that is {size(forced.bytes_lost_max)} longer. More may be "
        "missing: a report is up to a second older than the failure."
    ]
