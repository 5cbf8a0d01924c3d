"""metaq topic."""

from __future__ import annotations

from typing import Annotated

import typer

from metaq.cli.command_table import group_of_commands
from metaq.cli.flags import BytesPerSecond, MessagesPerSecond, NameServers, Output
from metaq.cli.invocation import Format

app = group_of_commands("Create, list, show, limit and delete topics.")

Topic = Annotated[str, typer.Argument(help="Name of the topic.", show_default=False)]


@app.command()
def create(
    topic: Topic,
    queues: Annotated[int, typer.Option(help="Queues on each broker.", min=1, max=1024)] = 8,
    permission: Annotated[int, typer.Option(help="4 to read, 2 to write, 6 for both.", min=0, max=7)] = 6,
    order: Annotated[bool, typer.Option("--order", help="Mark the topic as ordered for consumers.")] = False,
    cluster: Annotated[
        str | None, typer.Option(help="Only on the brokers of this cluster.", show_default=False)
    ] = None,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Create a topic on every broker, or change it."""
    from metaq.cli.connection import connect
    from metaq.cli.output import print_json

    with connect(namesrv) as admin:
        settings = admin.topics.create(
            topic, queues=queues, permission=permission, ordered=order, cluster=cluster, change_existing=True
        )
    brokers = [on_broker.broker for on_broker in settings]
    if output is Format.json:
        print_json({"topic": topic, "queues": queues, "permission": permission, "brokers": brokers})
    else:
        typer.echo(f"{topic} has {queues} queues on {', '.join(brokers)}")


@app.command("list")
def list_topics(
    everything: Annotated[
        bool, typer.Option("--all", help="List also the topics that brokers use themselves.")
    ] = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """List the topics of all brokers."""
    from metaq.cli.connection import connect
    from metaq.cli.output import print_json

    with connect(namesrv) as admin:
        topics = [topic.name for topic in admin.topics.list() if everything or topic.kind != "system"]
    if output is Format.json:
        print_json(topics)
    else:
        for name in topics:
            typer.echo(name)


@app.command()
def show(topic: Topic, namesrv: NameServers = None, output: Output = Format.table) -> None:
    """Show the queues of a topic and the messages that each of them holds."""
    from metaq.cli.connection import connect
    from metaq.cli.output import moment, print_json, print_table

    with connect(namesrv) as admin:
        queues = admin.topics.show(topic).queues
    if output is Format.json:
        rows = [
            {
                "broker": state.queue.broker,
                "queue": state.queue.id,
                "min_offset": state.first_offset,
                "max_offset": state.end_offset,
                "messages": state.messages,
                "last_stored_ms": state.last_stored_ms,
            }
            for state in queues
        ]
        print_json({"topic": topic, "queues": rows})
        return
    heads = ("broker", "queue", "min offset", "max offset", "messages", "last stored")
    print_table(
        heads,
        [
            (
                state.queue.broker,
                str(state.queue.id),
                str(state.first_offset),
                str(state.end_offset),
                str(state.messages),
                "–" if state.last_stored_ms is None else moment(state.last_stored_ms),
            )
            for state in queues
        ],
        right=heads[1:5],
    )


@app.command()
def limit(
    topic: Topic,
    messages_per_second: MessagesPerSecond = None,
    bytes_per_second: BytesPerSecond = None,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Limit what each broker accepts for a topic, or show the limits."""
    from metaq.cli.connection import connect
    from metaq.cli.limits import byte_rate, message_rate, print_limits

    messages, size = message_rate(messages_per_second), byte_rate(bytes_per_second)
    with connect(namesrv) as admin:
        limits = admin.topics.limit(topic, messages_per_second=messages, bytes_per_second=size)
    print_limits("topic", topic, limits, output)


@app.command()
def delete(
    topic: Topic,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Delete a topic from every broker, with the offsets of its consumers."""
    from metaq.cli.connection import connect
    from metaq.cli.output import print_json

    if not yes:
        typer.confirm(f"Delete {topic} and all its messages?", abort=True)
    with connect(namesrv) as admin:
        brokers = admin.topics.delete(topic)
    if output is Format.json:
        print_json({"topic": topic, "deleted": True, "brokers": brokers})
    else:
        typer.echo(f"{topic} is deleted from {', '.join(brokers)}")
