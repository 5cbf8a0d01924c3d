"""metaq dlq."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.command_table import group_of_commands
from metaq.cli.flags import NameServers, Output
from metaq.cli.invocation import Format

if TYPE_CHECKING:
    from metaq.admin import DeadLetter

app = group_of_commands("List the messages that a group has given up, and send them to it again.")

Group = Annotated[str, typer.Argument(help="Name of the consumer group.", show_default=False)]


@app.command("list")
def list_dead_letters(
    group: Group,
    everything: Annotated[
        bool, typer.Option("--all", help="List also the dead letters that were sent again.")
    ] = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """List the dead letters of a group that were not sent again yet."""
    from metaq.cli.connection import connect
    from metaq.cli.output import print_json_line

    with connect(namesrv) as admin:
        for letter in admin.dead_letters.list(group, resent=everything):
            if output is Format.json:
                print_json_line(_document(letter))
            else:
                print(_line(letter), flush=True)


@app.command()
def resend(
    group: Group,
    message_id: Annotated[
        str | None,
        typer.Option("--id", help="Only the dead letter with this id or offset id.", show_default=False),
    ] = None,
    rate: Annotated[float, typer.Option(help="Messages per second.", min=0.01, max=1_000_000)] = 100,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Send a group its dead letters again: all that were not sent again yet, or a single one.

    No other group gets them. If you interrupt the command, the next call continues from there.
    """
    from metaq.cli.connection import connect
    from metaq.cli.output import print_json

    with connect(namesrv) as admin:
        if message_id is not None:
            admin.dead_letters.resend_one(group, message_id)
            count = 1
        else:
            count = sum(1 for _ in admin.dead_letters.resend(group, rate=rate))
    if output is Format.json:
        print_json({"group": group, "resent": count})
    else:
        typer.echo(f"{count} {'dead letter' if count == 1 else 'dead letters'} of {group} sent again")


def _document(letter: DeadLetter) -> dict[str, object]:
    from metaq.cli.message_views import document

    message = letter.message
    broker = None if message.queue is None else message.queue.broker
    return {
        **document(message),
        "broker": broker,
        "origin_topic": letter.origin_topic,
        "reason": letter.reason,
        "error_type": letter.error_type,
    }


def _line(letter: DeadLetter) -> str:
    from metaq.cli.message_views import line

    why = ": ".join(filter(None, (letter.error_type, letter.reason)))
    return f"{letter.message.offset_id} {letter.origin_topic} {line(letter.message)}{why and f' ({why})'}"
