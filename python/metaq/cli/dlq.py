"""metaq dlq."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.flags import Format, NameServers, Output

if TYPE_CHECKING:
    from metaq.cli.cluster import Cluster
    from metaq.cli.dead_letters import DeadLetter

app = typer.Typer(
    help="List the messages that a group has given up, and give them to it again.", no_args_is_help=True
)

Group = Annotated[str, typer.Argument(help="Name of the consumer group.", show_default=False)]


@app.command("list")
def list_dead_letters(
    group: Group,
    everything: Annotated[bool, typer.Option("--all", help="Also those that were re-sent.")] = False,
    namesrv: NameServers = None,
    output: Output = Format.text,
) -> None:
    """List the dead letters of a group that were not re-sent yet."""
    from metaq.cli.cluster import ask
    from metaq.cli.dead_letters import dead_letters
    from metaq.cli.output import print_json_line

    async def print_all(cluster: Cluster) -> None:
        async for letter in dead_letters(cluster, group, again=everything):
            if output is Format.json:
                print_json_line(_document(letter))
            else:
                print(_line(letter), flush=True)

    ask(namesrv, print_all)


@app.command()
def resend(
    group: Group,
    message_id: Annotated[
        str | None, typer.Option("--id", help="Only the one with this message id.", show_default=False)
    ] = None,
    rate: Annotated[float, typer.Option(help="Messages a second.", min=0.01, max=1_000_000)] = 100,
    namesrv: NameServers = None,
    output: Output = Format.text,
) -> None:
    """Give a group its dead letters once more: all that were not re-sent yet, or a single one.

    No other group gets them. Where it is interrupted, the next call goes on from there.
    """
    from metaq.cli.cluster import ask
    from metaq.cli.dead_letters import find, resend_all
    from metaq.cli.dead_letters import resend as resend_one
    from metaq.cli.output import print_json

    async def send(cluster: Cluster) -> int:
        if message_id is not None:
            await resend_one(cluster, group, await find(cluster, group, message_id))
            return 1
        return sum([1 async for _ in resend_all(cluster, group, rate)])

    count = ask(namesrv, send)
    if output is Format.json:
        print_json({"group": group, "resent": count})
    else:
        typer.echo(f"{count} dead letters of {group} re-sent")


def _document(letter: DeadLetter) -> dict[str, object]:
    from metaq.cli.message import document

    return {**document(letter.record), "broker": letter.queue.broker, "origin_topic": letter.origin}


def _line(letter: DeadLetter) -> str:
    from metaq.cli.message import line

    return f"{letter.record.message_id} {letter.origin} {line(letter.record)}"
