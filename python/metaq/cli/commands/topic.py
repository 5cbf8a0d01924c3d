"""metaq topic."""

from __future__ import annotations

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
    topic_argument,
)
from metaq.cli.reading.questions import confirm
from metaq.errors import AlreadyExists, CommandError, NoRoute

if TYPE_CHECKING:
    from metaq.admin import Admin, Topic, TopicName

app = group_of_commands("Create, list, show, update, limit, retain, purge and delete topics.")

NewTopic = Annotated[str, typer.Argument(help="Name of the topic.", metavar="TOPIC", show_default=False)]
ExistingTopic = Annotated[str, topic_argument()]
PERMISSIONS = "4 to read, 2 to write, 6 for both."
QUEUES_MAX = 1024


@app.command()
def create(
    topic: NewTopic,
    queues: Annotated[int, typer.Option(help="Queues on each broker.", min=1, max=QUEUES_MAX)] = 8,
    permission: Annotated[int, typer.Option(help=PERMISSIONS, min=0, max=7)] = 6,
    order: Annotated[bool, typer.Option("--order", help="Mark the topic as ordered for consumers.")] = False,
    attribute: Annotated[
        list[str] | None,
        typer.Option(help="Attribute of the topic; repeatable.", metavar="NAME=VALUE", show_default=False),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Only on the brokers of this cluster.", show_default=False)
    ] = None,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Create a topic on every broker. A topic that exists with other settings is not changed."""
    from metaq.cli.printing.output import print_one
    from metaq.cli.reading.attributes import given_attributes
    from metaq.cli.reading.connection import connect
    from metaq.counts import counted

    attributes = given_attributes(attribute)
    with connect(namesrv) as admin:
        before = _brokers_of(admin, topic)
        try:
            settings = admin.topics.create(
                topic,
                queues=queues,
                permission=permission,
                ordered=order,
                attributes=attributes,
                cluster=cluster,
            )
        except AlreadyExists as error:
            error.hint = f"`metaq topic update {topic}` changes it, `metaq topic show {topic}` shows it"
            raise
    brokers = [on_broker.broker for on_broker in settings]
    created = [broker for broker in brokers if broker not in before]
    if created:
        text = f"{topic} has {counted(queues, 'queue')} on {', '.join(brokers)}"
    else:
        text = f"{topic} exists already, with {counted(queues, 'queue')} on {', '.join(brokers)}"
    record = {"topic": topic, "queue_count": queues, "permission": permission, "brokers": brokers}
    print_one(output, {**record, "created": bool(created)}, text)


def _brokers_of(admin: Admin, topic: str) -> set[str]:
    try:
        return {broker.name for broker in admin.topics.route(topic).brokers}
    except NoRoute:
        return set()


@app.command("list")
def list_topics(
    match: Annotated[
        str | None,
        typer.Argument(
            help="Only topics with this text in their name; * and ? match any characters.",
            metavar="[PATTERN]",
            show_default=False,
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="List also system, retry and dead-letter topics.")
    ] = False,
    cluster: Annotated[
        str | None, typer.Option(help="Only the topics of this cluster.", show_default=False)
    ] = None,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """List topics with their queues, messages and rates."""
    from metaq.cli.printing.output import note, print_rows
    from metaq.cli.printing.progress import progress
    from metaq.cli.printing.topic_tables import list_columns, list_row
    from metaq.cli.reading.connection import connect, report_failures
    from metaq.cli.reading.patterns import matcher

    is_named = matcher(match)

    def is_chosen(topic: TopicName) -> bool:
        return (everything or topic.kind == "normal") and is_named(topic.name)

    with connect(namesrv, partial=True) as admin, progress("Topics") as advance:
        found = admin.topics.figures(is_chosen, cluster=cluster, advance=advance)
    empty = f"No topic matches {match}." if match else "There are no topics yet."
    print_rows(output, map(list_row, found.topics), list_columns(), empty=empty)
    report_failures(found.failures)
    if found.topics:
        for sentence in found.missing:
            note(sentence)


@app.command()
def show(topic: ExistingTopic, namesrv: NameServers = None, output: Output = Format.table) -> None:
    """Show the settings, queues, rates and groups of a topic."""
    from metaq.cli.printing.topic_tables import print_topic
    from metaq.cli.reading.connection import connect, report_failures

    with connect(namesrv, partial=True) as admin:
        shown = admin.topics.show(topic)
        figures = admin.topics.figures_of(topic)
        groups = admin.topics.groups(topic)
    print_topic(output, shown, figures, groups)
    report_failures(shown.failures)


@app.command()
def update(
    topic: ExistingTopic,
    queues: Annotated[
        int | None,
        typer.Option(help="Queues on each broker.", min=1, max=QUEUES_MAX, show_default=False),
    ] = None,
    write_queues: Annotated[
        int | None,
        typer.Option(
            help="Queues that producers use; consumers still read the others.",
            min=0,
            max=QUEUES_MAX,
            show_default=False,
        ),
    ] = None,
    permission: Annotated[
        int | None, typer.Option(help=PERMISSIONS, min=0, max=7, show_default=False)
    ] = None,
    order: Annotated[
        bool | None,
        typer.Option("--order/--no-order", help="Whether the topic is ordered.", show_default=False),
    ] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option(
            help="Attribute to set, or to remove if it has no value; repeatable.",
            metavar="NAME=[VALUE]",
            show_default=False,
        ),
    ] = None,
    messages_per_second: MessagesPerSecond = None,
    bytes_per_second: BytesPerSecond = None,
    yes: Yes = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Change settings of a topic; the others stay as they are.

    Messages in removed queues are no longer delivered. To keep them, lower --write-queues first, and --queues
    when consumers have read the other queues.
    """
    from metaq.cli.printing.topic_tables import print_settings
    from metaq.cli.reading.attributes import changed_attributes
    from metaq.cli.reading.connection import connect
    from metaq.cli.reading.limits import byte_rate, message_rate

    attributes = changed_attributes(attribute)
    messages, size = message_rate(messages_per_second), byte_rate(bytes_per_second)
    settings_given = any(value is not None for value in (queues, write_queues, permission, order))
    limits_given = messages is not None or size is not None
    if not (settings_given or limits_given or attributes):
        raise CommandError(
            "there is nothing to change", hint="`metaq topic update --help` lists the settings"
        )
    with connect(namesrv) as admin:
        shown = admin.topics.show(topic)
        _check_write_queues(shown, queues, write_queues)
        if queues is not None:
            _ask_before_queues_go(shown, queues, yes=yes)
        if limits_given:
            admin.topics.limit(topic, messages_per_second=messages, bytes_per_second=size)
        settings = admin.topics.change(
            topic,
            queues=queues,
            write_queues=write_queues,
            permission=permission,
            ordered=order,
            attributes=attributes,
        )
    print_settings(output, topic, settings)


def _check_write_queues(shown: Topic, queues: int | None, write_queues: int | None) -> None:
    readable = min(settings.read_queues for settings in shown.settings) if queues is None else queues
    if write_queues is not None and write_queues > readable:
        raise CommandError(
            f"--write-queues {write_queues} is more than the {readable} queues that consumers read",
            hint="raise --queues instead",
        )


def _ask_before_queues_go(shown: Topic, queues: int, *, yes: bool) -> None:
    """Warns and asks if queues would be removed."""
    from metaq.cli.printing.output import note
    from metaq.counts import counted

    gone = [state for state in shown.queues if state.queue.id >= queues]
    if not gone:
        return
    messages = sum(state.messages for state in gone)
    if messages:
        holds = "which hold" if len(gone) > 1 else "which holds"
        held = counted(messages, "message")
        loss = f", {holds} {held}: consumers and `metaq tail` would not find them any more"
    else:
        loss = ", without messages"
    note(f"{shown.name} would lose {counted(len(gone), 'queue')}{loss}")
    if not yes:
        confirm(f"Reduce {shown.name} to {counted(queues, 'queue')} on each broker?")


@app.command()
def limit(
    topic: ExistingTopic,
    messages_per_second: MessagesPerSecond = None,
    bytes_per_second: BytesPerSecond = None,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Limit what each broker accepts for a topic, or show the limits."""
    from metaq.cli.printing.limit_tables import print_limits
    from metaq.cli.reading.connection import connect
    from metaq.cli.reading.limits import byte_rate, message_rate

    messages, size = message_rate(messages_per_second), byte_rate(bytes_per_second)
    with connect(namesrv) as admin:
        limits = admin.topics.limit(topic, messages_per_second=messages, bytes_per_second=size)
    print_limits("topic", topic, limits, output)


@app.command()
def retain(
    topic: ExistingTopic,
    age: Annotated[
        str | None,
        typer.Option(
            "--age",
            help="How long messages are kept, such as 36h or 7d; none: as long as the log.",
            metavar="SPAN|none",
            show_default=False,
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            "--size",
            help="How much is kept on each broker, such as 10GB; none: as much as the log has.",
            metavar="SIZE|none",
            show_default=False,
        ),
    ] = None,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Keep the messages of a topic shorter than the log does, or show how long they are kept.

    What is older, or beyond the size, is no longer delivered or counted after some seconds. Disk space
    returns when the retention of the log deletes the files.
    """
    from metaq.cli.printing.limit_tables import print_retentions
    from metaq.cli.reading.connection import connect
    from metaq.cli.reading.limits import byte_size, span_ms

    age_ms, bytes_max = span_ms("--age", age), byte_size("--size", size)
    with connect(namesrv) as admin:
        kept = admin.topics.retain(topic, age_ms=age_ms, size=bytes_max)
    print_retentions(topic, kept, output)


@app.command()
def purge(
    topic: ExistingTopic,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="The first message that stays: latest, -7d, 2026-01-31T12:00 or an offset.",
            metavar="POSITION",
            show_default=False,
        ),
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Take away the messages of a topic before a position. This cannot be undone.

    The command prints what goes in each queue and asks before it does it. Nobody gets or counts the messages
    any more; consumers that are behind go on at the position. Disk space returns when the retention of the
    log deletes the files.
    """
    from metaq.cli.printing.purges import carry_out
    from metaq.cli.reading.connection import connect
    from metaq.cli.reading.message_flags import position

    target = position("--to", to)
    with connect(namesrv) as admin:
        plan = admin.topics.purge(topic, target, dry_run=True)
        carry_out(admin, plan, f"from {topic}", output, asks=not yes, dry_run=dry_run)


@app.command()
def delete(
    topic: ExistingTopic, yes: Yes = False, namesrv: NameServers = None, output: Output = Format.table
) -> None:
    """Delete a topic and the offsets of its groups."""
    from metaq.cli.printing.output import print_one
    from metaq.cli.reading.connection import connect

    with connect(namesrv) as admin:
        if not yes:
            _ask_before_deletion(admin, topic)
        brokers = admin.topics.delete(topic)
    record = {"topic": topic, "deleted": True, "brokers": list(brokers)}
    print_one(output, record, f"{topic} is deleted from {', '.join(brokers)}")


def _ask_before_deletion(admin: Admin, topic: str) -> None:
    from metaq.cli.printing.output import note
    from metaq.counts import counted, some

    shown, groups = admin.topics.show(topic), admin.topics.groups(topic)
    where = ", ".join(settings.broker for settings in shown.settings)
    offsets = f", and the offsets of {counted(len(groups), 'group')}: {some(groups)}" if groups else ""
    note(
        f"this deletes {counted(shown.messages, 'message')} in {counted(len(shown.queues), 'queue')} "
        f"on {where}{offsets}"
    )
    confirm(f"Delete {topic}?")
