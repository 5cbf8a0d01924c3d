"""CSV files that a spreadsheet opens without running anything."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""A cell that begins so is a formula for spreadsheets."""


def safe_cell(value: object) -> str:
    """Returns the text of a cell: empty for None, and with an apostrophe before what would be a formula.
    Negative numbers are numbers."""
    if value is None:
        return ""
    if isinstance(value, int | float):
        return str(value)
    text = str(value)
    # Spreadsheets may skip spaces and line breaks before the sign.
    return f"'{text}" if text.lstrip(" \n").startswith(_FORMULA) or text.startswith(_FORMULA) else text


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """Returns a file with a head. It begins with a mark that makes spreadsheets read UTF-8."""
    head = {column: column for column in columns}
    return "\ufeff" + csv_lines(columns, [head, *rows])


def csv_lines(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """Returns lines without a head, to continue a file."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    for row in rows:
        writer.writerow([safe_cell(row.get(column)) for column in columns])
    return file.getvalue()
