"""Results on standard output: tables for people, JSON and CSV for programs.

One thing is one JSON object. A list is one JSON array of objects. A command that prints while it works,
such as `tail`, prints one object per line. Keys are the same in JSON and CSV. An unknown value is null, or
an empty field in CSV, and never 0. Fractions have at most six digits after the point. No field of CSV is
JSON. docs/commands.md describes it to users."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final, Self

import msgspec

from metaq.cli.invocation import Format
from metaq.cli.printing.formats import plain, printable, safe_lines

Row = Mapping[str, Any]
DIGITS_MAX: Final = 6
"""Digits after the point of a fraction, in JSON and CSV."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, and its key in JSON and CSV."""

    key: str
    head: str = ""
    show: Callable[[Any], str] = plain
    """Turns a value into the text of the table."""
    right: bool = False
    is_optional: bool = False
    """A table that is wider than the terminal leaves this column out, the last one first."""

    @property
    def title(self) -> str:
        return self.head or self.key.replace("_", " ")

    def text(self, row: Row) -> str:
        """Returns the text of a row in the table. Names and addresses come from others."""
        return printable(self.show(row.get(self.key)))


def print_rows(output: Format, rows: Iterable[Row], columns: Sequence[Column], *, empty: str) -> None:
    """Prints a list. JSON and CSV have every key of the rows; the table has the given columns. `empty` is the
    sentence that people read if there are none."""
    found = list(rows)
    if output is Format.json:
        print_json(found)
    elif output is Format.csv:
        keys = list(found[0]) if found else [column.key for column in columns]
        _print_csv(keys, found)
    elif not found:
        say(empty)
    else:
        _print_fitting(found, columns)


def print_one(output: Format, record: Row, text: str | Iterable[str]) -> None:
    """Prints one thing: the record for programs, the text or lines for people. CSV is one row."""
    if output is Format.json:
        print_json(record)
    elif output is Format.csv:
        _print_csv(list(record), [record])
    else:
        say(text if isinstance(text, str) else "\n".join(text))


class Rows:
    """Prints a list whose rows come one by one: one JSON array, or CSV with its head. Use it with `with`.
    After an error the array has no end, so no program takes a part for the whole."""

    def __init__(
        self, output: Format, keys: Sequence[str], line: Callable[[Any], str], *, empty: str
    ) -> None:
        """`empty` is the sentence that people read if there are no rows."""
        self._output = output
        self._keys = keys
        self._line = line
        self._empty = empty
        self._printed = 0

    def __enter__(self) -> Self:
        if self._output is Format.csv:
            _print_csv(self._keys, [])
        return self

    def print(self, thing: object, record: Callable[[], Row]) -> None:
        """Prints one thing: as a line for people, or else as the record that the function makes of it."""
        if self._output is Format.json:
            before = ",\n" if self._printed else "[\n"
            print(before + msgspec.json.encode(rounded(record())).decode(), end="", flush=True)
        elif self._output is Format.csv:
            _print_csv(self._keys, [record()], head=False)
            sys.stdout.flush()
        else:
            say(self._line(thing))
        self._printed += 1

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is not None:
            return
        if self._output is Format.json:
            print("\n]" if self._printed else "[]", flush=True)
        elif self._output is Format.table and not self._printed:
            say(self._empty)


def print_json(value: object) -> None:
    """Prints one document, on several lines if it is large."""
    encoded = msgspec.json.encode(rounded(value))
    print(encoded.decode() if len(encoded) <= 100 else msgspec.json.format(encoded, indent=2).decode())


def print_json_line(value: object) -> None:
    """Prints one of many documents on a line of its own, without delay."""
    print(msgspec.json.encode(rounded(value)).decode(), flush=True)


def rounded(value: Any) -> Any:
    """Returns the same value without digits that only say how computers store fractions."""
    if isinstance(value, float):
        return round(value, DIGITS_MAX)
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    if isinstance(value, msgspec.Struct):
        return rounded(msgspec.structs.asdict(value))
    if is_dataclass(value) and not isinstance(value, type):
        return rounded({field.name: getattr(value, field.name) for field in fields(value)})
    return value


