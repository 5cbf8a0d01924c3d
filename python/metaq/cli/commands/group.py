"""metaq group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.command_table import group_of_commands
from metaq.cli.invocation import Format
from metaq.cli.reading.flags import (
    BytesPerSecond,
    DryRun,
    MessagesPerSecond,
    NameServers,
    Output,
    Yes,
    group_argument,
    topic_argument,
)
from metaq.cli.reading.questions import confirm
from metaq.errors import AlreadyExists, CommandError, NoSuchGroup

if TYPE_CHECKING:
    from metaq.admin import Admin, GroupName, Position
    from metaq.client.session.routes import Queue

app = group_of_commands("List, show, create, update, reset, clone, limit and delete consumer groups.")

NewGroup = Annotated[str, typer.Argument(help="Name of the group.", metavar="GROUP", show_default=False)]
ExistingGroup = Annotated[str, group_argument()]


@app.command("list")
def list_groups(
    match: Annotated[
        str | None,
        typer.Argument(
            help="Only groups with this text in their name; * and ? match any characters.",
            metavar="[PATTERN]",
            show_default=False,
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="List also the groups of the system.")] = False,
    cluster: Annotated[
        str | None, typer.Option(help="Only the groups of this cluster.", show_default=False)
    ] = None,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """List groups with lag, members and rate, the worst first."""
    from metaq.cli.printing.consumer_tables import LIST_COLUMNS, list_row, worst_first
    from metaq.cli.printing.output import note, print_rows
    from metaq.cli.printing.progress import progress
    from metaq.cli.reading.connection import connect, report_failures
    from metaq.cli.reading.patterns import matcher

    is_named = matcher(match)

    def is_chosen(group: GroupName) -> bool:
        return (everything or group.kind == "normal") and is_named(group.name)

    with connect(namesrv, partial=True) as admin, progress("Groups") as advance:
        found = admin.groups.figures(is_chosen, cluster=cluster, advance=advance)
    empty = f"No group matches {match}." if match else "There are no consumer groups yet."
    print_rows(output, map(list_row, worst_first(found.groups)), LIST_COLUMNS, empty=empty)
    report_failures(found.failures)
    for sentence in found.missing:
        note(sentence)


@app.command()
def show(
    group: ExistingGroup,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="Show also what the threads of each member do.")
    ] = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Show members, subscriptions, progress and limits of a group."""
    from metaq.cli.printing.consumer_tables import print_group
    from metaq.cli.reading.connection import connect, report_failures

    with connect(namesrv, partial=True) as admin:
        shown, running = admin.groups.show(group), admin.groups.running(group, stacks=stacks)
    print_group(output, shown, running)
    report_failures(shown.failures or shown.progress.failures or shown.members.failures)


Retries = Annotated[
    int | None,
    typer.Option(help="Deliveries after failures before a message is a dead letter.", min=0),
]
RetryQueues = Annotated[int | None, typer.Option(help="Queues of its retry topic.", min=1, max=1024)]
Enabled = Annotated[
    bool | None, typer.Option("--enabled/--disabled", help="Whether its consumers get messages.")
]
Broadcast = Annotated[
    bool | None, typer.Option("--broadcast/--no-broadcast", help="Whether it may consume in broadcast mode.")
]
Ordered = Annotated[bool | None, typer.Option("--order/--no-order", help="Whether it consumes in order.")]


