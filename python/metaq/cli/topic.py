"""metaq topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.flags import BytesPerSecond, Format, MessagesPerSecond, NameServers, Output

if TYPE_CHECKING:
    from metaq.cli.cluster import Cluster

app = typer.Typer(help="Create, list, show, limit and delete topics.", no_args_is_help=True)

Topic = Annotated[str, typer.Argument(help="Name of the topic.", show_default=False)]


@app.command()
def create(
    topic: Topic,
    queues: Annotated[int, typer.Option(help="Queues on each broker.", min=1, max=1024)] = 8,
    permission: Annotated[int, typer.Option(help="Bits: 4 read, 2 write.", min=0, max=7)] = 6,
    order: Annotated[bool, typer.Option("--order", help="Mark it as ordered for consumers.")] = False,
    cluster: Annotated[
        str | None, typer.Option(help="Only on the brokers of this cluster.", show_default=False)
    ] = None,
    namesrv: NameServers = None,
    output: Output = Format.text,
) -> None:
    """Create a topic on every broker, or change it."""
    from metaq.cli.cluster import ask
    from metaq.cli.output import print_json

    brokers = ask(
        namesrv,
        lambda found: found.create_topic(
            topic, queues=queues, permission=permission, order=order, cluster=cluster
        ),
    )
    if output is Format.json:
        print_json({"topic": topic, "queues": queues, "permission": permission, "brokers": brokers})
    else:
        typer.echo(f"{topic} has {queues} queues on {', '.join(brokers)}")


@app.command("list")
def list_topics(
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that brokers keep for themselves.")
    ] = False,
    namesrv: NameServers = None,
    output: Output = Format.text,
) -> None:
    """List the topics of all brokers."""
    from metaq.cli.cluster import ask
    from metaq.cli.output import print_json

    async def names(cluster: Cluster) -> list[str]:
        hidden = set() if everything else await cluster.system_topics()
        return [name for name in await cluster.topics() if name not in hidden]

    topics = ask(namesrv, names)
    if output is Format.json:
        print_json(topics)
    else:
        for name in topics:
            typer.echo(name)


@app.command()
def show(topic: Topic, namesrv: NameServers = None, output: Output = Format.text) -> None:
    """Show the queues of a topic and how far each of them is filled."""
    from metaq.cli.cluster import ask
    from metaq.cli.output import print_json, print_table

    rows = ask(namesrv, lambda cluster: _queue_rows(cluster, topic))
    if output is Format.json:
        print_json({"topic": topic, "queues": rows})
        return
    heads = ("broker", "queue", "min offset", "max offset", "messages", "last stored")
    print_table(
        heads,
        [
            (
                str(row["broker"]),
                str(row["queue"]),
                str(row["min_offset"]),
                str(row["max_offset"]),
                str(row["messages"]),
                _time(row["last_stored_ms"]),
            )
            for row in rows
        ],
        right=heads[1:5],
    )


async def _queue_rows(cluster: Cluster, topic: str) -> list[dict[str, str | int]]:
    from metaq.cli.cluster import master_addresses

    rows: list[dict[str, str | int]] = []
    for broker, address in sorted(master_addresses(await cluster.route_required(topic)).items()):
        stats = await cluster.topic_stats(address, topic)
        for queue, figures in sorted(stats.offset_table.items(), key=lambda item: item[0].queue_id):
            rows.append(
                {
                    "broker": broker,
                    "queue": queue.queue_id,
                    "min_offset": figures.min_offset,
                    "max_offset": figures.max_offset,
                    "messages": figures.max_offset - figures.min_offset,
                    "last_stored_ms": figures.last_update_timestamp,
                }
            )
    return rows


def _time(timestamp_ms: str | int) -> str:
    from datetime import datetime

    if not isinstance(timestamp_ms, int) or timestamp_ms <= 0:
        return "–"
    return datetime.fromtimestamp(timestamp_ms / 1000).isoformat(" ", "milliseconds")


@app.command()
def limit(
    topic: Topic,
    messages_per_second: MessagesPerSecond = None,
    bytes_per_second: BytesPerSecond = None,
    namesrv: NameServers = None,
    output: Output = Format.text,
) -> None:
    """Limit what a topic takes per second on each of its brokers, or show its limits."""
    from metaq.cli.cluster import ask
    from metaq.cli.limits import TOPIC, changes, print_limits, topic_limits

    wanted = changes(TOPIC, messages_per_second, bytes_per_second)
    rows = ask(namesrv, lambda cluster: topic_limits(cluster, topic, wanted))
    print_limits("topic", topic, rows, output)


@app.command()
def delete(
    topic: Topic,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    namesrv: NameServers = None,
    output: Output = Format.text,
) -> None:
    """Delete a topic from every broker, with the offsets of its consumers."""
    from metaq.cli.cluster import ask
    from metaq.cli.output import print_json

    if not yes:
        typer.confirm(f"Delete {topic} and all its messages?", abort=True)
    brokers = ask(namesrv, lambda cluster: cluster.delete_topic(topic))
    if output is Format.json:
        print_json({"topic": topic, "deleted": True, "brokers": brokers})
    else:
        typer.echo(f"{topic} is deleted from {', '.join(brokers)}")