def say(text: str = "") -> None:
    """Prints lines for people. Brokers, clients and messages cannot move the cursor of the terminal."""
    print(safe_lines(text), flush=True)


def note(text: str) -> None:
    """Prints something that people should know beside the result, to standard error."""
    print(f"metaq: {safe_lines(text)}", file=sys.stderr, flush=True)


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Prints a table of texts; the columns named in `right` hold numbers."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for head in heads:
        table.add_column(head, justify="right" if head in right else "left", overflow="fold")
    for row in rows:
        # Topic names and bodies are not markup.
        table.add_row(*(printable(cell).replace("[", "\\[") for cell in row))
    # In a pipe or a file nothing is cut or wrapped.
    console = Console() if sys.stdout.isatty() else Console(width=1000, color_system=None)
    console.print(table)


def _print_fitting(rows: Sequence[Row], columns: Sequence[Column]) -> None:
    texts = {column.key: [column.text(row) for row in rows] for column in columns}
    shown, left_out = _fit(columns, texts)
    cells = [[texts[column.key][number] for column in shown] for number in range(len(rows))]
    print_table([column.title for column in shown], cells, [column.title for column in shown if column.right])
    if left_out:
        names = ", ".join(column.title for column in left_out)
        note(f"the terminal is too narrow for: {names} (-o csv has everything)")


def _fit(columns: Sequence[Column], texts: Mapping[str, Sequence[str]]) -> tuple[list[Column], list[Column]]:
    """Leaves optional columns out, the last one first, until the table fits the terminal."""
    if not sys.stdout.isatty():
        return list(columns), []
    import shutil

    from rich.cells import cell_len

    # Three blanks are between two columns, and one at each end.
    width = {
        column.key: max(cell_len(column.title), *map(cell_len, texts[column.key])) + 3 for column in columns
    }
    room = shutil.get_terminal_size().columns
    shown = list(columns)
    left_out: list[Column] = []
    while sum(width[column.key] for column in shown) - 1 > room:
        optional = [column for column in shown if column.is_optional]
        if not optional:
            break
        shown.remove(optional[-1])
        left_out.insert(0, optional[-1])
    return shown, left_out


def _print_csv(keys: Sequence[str], rows: Iterable[Row], *, head: bool = True) -> None:
    print(csv_text(keys, rows, head=head), end="")


def csv_text(keys: Sequence[str], rows: Iterable[Row], *, head: bool = True) -> str:
    """Returns rows as lines of CSV."""
    import csv
    from io import StringIO

    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if head:
        writer.writerow(keys)
    for row in rows:
        writer.writerow([_field(row.get(key)) for key in keys])
    return text.getvalue()


def _field(value: object) -> str:
    """Returns a value as the text of a field: a list as `a;b`, an object as `key=value;key=value`, and values
    inside of others by their path, as in `0.topic=orders;0.queue=3;1.topic=orders`. A backslash stands before
    characters of the values that would read as separators."""
    value = rounded(value)
    if isinstance(value, list) and not any(isinstance(one, list | dict) for one in value):
        return ";".join(_escaped(_scalar(one)) for one in value)
    if isinstance(value, list | dict):
        return ";".join(f"{path}={_escaped(_scalar(one))}" for path, one in _paths("", value))
    return _scalar(value)


def _paths(head: str, value: object) -> Iterator[tuple[str, object]]:
    inside: Iterable[tuple[object, object]]
    if isinstance(value, dict):
        inside = value.items()
    elif isinstance(value, list):
        inside = enumerate(value)
    else:
        yield head, value
        return
    for key, one in inside:
        yield from _paths(f"{head}.{_escaped(str(key))}" if head else _escaped(str(key)), one)


def _scalar(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace(";", "\\;").replace("=", "\\=")
