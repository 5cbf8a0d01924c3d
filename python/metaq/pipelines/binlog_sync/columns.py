"""What a table looks like: its columns in a vocabulary of our own, the same from both places that tell of it.

The binlog describes a table as it was when a row was changed; `information_schema` as it is now. Both are
brought to the same description here, so that rows of a snapshot and rows of the binlog can be of the same
version.

    int8 int16 int24 int32 int64, each also ` unsigned`    float double decimal(p,s) bit(n) year
    date time(f) datetime(f) timestamp(f)                   text binary(n) bytes json geometry enum set
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from metaq.pipelines.binlog_sync.charsets import codec_of
from metaq.pipelines.binlog_sync.sequence import BinlogError


@dataclass(frozen=True, slots=True)
class Column:
    """One column as messages tell of it."""

    name: str
    type: str
    nullable: bool
    values: tuple[str, ...] = ()
    """Of an enum or a set, in their order."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One table as messages tell of it."""

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    """The columns of the primary key, in its order."""

    def document(self) -> dict[str, object]:
        columns: list[dict[str, object]] = []
        for column in self.columns:
            told: dict[str, object] = {"name": column.name, "type": column.type, "nullable": column.nullable}
            if column.values:
                told["values"] = list(column.values)
            columns.append(told)
        return {"columns": columns, "key": list(self.key)}

    @classmethod
    def of_document(cls, document: Any) -> Definition:
        """Raises KeyError, TypeError or ValueError on what is none."""
        columns = tuple(
            Column(
                str(told["name"]), str(told["type"]), bool(told["nullable"]), tuple(told.get("values", ()))
            )
            for told in document["columns"]
        )
        return cls(columns, tuple(document["key"]))


class Unsuitable(Exception):
    """A table that cannot be synchronised exactly, and why."""


NO_KEY: Final = "it has no primary key, by which its rows could be told apart"


# From information_schema

