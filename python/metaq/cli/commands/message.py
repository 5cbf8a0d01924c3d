"""metaq message."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.command_table import group_of_commands
from metaq.cli.commands.trace import trace
from metaq.cli.exits import NOT_FOUND
from metaq.cli.invocation import Format
from metaq.cli.printing.message_views import BodyForm
from metaq.cli.reading.completions import complete_group, complete_topic
from metaq.cli.reading.flags import NameServers, Output, Yes, topic_argument
from metaq.cli.reading.questions import confirm
from metaq.errors import CommandError, NoSuchMessage, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metaq.admin import Admin
    from metaq.client.message import Message

app = group_of_commands("Find stored messages, show them and send them again.")
app.command("trace")(trace)

FIND_MAX = 10_000

Id = Annotated[str, typer.Argument(help="Id or offset id of the message.", metavar="ID", show_default=False)]
Topic = Annotated[
    str | None,
    typer.Option(
        "--topic",
        help="Topic of the message; an offset id does not need it.",
        show_default=False,
        autocompletion=complete_topic,
    ),
]
Body = Annotated[BodyForm, typer.Option("--body", help="Form of the body; raw prints the body alone.")]


@app.command()
def get(
    id: Id,
    topic: Topic = None,
    body: Body = BodyForm.text,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Show one message with all its fields, properties and body."""
    from metaq.cli.printing.message_views import document, full_text, print_raw_body
    from metaq.cli.printing.output import note, print_one
    from metaq.cli.reading.connection import connect

    with connect(namesrv) as admin:
        first, *others = _found(admin, id, topic)
    if body is BodyForm.raw:
        print_raw_body(first)
        return
    record = {**document(first), "other_offset_ids": [other.offset_id for other in others]}
    print_one(output, record, full_text(first, body) if output is Format.table else "")
    if others and output is Format.table:
        places = ", ".join(other.offset_id for other in others)
        note(f"the topic has more messages with this id, with the offset ids {places}")


@app.command()
def find(
    topic: Annotated[str, topic_argument()],
    key: Annotated[
        str | None, typer.Option("--key", help="Messages with this key.", show_default=False)
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            "--time",
            help="Messages that were stored from this time on, such as -10m or 2026-01-31T12:00.",
            metavar="FROM",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", help="Messages that were stored before this time.", show_default=False),
    ] = None,
    limit: Annotated[
        int, typer.Option(help="Messages to print; brokers find 64 of one key at most.", min=1, max=FIND_MAX)
    ] = 64,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Find messages by key, by time, or by both. The exit code is 3 if there are none."""
    from datetime import UTC, datetime

    from metaq.cli.reading.connection import connect
    from metaq.cli.reading.message_flags import time_of

    if key is None and time is None:
        raise CommandError("nothing to search for", hint="give --key, or --time FROM and perhaps --to")
    begin = None if time is None else time_of("--time", time)
    end = None if to is None else time_of("--to", to)
    with connect(namesrv) as admin:
        if key is not None:
            found = admin.messages.by_key(topic, key, begin=begin, end=end, limit=limit)
        else:
            assert begin is not None
            found = admin.messages.by_time(topic, begin, end or datetime.now(UTC), limit=limit)
    _print_found(output, topic, found, limit, by_key=key is not None)


@app.command()
def resend(
    id: Id,
    topic: Topic = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            help="Send it to this group alone, through its retry topic.",
            show_default=False,
            autocompletion=complete_group,
        ),
    ] = None,
    yes: Yes = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Send a stored message again: to all groups of its topic, or to one group.

    The copy has the same id, body, tag, keys and properties.
    """
    from metaq.admin.messages.message_copies import first_topic
    from metaq.cli.printing.message_views import line
    from metaq.cli.printing.output import note, print_one
    from metaq.cli.reading.connection import connect

    with connect(namesrv) as admin:
        message = _found(admin, id, topic)[0]
        target = first_topic(message)
        receivers = (
            f"to group {group} alone" if group else f"to topic {target}, so that all its groups get it"
        )
        if not yes:
            note(line(message))
            confirm(f"Send this message again {receivers}?")
        copy = admin.messages.resend(message, group=group)
    queue = copy.queue
    record = {
        "topic": queue.topic,
        "broker": queue.broker,
        "queue_id": queue.id,
        "queue_offset": copy.queue_offset,
        "id": copy.id,
        "offset_id": copy.offset_id,
        "group": group,
    }
    place = f"{queue.topic} {queue.broker} queue {queue.id} offset {copy.queue_offset}"
    print_one(output, record, f"sent again {receivers}: {place} id {copy.id}")


# `trace` of trace.py is registered here: `app.command()(trace)`.


def _found(admin: Admin, id: str, topic: str | None) -> Sequence[Message]:
    """The messages with this id or offset id, the one that was stored first before its copies."""
    if topic is not None:
        try:
            return admin.messages.by_id(topic, id)
        except NoSuchMessage as error:
            with suppress(NoSuchMessage, UsageError):
                return (admin.messages.by_offset_id(id),)
            raise error
    try:
        return (admin.messages.by_offset_id(id),)
    except NoSuchMessage as error:
        error.hint = "if it is not an offset id but the id that the producer got, add --topic"
        raise


def _print_found(output: Format, topic: str, found: Sequence[Message], limit: int, *, by_key: bool) -> None:
    from metaq.admin.messages.stored_messages import LIMIT
    from metaq.cli.printing.formats import moment
    from metaq.cli.printing.message_views import body_line, document
    from metaq.cli.printing.output import Column, note, print_rows

    columns = (
        Column("store_timestamp_ms", "stored", moment),
        Column("place", "queue:offset"),
        Column("id"),
        Column("tag", is_optional=True),
        Column("keys", is_optional=True),
        Column("start", "body", is_optional=True),
    )
    rows = [document(message) for message in found]
    if output is Format.table:
        for row, message in zip(rows, found, strict=True):
            text = body_line(message)
            row["place"] = f"{row['broker']}:{row['queue_id']}:{row['queue_offset']}"
            row["start"] = text if len(text) <= 40 else f"{text[:39]}…"
    print_rows(output, rows, columns, empty=f"no message of {topic} was found")
    most = min(limit, LIMIT) if by_key else limit
    if len(found) >= most:
        which = "newest" if by_key else "first"
        note(f"these are the {which} {len(found)}; there may be more")
    if not found:
        raise typer.Exit(NOT_FOUND)