@app.command()
def create(
    group: NewGroup,
    retries: Retries = 16,
    retry_queues: RetryQueues = 1,
    enabled: Enabled = True,
    broadcast: Broadcast = True,
    order: Ordered = False,
    attribute: Annotated[
        list[str] | None,
        typer.Option(help="Attribute of the group; repeatable.", metavar="NAME=VALUE", show_default=False),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Only on the brokers of this cluster.", show_default=False)
    ] = None,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Create a consumer group on every broker. A group that exists with other settings is not changed."""
    from metaq.cli.printing.consumer_tables import settings_rows
    from metaq.cli.printing.output import print_one
    from metaq.cli.reading.attributes import given_attributes
    from metaq.cli.reading.connection import connect

    attributes = given_attributes(attribute)
    with connect(namesrv) as admin:
        before = {
            name for known in admin.groups.list().groups if known.name == group for name in known.brokers
        }
        try:
            settings = admin.groups.create(
                group,
                retries_max=16 if retries is None else retries,
                retry_queues=retry_queues or 1,
                enabled=enabled is not False,
                broadcast_allowed=broadcast is not False,
                ordered=bool(order),
                attributes=attributes,
                cluster=cluster,
            )
        except AlreadyExists as error:
            error.hint = f"`metaq group update {group}` changes it, `metaq group show {group}` shows it"
            raise
    brokers = [on_broker.broker for on_broker in settings]
    is_new = any(broker not in before for broker in brokers)
    text = f"{group} {'is created' if is_new else 'exists already'} on {', '.join(brokers)}"
    record = {"group": group, "created": is_new, "brokers": brokers, "settings": settings_rows(settings)}
    print_one(output, record, text)


@app.command()
def update(
    group: ExistingGroup,
    retries: Retries = None,
    retry_queues: RetryQueues = None,
    enabled: Enabled = None,
    broadcast: Broadcast = None,
    order: Ordered = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option(
            help="Attribute to set, or to remove if it has no value; repeatable.",
            metavar="NAME=[VALUE]",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Change settings of a group; the others stay as they are.

    The command asks before it disables a group whose consumers are connected.
    """
    from metaq.cli.printing.consumer_tables import print_settings
    from metaq.cli.reading.attributes import changed_attributes
    from metaq.cli.reading.connection import connect

    attributes = changed_attributes(attribute)
    if all(value is None for value in (retries, retry_queues, enabled, broadcast, order)) and not attributes:
        raise CommandError(
            "there is nothing to change", hint="`metaq group update --help` lists the settings"
        )
    with connect(namesrv) as admin:
        if enabled is False and not yes and (members := admin.groups.members(group).members):
            from metaq.counts import counted

            confirm(f"Stop delivery to {counted(len(members), 'connected member')} of {group}?")
        settings = admin.groups.change(
            group,
            retries_max=retries,
            retry_queues=retry_queues,
            enabled=enabled,
            broadcast_allowed=broadcast,
            ordered=order,
            attributes=attributes,
        )
    print_settings(output, group, settings)


@app.command()
def reset(
    group: ExistingGroup,
    topic: Annotated[str, topic_argument("Topic in which to move the group.")],
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
    dry_run: DryRun = False,
    yes: Yes = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Move a group to another position in a topic.

    The command prints the change of each queue and asks before it makes it. The group may be running: its
    consumers follow with their next pull. Messages between the old position and a later one are skipped;
    messages after an earlier one are delivered again.
    """
    from metaq.cli.printing.group_moves import print_reset
    from metaq.cli.reading.connection import connect
    from metaq.cli.reading.message_flags import position
    from metaq.counts import counted

    target: Position = position("--to", to)
    with connect(namesrv) as admin:
        plan = admin.groups.reset(group, topic, target, queues=_queues(topic, queue), dry_run=True)
        if dry_run or output is Format.table:
            print_reset(plan, output)
        if dry_run:
            return
        where = f"{counted(len(plan.queues), 'queue')} of {topic}"
        if not yes:
            confirm(f"Move {group} in {where}?")
        done = admin.groups.apply(plan)
    if output is Format.table:
        typer.echo(f"{group} is moved in {where}")
    else:
        print_reset(done, output)


def _queues(topic: str, names: Sequence[str] | None) -> list[Queue] | None:
    from metaq.client.session.routes import Queue
    from metaq.digits import INT_MAX, number_in

    if not names:
        return None
    queues = []
    for name in names:
        broker, _, digits = name.rpartition(":")
        number = number_in(digits, INT_MAX)
        if not broker or number is None:
            raise CommandError(f'--queue: "{name}" is not a queue', hint="write it as broker-a:3")
        queues.append(Queue(topic, broker, number))
    return queues


@app.command()
def clone(
    source: Annotated[str, group_argument("Group whose offsets are copied.")],
    target: Annotated[str, group_argument("Group that gets them; it is created if it does not exist.")],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            help="Only the offsets of this topic; repeatable (default: all topics that the group consumes).",
            metavar="TOPIC",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Move a group to where another group is.

    The command prints the change of each queue and asks before it makes it.
    """
    from metaq.cli.printing.group_moves import print_clone
    from metaq.cli.reading.connection import connect
    from metaq.cli.work.clones import topics_to_clone
    from metaq.counts import counted

    with connect(namesrv) as admin:
        topics = topics_to_clone(admin, source, topic)
        plans = [admin.groups.clone(source, target, name, dry_run=True) for name in topics]
        moved = sum(len(plan.queues) for plan in plans)
        if not moved:
            raise CommandError(f"group {source} has committed nothing in {', '.join(topics)}")
        if dry_run or output is Format.table:
            print_clone(source, target, plans, output)
        if dry_run:
            return
        where = f"{counted(moved, 'queue')} of {', '.join(topics)}"
        if not yes:
            confirm(f"Move {target} in {where}?")
        done = [admin.groups.clone(source, target, name) for name in topics]
    if output is Format.table:
        typer.echo(f"{target} is where {source} is, in {where}")
    else:
        print_clone(source, target, done, output)


@app.command()
def limit(
    group: ExistingGroup,
    messages_per_second: MessagesPerSecond = None,
    bytes_per_second: BytesPerSecond = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create the group even if no limit is set.", hidden=True)
    ] = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Limit the rate of a group, or show the limits.

    A limit counts on each broker, for all consumers of the group together. A group that does not exist yet is
    created when you set a limit.
    """
    from metaq.cli.printing.limit_tables import print_limits
    from metaq.cli.printing.output import note
    from metaq.cli.reading.connection import connect
    from metaq.cli.reading.limits import byte_rate, message_rate

    messages, size = message_rate(messages_per_second), byte_rate(bytes_per_second)
    with connect(namesrv) as admin:
        try:
            limits = admin.groups.limit(group, messages_per_second=messages, bytes_per_second=size)
        except NoSuchGroup:
            if not create and messages is None and size is None:
                raise
            admin.groups.create(group)
            note(f"group {group} did not exist and is created")
            limits = admin.groups.limit(group, messages_per_second=messages, bytes_per_second=size)
    print_limits("group", group, limits, output)


@app.command()
def delete(
    group: ExistingGroup,
    keep_offsets: Annotated[
        bool, typer.Option("--keep-offsets", help="Keep its committed offsets for a group of the same name.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Delete it although members are connected.")] = False,
    yes: Yes = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Delete a group and its committed offsets."""
    from metaq.cli.printing.output import print_one
    from metaq.cli.reading.connection import connect

    with connect(namesrv) as admin:
        _check_deletion(admin, group, force=force, keeps_offsets=keep_offsets, yes=yes)
        brokers = admin.groups.delete(group, keep_offsets=keep_offsets)
    record = {"group": group, "deleted": True, "brokers": list(brokers), "offsets_kept": keep_offsets}
    print_one(output, record, f"{group} is deleted from {', '.join(brokers)}")


def _check_deletion(admin: Admin, group: str, *, force: bool, keeps_offsets: bool, yes: bool) -> None:
    """Raises CommandError if members are connected; then says what goes, and asks."""
    from metaq.cli.printing.output import note
    from metaq.counts import counted, some

    shown = admin.groups.show(group)
    members = [member.client_id for member in shown.members.members]
    if members and not force:
        verb = "is" if len(members) == 1 else "are"
        raise CommandError(
            f"{counted(len(members), 'member')} of {group} {verb} connected: {some(members)}",
            hint="stop its consumers first, or add --force",
        )
    topics = sorted({progress.queue.topic for progress in shown.progress.queues})
    if topics and not keeps_offsets:
        waiting = counted(shown.progress.lag, "message")
        note(
            f"this deletes the offsets of {group} in {counted(len(shown.progress.queues), 'queue')} of "
            f"{some(topics)}; it has not consumed {waiting} yet"
        )
    if not yes:
        confirm(f"Delete {group}?")