_INTEGERS: Final = {
    "tinyint": "int8",
    "smallint": "int16",
    "mediumint": "int24",
    "int": "int32",
    "bigint": "int64",
}
_TEXTS: Final = frozenset(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"))
_BYTES: Final = frozenset(("varbinary", "tinyblob", "blob", "mediumblob", "longblob"))
_GEOMETRIES: Final = frozenset(
    (
        "geometry",
        "point",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geometrycollection",
        "geomcollection",
    )
)
_LABEL: Final = re.compile(r"'((?:[^']|'')*)'")


def column_of_schema(row: dict[str, Any]) -> Column:
    """Of a row of information_schema.columns; raises Unsuitable."""
    name, kind, full = row["COLUMN_NAME"], row["DATA_TYPE"].lower(), row["COLUMN_TYPE"]
    nullable = row["IS_NULLABLE"] == "YES"
    # Only here, where nothing quoted can follow.
    unsigned = " unsigned" if " unsigned" in full.rpartition("'")[2].lower() else ""
    if "compressed" in full.lower().rpartition("'")[2]:
        raise Unsuitable(f"column {name} is compressed")
    values: tuple[str, ...] = ()
    if kind in _INTEGERS:
        told = _INTEGERS[kind] + unsigned
    elif kind in ("float", "double", "year", "date", "json"):
        told = kind
    elif kind == "decimal":
        told = f"decimal({row['NUMERIC_PRECISION']},{row['NUMERIC_SCALE']})"
    elif kind == "bit":
        told = f"bit({row['NUMERIC_PRECISION']})"
    elif kind in ("time", "datetime", "timestamp"):
        told = f"{kind}({row['DATETIME_PRECISION'] or 0})"
    elif kind in _TEXTS:
        told = "text"
    elif kind == "binary":
        told = f"binary({row['CHARACTER_OCTET_LENGTH']})"
    elif kind in _BYTES:
        told = "bytes"
    elif kind in _GEOMETRIES:
        told = "geometry"
    elif kind in ("enum", "set"):
        told = kind
        values = tuple(label.replace("''", "'") for label in _LABEL.findall(full))
    else:
        raise Unsuitable(f"column {name} is of the type {kind}, which cannot be read from the binlog exactly")
    if told in ("text", "enum", "set") and codec_of(row["CHARACTER_SET_NAME"] or "") is None:
        raise Unsuitable(
            f"column {name} has the character set {row['CHARACTER_SET_NAME']}, which is not known"
        )
    return Column(name, told, nullable, values)


# From the binlog

TINY, SHORT, LONG, FLOAT, DOUBLE, LONGLONG, INT24, DATE = 1, 2, 3, 4, 5, 8, 9, 10
YEAR, VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2 = 13, 15, 16, 17, 18, 19
JSON, NEWDECIMAL, ENUM, SET, BLOB, VAR_STRING, STRING, GEOMETRY = 245, 246, 247, 248, 252, 253, 254, 255
_BINLOG_INTEGERS: Final = {TINY: "int8", SHORT: "int16", INT24: "int24", LONG: "int32", LONGLONG: "int64"}
_BINLOG_NAMES: Final = {
    FLOAT: "float",
    DOUBLE: "double",
    YEAR: "year",
    DATE: "date",
    JSON: "json",
    GEOMETRY: "geometry",
    ENUM: "enum",
    SET: "set",
}
_BINLOG_TIMES: Final = {TIME2: "time", DATETIME2: "datetime", TIMESTAMP2: "timestamp"}


def definition_of_binlog(table_map: Any) -> Definition:
    """Of a TableMapEvent of mysql-replication; raises BinlogError, Unsuitable."""
    where = f"{table_map.schema}.{table_map.table}"
    metadata = table_map.optional_metadata
    if not metadata.column_name_list:
        raise BinlogError(
            f"the binlog does not name the columns of {where}",
            hint="SET GLOBAL binlog_row_metadata = FULL",
        )
    key = metadata.simple_primary_key_list or list(metadata.primary_keys_with_prefix)
    if not key:
        raise Unsuitable(NO_KEY)
    columns = tuple(
        _column_of_binlog(column, _bit(table_map.null_bitmask, number))
        for number, column in enumerate(table_map.columns)
    )
    return Definition(columns, tuple(columns[number].name for number in key))


def _column_of_binlog(column: Any, nullable: bool) -> Column:
    kind = column.type
    values: tuple[str, ...] = ()
    if kind in _BINLOG_INTEGERS:
        told = _BINLOG_INTEGERS[kind] + (" unsigned" if column.unsigned else "")
    elif kind in _BINLOG_NAMES:
        told = _BINLOG_NAMES[kind]
        if kind in (ENUM, SET):
            values = _labels(column)
    elif kind in _BINLOG_TIMES:
        told = f"{_BINLOG_TIMES[kind]}({column.fsp})"
    elif kind == NEWDECIMAL:
        told = f"decimal({column.precision},{column.decimals})"
    elif kind == BIT:
        told = f"bit({column.bits})"
    elif kind in (VARCHAR, VAR_STRING, STRING, BLOB):
        if not is_binary(column):
            told = "text"
        else:
            told = f"binary({column.max_length})" if kind == STRING else "bytes"
    else:
        # Times and dates from before MySQL 5.6 are among them; ALTER TABLE … FORCE brings them up to date.
        raise Unsuitable(f"column {column.name} is of the binlog type {kind}, which cannot be read exactly")
    return Column(column.name, told, nullable, values)


def is_binary(column: Any) -> bool:
    return bool(column.character_set_name == "binary")


def _labels(column: Any) -> tuple[str, ...]:
    labels: Sequence[str] = column.enum_values[1:] if column.type == ENUM else column.set_values
    # The library leaves out what it cannot read; several empty ones cannot be meant.
    if list(labels).count("") > 1 or ("" in labels and codec_of(column.character_set_name) != "utf-8"):
        raise Unsuitable(f"the labels of column {column.name} in the binlog are not in UTF-8")
    return tuple(labels)


def _bit(bitmap: bytes, number: int) -> bool:
    return bool(bitmap[number >> 3] >> (number & 7) & 1)
