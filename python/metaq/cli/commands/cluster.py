"""metaq cluster, and metaq broker drain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from metaq.cli.command_table import group_of_commands
from metaq.cli.commands.broker_settings import get_settings, set_settings, unset_settings
from metaq.cli.invocation import Format
from metaq.cli.reading.flags import ClusterName, NameServers, Output, RegisterAddress

if TYPE_CHECKING:
    from metaq.admin.results import Switched
    from metaq.protocol.commands.replication import GroupStatus

app = group_of_commands("Show the state of a cluster, and choose masters.")
settings = group_of_commands("Show and change the settings of running brokers.")
settings.command("get")(get_settings)
settings.command("set")(set_settings)
settings.command("unset")(unset_settings)
app.add_typer(settings, name="config")

WAIT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
"""How long a drained broker may take to write everything and stop."""

Name = Annotated[str, typer.Argument(help="Name of the broker group.", metavar="NAME", show_default=False)]


@app.command()
def status(
    seconds: Annotated[
        float | None,
        typer.Argument(
            help="How long --wait-healthy waits.", metavar="[SECONDS]", min=0, max=86_400, show_default=False
        ),
    ] = None,
    wait_healthy: Annotated[
        bool,
        typer.Option(
            "--wait-healthy", help=f"Wait until the cluster is healthy, for {WAIT_S:g} seconds by default."
        ),
    ] = False,
    register: RegisterAddress = None,
    namesrv: NameServers = None,
    cluster: ClusterName = None,
    output: Output = Format.table,
) -> None:
    """Show whether the cluster is healthy, its brokers, and its broker groups.

    The exit code is 10 if the cluster is not healthy: a server does not answer, a broker has no master or
    cannot store messages, or a replica is not in sync. `metaq doctor` shows more.

    The words for the state of a node in a broker group:

    "in sync" holds every acknowledged message; "catching up" copies what it lacks from the master; "waiting"
    is not in sync and has no master to copy from; "leaving" was asked to stop; "candidate" wants to become
    master; "damaged" has a damaged log and repairs it from the master if it can; "failed" has a disk that
    fails or hangs; "full" has no room on its disk; "gone" does not answer.
    """
    from metaq.cli.exits import UNHEALTHY
    from metaq.cli.printing.health_tables import print_health
    from metaq.cli.work.health_wait import check_health, wait_until_healthy
    from metaq.errors import ConfigError

    if seconds is not None and not wait_healthy:
        raise ConfigError(f"{seconds:g} is not an argument of its own", hint="write --wait-healthy SECONDS")
    if wait_healthy:
        limit_s = WAIT_S if seconds is None else seconds
        health = wait_until_healthy(limit_s, register=register, namesrv=namesrv, cluster=cluster)
    else:
        health = check_health(register=register, namesrv=namesrv, cluster=cluster)
    print_health(health, output)
    if not health.healthy:
        raise typer.Exit(UNHEALTHY)


@app.command()
def connections(
    broker: Annotated[
        str | None,
        typer.Argument(
            help="Name or address of a broker; all brokers if it is left out.",
            metavar="[BROKER]",
            show_default=False,
        ),
    ] = None,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """List the producers and consumers that are connected."""
    from metaq.cli.printing.health_tables import print_clients
    from metaq.cli.printing.output import note
    from metaq.cli.reading.connection import connect, report_failures

    with connect(namesrv, partial=broker is None) as admin:
        found = admin.brokers.clients(broker)
    report_failures(found.failures)
    for text in found.notes:
        note(text)
    print_clients(found.clients, output)


@app.command("support-bundle")
def support_bundle(
    file: Annotated[
        str | None,
        typer.Argument(
            help="File to write (default metaq-support-TIME.tar.gz).",
            metavar="[FILE.tar.gz]",
            show_default=False,
        ),
    ] = None,
    logs: Annotated[
        list[str] | None,
        typer.Option("--log", help="Log file to add; may be repeated.", metavar="FILE", show_default=False),
    ] = None,
    register: RegisterAddress = None,
    namesrv: NameServers = None,
    cluster: ClusterName = None,
    output: Output = Format.table,
) -> None:
    """Write a file with everything that helps to find a fault, without secrets and without messages.

    It has the versions, the configuration, the state and health of the cluster, topics, groups, their
    progress, figures, metrics, and the last lines of logs on this machine.
    """
    from metaq.cli.work.support_bundle import write_bundle

    write_bundle(file, register=register, namesrv=namesrv, cluster=cluster, logs=logs or (), output=output)


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

    from metaq.cli.reading.connection import broker_groups

    if force:
        from metaq.cli.work.forced_switch import force_switch

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
            help="The broker: its address, name and id such as broker-a/1, or the name of a lone one.",
            metavar="ADDRESS|NAME/ID|NAME",
            show_default=False,
        ),
    ],
    wait: Annotated[
        int, typer.Option(help="Seconds that a lone broker waits for its clients.", min=0, max=604_800)
    ] = 35,
    register: RegisterAddress = None,
    namesrv: NameServers = None,
    cluster: ClusterName = None,
    output: Output = Format.table,
) -> None:
    """Take a broker out of service without an error at any client.

    A node of a group hands its mastership over if it is master, leaves the in-sync set, relays the requests
    of clients that still come to it, and stops when all of them know the new master. A lone broker refuses
    messages, so that producers go to other brokers, lets consumers read on, and stops when all clients have
    left or the time is over.
    """
    import asyncio

    from metaq.cli.printing.output import note, print_one
    from metaq.cli.reading.connection import broker_groups
    from metaq.counts import counted

    def tell(clients: int) -> None:
        note(f"{counted(clients, 'client')} still connected")

    async def ask() -> tuple[str, GroupStatus | None, bool]:
        async with broker_groups(register, namesrv, cluster) as groups:
            address, group = await groups.drain(broker, wait_s=wait)
            is_alone = group is None or len(group.nodes) == 1
            if is_alone:
                note(f"{address} takes no messages any more and waits for its clients, at most {wait} s")
            stopped = is_alone and await groups.wait_stopped(address, tell, wait + STOP_TIMEOUT_S)
            return address, None if is_alone else group, stopped

    address, group, stopped = asyncio.run(ask())
    master = None if group is None else group.master
    if group is None:
        end = "is drained and has stopped" if stopped else "is drained, but has not stopped yet"
        text: tuple[str, ...] = (f"{address} {end}",)
    else:
        text = (
            f"{address} is drained" + (f"; node {master} is master of {group.name}" if group else ""),
            "It relays clients with old routes and stops when they have new ones, after about 35 s.",
        )
    print_one(output, {"broker": address, "master": master, "stopped": stopped}, text)


def _print_switched(done: Switched, output: Format) -> None:
    from metaq.cli.printing.output import print_one

    record = {
        "name": done.name,
        "epoch": done.epoch,
        "from": done.former,
        "to": done.master,
        "took_ms": done.took_ms,
    }
    if done.former == done.master:
        text = f"node {done.master} is master of {done.name} already (epoch {done.epoch})"
    else:
        text = (
            f"node {done.master} is master of {done.name} in place of node {done.former} "
            f"(epoch {done.epoch}); the switch took {done.took_ms:,} ms"
        )
    print_one(output, record, text)
