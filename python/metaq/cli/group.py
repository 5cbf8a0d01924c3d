"""metaq group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.flags import BytesPerSecond, Format, MessagesPerSecond, NameServers, Output

if TYPE_CHECKING:
    from metaq.cli.backlog import Row as BacklogRow
    from metaq.cli.cluster import Cluster
    from metaq.cli.limits import Row as LimitRow

app = typer.Typer(help="Show and limit consumer groups.", no_args_is_help=True)

Group = Annotated[str, typer.Argument(help="Name of the group.", show_default=False)]


@app.command()
def limit(
    group: Group,
    messages_per_second: MessagesPerSecond = None,
    bytes_per_second: BytesPerSecond = None,
    create: Annotated[bool, typer.Option("--create", help="Make the group where it is missing.")] = False,
    namesrv: NameServers = None,
    output: Output = Format.text,
) -> None:
    """Set how much each broker gives to all consumers of a group together, or show it."""
    from metaq.cli.cluster import ask
    from metaq.cli.limits import GROUP, changes, group_limits, print_limits

    wanted = changes(GROUP, messages_per_second, bytes_per_second)
    rows = ask(namesrv, lambda cluster: group_limits(cluster, group, wanted, create=create))
    print_limits("group", group, rows, output)


@app.command()
def show(group: Group, namesrv: NameServers = None, output: Output = Format.text) -> None:
    """Show the limits of a group on each broker that has it, and how far it is in each queue."""
    from metaq.cli.backlog import group_backlog, lag, print_backlog
    from metaq.cli.cluster import ask
    from metaq.cli.limits import group_limits, print_limits
    from metaq.cli.output import print_json

    async def found(cluster: Cluster) -> tuple[list[LimitRow], list[BacklogRow]]:
        return await group_limits(cluster, group, {}), await group_backlog(cluster, group)

    limits, queues = ask(namesrv, found)
    if output is Format.json:
        print_json({"group": group, "limits": limits, "lag": lag(queues), "queues": queues})
        return
    print_limits("group", group, limits, output)
    print_backlog(queues)
