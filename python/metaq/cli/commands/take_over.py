"""metaq broker take-over: makes a broker that copies an Apache master the master in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.invocation import Format
from metaq.cli.reading.flags import Output
from metaq.cli.reading.questions import confirm

if TYPE_CHECKING:
    from metaq.protocol.commands.replication import GroupStatus, NodeStatus


def take_over(
    address: Annotated[
        str,
        typer.Argument(
            help="Address of the broker that was started with --apache-master.",
            metavar="ADDRESS",
            show_default=False,
        ),
    ],
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Take over although messages may be missing, for example because the Apache master is lost.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation of --force.")] = False,
    output: Output = Format.table,
) -> None:
    """Take over from an Apache master, under its name.

    It happens only when the broker has every message, the Apache master got none for 5 s, and that one was
    stopped then. Otherwise nothing changes, and the command says how far the copy is and what to do next; so
    you can also use it to look.
    """
    import asyncio

    asyncio.run(_take_over(address, force=force, yes=yes, output=output))


async def _take_over(address: str, *, force: bool, yes: bool, output: Format) -> None:
    from metaq.cli.printing.output import print_one
    from metaq.cli.reading.connection import broker_groups
    from metaq.errors import CommandError
    from metaq.protocol.codes import ResponseCode
    from metaq.protocol.errors import Refused

    async with broker_groups(None, None, None) as groups:
        before = await groups.status_at(address)
        master, own = parties(before, address)
        if own.role == "master":
            _print_result(before.name, address, output, is_forced=False, was_master=True)
            return
        if force:
            for line in consequences(before.name, master, own):
                typer.echo(line, err=True)
            if not yes:
                confirm(f"Make {address} the master of {before.name}?")
        try:
            await groups.take_over(address, force=force)
        except Refused as error:
            if error.code != ResponseCode.ILLEGAL_OPERATION:
                raise
            master, own = parties(await groups.status_at(address), address)
            record = {
                "broker": address,
                "name": before.name,
                "taken_over": False,
                "bytes_behind": own.lag_bytes,
                "apache_master": master.address,
                "apache_master_runs": master.state != "gone",
                "reason": error.remark,
            }
            print_one(output, record, progress(before.name, master, own))
            raise CommandError(error.remark) from None
    _print_result(before.name, address, output, is_forced=force)


def parties(group: GroupStatus, address: str) -> tuple[NodeStatus, NodeStatus]:
    """Returns the master, and the broker that was asked. Raises CommandError if it is part of a group."""
    from metaq.errors import CommandError

    master = group.node(group.master)
    others = [node for node in group.nodes if node is not master]
    if group.epoch or master is None or len(others) > 1:
        raise CommandError(
            f"{address} is a node of group {group.name} and copies no Apache master",
            hint="`metaq cluster switch` changes the master of a group",
        )
    return master, others[0] if others else master


def progress(name: str, master: NodeStatus, own: NodeStatus) -> str:
    """Returns one line about a copy that is not finished."""
    from metaq.cli.printing.formats import size

    behind = (
        "it is not known how far it is behind" if own.lag_bytes is None else f"{size(own.lag_bytes)} behind"
    )
    answers = "does not answer" if master.state == "gone" else "runs"
    return f"{own.address} copies {name} from {master.address}, which {answers}: {own.state}, {behind}"


def consequences(name: str, master: NodeStatus, own: NodeStatus) -> list[str]:
    """Returns what the operator must know before a take-over by force."""
    from metaq.cli.printing.formats import size

    lines = []
    if master.state != "gone":
        lines.append(
            f"The Apache master {master.address} still runs. Stop it first, because two masters cannot share "
            "one name."
        )
    if own.lag_bytes is None:
        lines.append(
            f"Nobody knows how much of {name} is missing here: everything that was not copied before the "
            "Apache master was lost IS LOST."
        )
    elif own.lag_bytes:
        lines.append(
            f"When the Apache master last answered, {size(own.lag_bytes)} were missing here. They ARE LOST."
        )
    else:
        lines.append("When the Apache master last answered, nothing was missing here.")
    lines.append("Messages that it accepted after that and did not send here ARE LOST.")
    lines.append(
        "Offsets that consumers committed in its last seconds may be missing: messages come again then."
    )
    lines.append("Do not start the Apache master again under this name.")
    return lines


def _print_result(
    name: str, address: str, output: Format, *, is_forced: bool, was_master: bool = False
) -> None:
    from metaq.cli.printing.output import print_one

    text = (
        [f"{address} is master of {name} already"]
        if was_master
        else [
            f"{address} is master of {name}. Clients find it within 30 s.",
            "Do not start the Apache master again under this name.",
        ]
    )
    print_one(output, {"broker": address, "name": name, "taken_over": True, "forced": is_forced}, text)
