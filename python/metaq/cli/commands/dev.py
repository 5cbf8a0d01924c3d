"""metaq dev."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.command_table import group_of_commands

if TYPE_CHECKING:
    from metaq.dev.cluster import State
    from metaq.dev.plan import Plan

app = group_of_commands("Run a whole cluster on this machine.")


@app.command()
def cluster(
    data: Annotated[
        str,
        typer.Option("--data", help="Directory for everything.", metavar="DIR", show_default=False),
    ],
    groups: Annotated[int, typer.Option("--groups", help="Number of broker groups.", metavar="N")] = 1,
    replicas: Annotated[
        int, typer.Option("--replicas", help="Nodes of each group, with its master.", metavar="N")
    ] = 3,
    nameservers: Annotated[
        int, typer.Option("--nameservers", help="Number of name servers.", metavar="N")
    ] = 2,
    port_base: Annotated[
        int, typer.Option("--port-base", help="First port; 0 takes free ones.", metavar="PORT")
    ] = 0,
    restart_after: Annotated[
        float | None,
        typer.Option(
            "--restart-after",
            help="Start a process that died again after this time; without it, it stays dead.",
            metavar="SECONDS",
            show_default=False,
        ),
    ] = None,
    flush: Annotated[
        str | None,
        typer.Option(
            "--flush",
            help="When brokers write to disk (default sync).",
            metavar="sync|async",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run etcd, name servers and broker groups as separate processes, until Ctrl-C.

    When every group has a master and all nodes are in sync, one line METAQ_READY on standard output names all
    addresses and processes. DIR/cluster.json has the same and is kept up to date; DIR/logs has all logs.
    """
    import asyncio
    from pathlib import Path

    from metaq.dev.plan import Plan, Size, find_etcd
    from metaq.dev.ports import free_base
    from metaq.errors import ConfigError

    size = Size(groups, replicas, nameservers)
    if restart_after is not None and not 0 <= restart_after <= 3600:
        raise ConfigError(f"--restart-after must be from 0 to 3600 seconds, not {restart_after:g}")
    if flush not in (None, "sync", "async"):
        raise ConfigError(f"--flush must be sync or async, not {flush}")
    home = Path(data).expanduser().absolute()
    base = port_base or free_base(size.distances())
    plan = Plan(size, home, base, find_etcd(), flush)
    # The network code is loaded only now: a wrong flag is reported without it.
    from metaq.dev.cluster import DevCluster

    running = DevCluster(plan, restart_after, lambda line: print(line, file=sys.stderr, flush=True))
    asyncio.run(running.run(lambda state: _announce(state, plan)))


def _announce(state: State, plan: Plan) -> None:
    import msgspec

    from metaq.cli.commands.serve import READY

    print("\n".join(_greeting(state, plan)), file=sys.stderr, flush=True)
    print(READY, msgspec.json.encode(state).decode(), flush=True)


def _greeting(state: State, plan: Plan) -> list[str]:
    nameservers = ";".join(state.nameservers)
    group = state.nodes[0].group
    lines = [
        "The cluster is ready",
        f"  name servers  {nameservers}",
        f"  register      {plan.register}",
    ]
    lines += [f"  {node.group}/{node.id}    {node.address}, pid {node.pid}" for node in state.nodes]
    lines += [
        f"  logs          {plan.logs}",
        "Try it from another terminal:",
        f"  metaq cluster status --register {plan.register}",
        f"  metaq send Test hello --namesrv '{nameservers}'",
    ]
    if plan.size.replicas > 1:
        lines.append(f"  metaq cluster switch {group} --to 2 --register {plan.register}")
        lines.append(f"  kill -9 {state.nodes[0].pid}")
    return lines
