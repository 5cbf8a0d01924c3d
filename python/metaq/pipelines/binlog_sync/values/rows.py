"""Decodes the row images of binlog events into values by column.

    | columns present: bitmap | NULLs among them: bitmap | values one after the other |

mysql-replication finds the event and its table map. Images are decoded here, because the library is slower
and gets zero dates, negative times with decimals, empty sets and trailing zeros wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from metaq.pipelines.binlog_sync.errors import BinlogError, Unsuitable
from metaq.pipelines.binlog_sync.values.columns import Definition, Refinements, definition_of_binlog
from metaq.pipelines.binlog_sync.values.fixed_bytes import refined_reader
from metaq.pipelines.binlog_sync.values.value_readers import Value, ValueReader, reader_of

Row = dict[str, Value]


class Images(NamedTuple):
    """The part of an event that holds rows."""

    data: bytes
    begin: int
    end: int
    bitmaps: tuple[bytes, ...]
    """The columns that are present: one bitmap, or two for an update (before and after)."""


class TableReader:
    """Reads rows of a table that one table map describes; raises Unsuitable, BinlogError."""

    def __init__(self, table_map: Any, refined: Refinements | None = None) -> None:
        self.database: str = table_map.schema
        self.table: str = table_map.table
        self.definition: Definition = definition_of_binlog(table_map, refined or {})
        refined = self.definition.refined
        self._columns: list[tuple[str, ValueReader]] = []
        for column in table_map.columns:
            reader = reader_of(column)
            if reader is None:
                raise Unsuitable(
                    f"column {column.name} has the unknown character set {column.character_set_name}"
                )
            if column.name in refined:
                reader = refined_reader(refined[column.name], reader)
            self._columns.append((column.name, reader))
        self._null_bytes = (len(self._columns) + 7) // 8
        self._all = (1 << len(self._columns)) - 1

    def images(self, images: Images) -> Iterator[Row]:
        """Yields the images of an event in order: one for each row, two for an update; raises BinlogError."""
        for bitmap in images.bitmaps:
            if int.from_bytes(bitmap, "little") & self._all != self._all:
                raise BinlogError(
                    f"the binlog has only some columns of a row of {self.database}.{self.table}",
                    hint="SET GLOBAL binlog_row_image = FULL, and end sessions that have another value",
                )
        image, at, end, _ = images
        if end > len(image):
            raise BinlogError(f"a row event of {self.database}.{self.table} ends too early")
        while at < end:
            try:
                row, at = self._row(image, at)
            except (LookupError, ValueError, struct.error) as error:
                raise BinlogError(
                    f"a row of {self.database}.{self.table} in the binlog cannot be read: {error}"
                ) from error
            if at > end:
                raise BinlogError(f"a row event of {self.database}.{self.table} ends too early")
            yield row

    def _row(self, image: bytes, at: int) -> tuple[Row, int]:
        values = at + self._null_bytes
        nulls = int.from_bytes(image[at:values], "little")
        at = values
        row: Row = {}
        if nulls:
            for number, (name, read) in enumerate(self._columns):
                if nulls >> number & 1:
                    row[name] = None
                else:
                    row[name], at = read(image, at)
        else:
            for name, read in self._columns:
                row[name], at = read(image, at)
        return row, at
