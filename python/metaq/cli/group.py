"""metaq group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.command_table import group_of_commands
from metaq.cli.flags import BytesPerSecond, MessagesPerSecond, NameServers, Output
from metaq.cli.invocation import Format
from metaq.errors import CommandError, NoSuchGroup

if TYPE_CHECKING:
    from metaq.admin import Position, Progress, Reset
    from metaq.client.session.routes import Queue

app = group_of_commands("Show, reset and limit consumer groups.")

Group = Annotated[str, typer.Argument(help="Name of the group.", show_default=False)]


@app.command()
def limit(
    group: Group,
    messages_per_second: MessagesPerSecond = None,
    bytes_per_second: BytesPerSecond = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create the group if it does not exist yet.")
    ] = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Limit what each broker gives to all consumers of a group together, or show the limits."""
    from metaq.cli.connection import connect
    from metaq.cli.limits import byte_rate, message_rate, print_limits

    messages, size = message_rate(messages_per_second), byte_rate(bytes_per_second)
    with connect(namesrv) as admin:
        try:
            limits = admin.groups.limit(group, messages_per_second=messages, bytes_per_second=size)
        except NoSuchGroup as error:
            if not create:
                hint = "start its consumers, or add --create to metaq group limit"
                raise CommandError(error.args[0], hint=hint) from None
            admin.groups.create(group)
            limits = admin.groups.limit(group, messages_per_second=messages, bytes_per_second=size)
    print_limits("group", group, limits, output)


@app.command()
def show(group: Group, namesrv: NameServers = None, output: Output = Format.table) -> None:
    """Show the limits of a group on each broker, and how far it is in each queue."""
    from metaq.cli.connection import connect
    from metaq.cli.limits import print_limits, rows_of
    from metaq.cli.output import print_json

    with connect(namesrv) as admin:
        limits, progress = admin.groups.limits(group), admin.groups.progress(group)
    if output is Format.json:
        queues = [
            {
                "topic": found.queue.topic,
                "broker": found.queue.broker,
                "queue": found.queue.id,
                "committed": found.committed_offset,
                "max_offset": found.end_offset,
                "lag": found.lag,
            }
            for found in progress.queues
        ]
        print_json({"group": group, "limits": rows_of(limits), "lag": progress.lag, "queues": queues})
        return
    print_limits("group", group, limits, output)
    _print_progress(progress)


def _print_progress(progress: Progress) -> None:
    from metaq.cli.output import print_table

    if not progress.queues:
        typer.echo("It has committed nothing.")
        return
    heads = ("topic", "broker", "queue", "committed", "max offset", "lag")
    rows = [
        (
            found.queue.topic,
            found.queue.broker,
            str(found.queue.id),
            str(found.committed_offset),
            str(found.end_offset),
            str(found.lag),
        )
        for found in progress.queues
    ]
    print_table(heads, rows, right=heads[2:])
    typer.echo(f"{progress.lag:,} messages behind")


@app.command()
def reset(
    group: Group,
    topic: Annotated[str, typer.Argument(help="Topic in which to move the group.", show_default=False)],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="earliest, latest, -10m, 2026-01-31T12:00 or an offset.",
            metavar="POSITION",
            show_default=False,
        ),
    ],
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            help="Only this queue, such as broker-a:3; repeatable.",
            metavar="BROKER:ID",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the change and stop.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Move a group to another position in a topic.

    The command prints the change of each queue and asks before it makes it. The group may be running: its
    consumers follow with their next pull. Messages between the old position and a later one are skipped;
    messages after an earlier one are delivered again.
    """
    from metaq.cli.connection import connect
    from metaq.cli.output import position

    target: Position = position("--to", to)
    with connect(namesrv) as admin:
        plan = admin.groups.reset(group, topic, target, queues=_queues(topic, queue), dry_run=True)
        is_silent = output is Format.json
        if dry_run or not is_silent:
            _print_reset(plan, output)
        if dry_run:
            return
        if not yes:
            typer.confirm(f"Move {group} in {len(plan.queues)} queues of {topic}?", abort=True, err=True)
        done = admin.groups.apply(plan)
    if is_silent:
        _print_reset(done, output)
    else:
        typer.echo(f"{group} is moved in {len(done.queues)} queues of {topic}")


def _queues(topic: str, names: Sequence[str] | None) -> list[Queue] | None:
    from metaq.client.session.routes import Queue

    if not names:
        return None
    queues = []
    for name in names:
        broker, _, number = name.rpartition(":")
        if not broker or not (number.isascii() and number.isdecimal()):
            raise CommandError(f'--queue: "{name}" is not a queue', hint="write it as broker-a:3")
        queues.append(Queue(topic, broker, int(number)))
    return queues


def _print_reset(reset: Reset, output: Format) -> None:
    from metaq.cli.output import print_json, print_table

    if output is Format.json:
        queues = [
            {
                "broker": change.queue.broker,
                "queue": change.queue.id,
                "committed": change.committed_offset,
                "new": change.queue_offset,
            }
            for change in reset.queues
        ]
        print_json(
            {"group": reset.group, "topic": reset.topic, "dry_run": reset.is_dry_run, "queues": queues}
        )
        return
    heads = ("broker", "queue", "committed", "new", "change")
    rows = []
    for change in reset.queues:
        before = change.committed_offset
        rows.append(
            (
                change.queue.broker,
                str(change.queue.id),
                "–" if before is None else str(before),
                str(change.queue_offset),
                "–" if before is None else f"{change.queue_offset - before:+,}",
            )
        )
    print_table(heads, rows, right=heads[1:])
