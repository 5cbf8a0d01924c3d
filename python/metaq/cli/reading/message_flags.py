"""Flags of the commands that read messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from metaq.errors import CommandError, UsageError

if TYPE_CHECKING:
    from metaq.admin import Position
    from metaq.client.session.routes import Queue

Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", help="Only messages with this tag; repeatable.", show_default=False),
]
Sql = Annotated[
    str | None,
    typer.Option(
        "--sql",
        help="Only messages whose properties match this SQL92 expression.",
        metavar="EXPRESSION",
        show_default=False,
    ),
]
Count = Annotated[
    int | None, typer.Option("--count", help="Stop after this many messages.", min=1, show_default=False)
]
TemplateText = Annotated[
    str | None,
    typer.Option(
        "-f",
        "--format",
        help=r"Print each message in this form: %t topic, %T tag, %k keys, %b body, %i id, %q queue, "
        r"%o offset, %s and %S stored time, %h properties, %%, \n, \t.",
        metavar="TEMPLATE",
        show_default=False,
    ),
]


def queues_named(topic: str, names: Sequence[str] | None) -> list[Queue] | None:
    """Reads queues such as broker-a:3. Raises CommandError."""
    from metaq.client.session.routes import Queue
    from metaq.digits import INT_MAX, number_in

    queues = []
    for name in names or ():
        broker, _, digits = name.rpartition(":")
        number = number_in(digits, INT_MAX)
        if not broker or number is None:
            raise CommandError(f'--queue: "{name}" is not a queue', hint="write it as broker-a:3")
        queues.append(Queue(topic, broker, number))
    return queues or None


def position(flag: str, text: str) -> Position:
    """Reads a position. Raises CommandError, naming the flag."""
    from metaq.admin import parse_position

    try:
        return parse_position(text)
    except UsageError as error:
        raise CommandError(f"{flag}: {error.args[0]}", hint=error.hint) from None


def time_of(flag: str, text: str) -> datetime:
    """Reads a time such as -10m or 2026-01-31T12:00. Raises CommandError, naming the flag."""
    found = position(flag, text)
    if not isinstance(found, datetime):
        raise CommandError(f'{flag}: "{text}" is not a time', hint="use -10m or 2026-01-31T12:00")
    return found


def duration_of(flag: str, text: str) -> timedelta:
    """Reads a duration such as 500ms, 10s, 5m, 2h, 1d or a number of seconds. Raises CommandError."""
    import re

    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*(ms|s|m|h|d|)", text.strip())
    units = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    try:
        if found is not None:
            return timedelta(seconds=float(found[1]) * units[found[2]])
    except OverflowError:
        pass
    raise CommandError(f'{flag}: "{text}" is not a duration', hint="use 500ms, 10s, 5m, 2h or 1d")
