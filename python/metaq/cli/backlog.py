"""How far a group is in each queue, as commands show it."""

from __future__ import annotations

import typer

from metaq.cli.cluster import Cluster
from metaq.cli.output import print_table
from metaq.protocol.bodies import ConsumeStats
from metaq.protocol.offsets import GetConsumeStats

Row = dict[str, str | int]


async def group_backlog(cluster: Cluster, group: str) -> list[Row]:
    """Of all topics of which it has offsets, on every broker."""
    rows: list[Row] = []
    for broker, address in (await cluster.masters()).items():
        reply = await cluster.ask_broker(address, GetConsumeStats(consumer_group=group))
        for queue, figures in ConsumeStats.decode(reply.check().body).offset_table.items():
            rows.append(
                {
                    "topic": queue.topic,
                    "broker": broker,
                    "queue": queue.queue_id,
                    "committed": figures.consumer_offset,
                    "max_offset": figures.broker_offset,
                    # A topic that was made anew may be shorter than what was committed of the old one.
                    "lag": max(figures.broker_offset - figures.consumer_offset, 0),
                }
            )
    return sorted(rows, key=lambda row: (str(row["topic"]), str(row["broker"]), int(row["queue"])))


def lag(rows: list[Row]) -> int:
    """Of all queues together."""
    return sum(int(row["lag"]) for row in rows)


def print_backlog(rows: list[Row]) -> None:
    if not rows:
        typer.echo("It has committed nothing.")
        return
    heads = ("topic", "broker", "queue", "committed", "max offset", "lag")
    print_table(heads, [[str(value) for value in row.values()] for row in rows], right=heads[2:])
    typer.echo(f"{lag(rows):,} messages behind")
