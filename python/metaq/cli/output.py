"""Results on standard output: tables for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import msgspec


def print_json(value: object) -> None:
    """One document, on several lines where it is large."""
    encoded = msgspec.json.encode(value)
    print(encoded.decode() if len(encoded) <= 100 else msgspec.json.format(encoded, indent=2).decode())


def print_json_line(value: object) -> None:
    """One of many documents, a line each, at once."""
    print(msgspec.json.encode(value).decode(), flush=True)


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Columns named in `right` hold numbers."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        table.add_column(head, justify="right" if head in right else "left", overflow="fold")
    for row in rows:
        # Topic names and bodies are not markup.
        table.add_row(*(cell.replace("[", "\\[") for cell in row))
    # Into a pipe or a file nothing is cut or wrapped.
    console = Console() if sys.stdout.isatty() else Console(width=1000, color_system=None)
    console.print(table)
