"""metaq cluster, and metaq broker drain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.command_table import group_of_commands
from metaq.cli.flags import ClusterName, NameServers, Output, RegisterAddress
from metaq.cli.invocation import Format

if TYPE_CHECKING:
    from metaq.admin.broker_groups import Switched
    from metaq.protocol.replication import GroupStatus

app = group_of_commands("Show broker groups, and choose their masters.")

Name = Annotated[str, typer.Argument(help="Name of the broker group.", metavar="NAME", show_default=False)]


@app.command()
def status(
    register: RegisterAddress = None,
    namesrv: NameServers = None,
    cluster: ClusterName = None,
    output: Output = Format.table,
) -> None:
    """Show every broker group: its master, the nodes that are in sync, and how far each one is behind.

    The words for the state of a node:

    "in sync" holds every acknowledged message; "catching up" copies what it lacks from the master; "waiting"
    is not in sync and has no master to copy from; "leaving" was asked to stop; "candidate" wants to become
    master; "failed" has a disk that fails or hangs; "gone" does not answer.
    """
    import asyncio

    from metaq.cli.connection import broker_groups
    from metaq.cli.group_tables import print_groups
    from metaq.cli.output import print_json

    async def ask() -> None:
        async with broker_groups(register, namesrv, cluster) as groups:
            found = await groups.survey()
        for note in found.notes:
            typer.echo(f"metaq: {note}", err=True)
        if output is Format.json:
            print_json({"groups": found.groups})
        else:
            print_groups(found.groups)

    asyncio.run(ask())


@app.command()
def switch(
    name: Name,
    to: Annotated[
        int,
        typer.Option("--to", help="Id of the node that becomes master.", metavar="ID", show_default=False),
    ],
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="For the disaster: make the node master without asking the others. Messages may be lost.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation of --force.")] = False,
    register: RegisterAddress = None,
    namesrv: NameServers = None,
    cluster: ClusterName = None,
    output: Output = Format.table,
) -> None:
    """Make another node of a group master.

    The master waits until the node holds everything and hands over to it; nothing is lost, and clients
    see no error. With --force, the record in the register is replaced instead; that needs --register.
    """
    import asyncio

    from metaq.cli.connection import broker_groups

    if force:
        from metaq.cli.forced_switch import force_switch

        asyncio.run(force_switch(name, to, register, cluster, yes=yes, output=output))
        return

    async def ask() -> Switched:
        async with broker_groups(register, namesrv, cluster) as groups:
            return await groups.switch(name, to)

    _print_switched(asyncio.run(ask()), output)


def drain(
    broker: Annotated[
        str,
        typer.Argument(
            help="The broker: its address, or its name and its id, such as broker-a/1.",
            metavar="ADDRESS|NAME/ID",
            show_default=False,
        ),
    ],
    register: RegisterAddress = None,
    namesrv: NameServers = None,
    cluster: ClusterName = None,
    output: Output = Format.table,
) -> None:
    """Take a broker out of service without an error at any client.

    It hands its mastership over if it is master, leaves the in-sync set, relays the requests of clients that
    still come to it, and stops when all of them know the new master.
    """
    import asyncio

    from metaq.cli.connection import broker_groups
    from metaq.cli.output import print_json

    async def ask() -> tuple[str, GroupStatus | None]:
        async with broker_groups(register, namesrv, cluster) as groups:
            return await groups.drain(broker)

    address, group = asyncio.run(ask())
    master = None if group is None else group.master
    if output is Format.json:
        print_json({"broker": address, "master": master})
        return
    typer.echo(f"{address} is drained" + (f"; node {master} is master of {group.name}" if group else ""))
    typer.echo("It relays clients with old routes and stops when they have new ones, after about 35 s.")


def _print_switched(done: Switched, output: Format) -> None:
    from metaq.cli.output import print_json

    if output is Format.json:
        print_json(
            {
                "name": done.name,
                "epoch": done.epoch,
                "from": done.former,
                "to": done.master,
                "took_ms": done.took_ms,
            }
        )
    elif done.former == done.master:
        typer.echo(f"node {done.master} is master of {done.name} already (epoch {done.epoch})")
    else:
        typer.echo(
            f"node {done.master} is master of {done.name} in place of node {done.former} "
            f"(epoch {done.epoch}); the switch took {done.took_ms:,} ms"
        )
