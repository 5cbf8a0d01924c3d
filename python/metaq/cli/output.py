"""Results on standard output: tables for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from metaq.errors import CommandError, UsageError

if TYPE_CHECKING:
    from metaq.admin import Position


def print_json(value: object) -> None:
    """Prints one document, on several lines if it is large."""
    encoded = msgspec.json.encode(value)
    print(encoded.decode() if len(encoded) <= 100 else msgspec.json.format(encoded, indent=2).decode())


def print_json_line(value: object) -> None:
    """Prints one of many documents on a line of its own, without delay."""
    print(msgspec.json.encode(value).decode(), flush=True)


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Prints a table; the columns named in `right` hold numbers."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        table.add_column(head, justify="right" if head in right else "left", overflow="fold")
    for row in rows:
        # Topic names and bodies are not markup.
        table.add_row(*(cell.replace("[", "\\[") for cell in row))
    # In a pipe or a file nothing is cut or wrapped.
    console = Console() if sys.stdout.isatty() else Console(width=1000, color_system=None)
    console.print(table)


def moment(timestamp_ms: int) -> str:
    """Returns a time as people read it, in local time."""
    return datetime.fromtimestamp(timestamp_ms / 1000).isoformat(" ", "milliseconds")


def position(flag: str, text: str) -> Position:
    """Reads a position. Raises CommandError, naming the flag."""
    from metaq.admin import parse_position

    try:
        return parse_position(text)
    except UsageError as error:
        raise CommandError(f"{flag}: {error.args[0]}", hint=error.hint) from None
