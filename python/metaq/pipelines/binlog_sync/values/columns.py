"""The definition of a table: its columns and primary key, with type names of our own.

The binlog describes a table as it was when a row was changed, `information_schema` as it is now. Both
descriptions give the same definition here, so that rows of a snapshot and rows of the binlog can share a
version.

    int8 int16 int24 int32 int64, each also ` unsigned`    float double decimal(p,s) bit(n) year
    date time(f) datetime(f) timestamp(f)                   text binary(n) bytes json geometry enum set
    uuid inet4 inet6

The numbers have the ranges of MySQL and MariaDB (`is_type`). Whatever reads a definition may rely on that.

The binlog does not tell UUID, INET4 and INET6 from BINARY. So `information_schema` says which columns have
these types (`Refinements`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import msgspec

from metaq.pipelines.binlog_sync.errors import BinlogError, Unsuitable
from metaq.pipelines.binlog_sync.values.charsets import codec_of

NAME_CHARACTERS_MAX: Final = 64
"""The longest name of a database, a table or a column in MySQL and MariaDB."""
_PLAIN: Final = frozenset(
    (
        *(f"int{bits}{sign}" for bits in (8, 16, 24, 32, 64) for sign in ("", " unsigned")),
        *("float", "double", "year", "date", "json", "geometry", "text", "bytes", "enum", "set"),
        *("uuid", "inet4", "inet6"),
    )
)
_SIZED: Final = re.compile(r"(decimal|bit|time|datetime|timestamp|binary)\(([0-9]{1,4})(?:,([0-9]{1,2}))?\)")
_SIZES: Final = {
    "bit": (1, 64),
    "time": (0, 6),
    "datetime": (0, 6),
    "timestamp": (0, 6),
    # The binlog has ten bits for the length.
    "binary": (0, 1023),
}
_DIGITS_MAX, _SCALE_MAX = 65, 38


def is_name(text: str) -> bool:
    """Returns whether a database, a table or a column of the source may have this name."""
    # Servers refuse characters beyond U+FFFF, NUL, and a space at the end.
    return (
        0 < len(text) <= NAME_CHARACTERS_MAX
        and max(text) <= "\uffff"
        and "\0" not in text
        and text[-1] not in "\t\n\v\f\r "
    )


def is_type(text: str) -> bool:
    """Returns whether a text is a type that this module gives to columns."""
    if text in _PLAIN:
        return True
    found = _SIZED.fullmatch(text)
    if found is None:
        return False
    kind, size, scale = found[1], int(found[2]), found[3]
    if kind == "decimal":
        return scale is not None and 1 <= size <= _DIGITS_MAX and int(scale) <= min(size, _SCALE_MAX)
    lowest, highest = _SIZES[kind]
    return scale is None and lowest <= size <= highest


@dataclass(frozen=True, slots=True)
class Column:
    """One column, as messages describe it."""

    name: str
    type: str
    nullable: bool
    values: tuple[str, ...] = ()
    """The labels of an enum or a set, in order."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One table, as messages describe it."""

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    """The columns of the primary key, in key order; all columns if there is none."""
    is_keyless: bool = False
    """The table has no primary key, so the whole row identifies itself."""

    def document(self) -> dict[str, object]:
        """Returns the fields of messages and of the state file."""
        columns: list[dict[str, object]] = []
        for column in self.columns:
            entry: dict[str, object] = {"name": column.name, "type": column.type, "nullable": column.nullable}
            if column.values:
                entry["values"] = list(column.values)
            columns.append(entry)
        document: dict[str, object] = {"columns": columns, "key": list(self.key)}
        if self.is_keyless:
            document["keyless"] = True
        return document

    @property
    def refined(self) -> Refinements:
        """The columns whose types the binlog does not tell."""
        return {column.name: column.type for column in self.columns if column.type in REFINED}

    @classmethod
    def decode(cls, document: Any) -> Definition:
        """Reads the result of `document`; raises KeyError, TypeError or ValueError."""
        try:
            found = msgspec.convert(document, _Document)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from None
        columns = tuple(
            Column(entry.name, entry.type, entry.nullable, entry.values) for entry in found.columns
        )
        names: set[str] = set()
        for column in columns:
            if not is_name(column.name):
                raise ValueError(f"a column has the name {column.name[:NAME_CHARACTERS_MAX]!r}")
            if not is_type(column.type):
                raise ValueError(f"column {column.name} has the unknown type {column.type[:40]!r}")
            if column.name.lower() in names:
                raise ValueError(f"two columns have the name {column.name}")
            names.add(column.name.lower())
        if unknown := set(found.key) - {column.name for column in columns}:
            raise ValueError(f"the key has a column {min(unknown)!r} that the table lacks")
        return cls(columns, found.key, found.keyless)


class _ColumnDocument(msgspec.Struct, frozen=True):
    name: str
    type: str
    nullable: bool
    values: tuple[str, ...] = ()


class _Document(msgspec.Struct, frozen=True):
    """The result of `Definition.document`. No server has tables of more than 4,096 columns."""

    columns: Annotated[tuple[_ColumnDocument, ...], msgspec.Meta(min_length=1, max_length=4096)]
    key: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=4096)]
    keyless: bool = False


def definition(columns: Sequence[Column], key: Sequence[str]) -> Definition:
    """Returns the definition of a table with this primary key, which may be empty."""
    return Definition(tuple(columns), tuple(key or (column.name for column in columns)), not key)


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
REFINED: Final = {"uuid": "binary(16)", "inet6": "binary(16)", "inet4": "binary(4)"}
"""Types of MariaDB that the binlog describes as others."""
Refinements = Mapping[str, str]
"""These types of a table, by the name of the column."""


def column_of_schema(row: dict[str, Any]) -> Column:
    """Reads a row of information_schema.columns; raises Unsuitable."""
    name, kind, full = row["COLUMN_NAME"], row["DATA_TYPE"].lower(), row["COLUMN_TYPE"]
    nullable = row["IS_NULLABLE"] == "YES"
    # Quoted labels may contain the same words, so only the text after them counts.
    unsigned = " unsigned" if " unsigned" in full.rpartition("'")[2].lower() else ""
    if "compressed" in full.lower().rpartition("'")[2]:
        raise Unsuitable(f"column {name} is compressed")
    values: tuple[str, ...] = ()
    if kind in _INTEGERS:
        column_type = _INTEGERS[kind] + unsigned
    elif kind in ("float", "double", "year", "date", "json", *REFINED):
        column_type = kind
    elif kind == "decimal":
        column_type = f"decimal({row['NUMERIC_PRECISION']},{row['NUMERIC_SCALE']})"
    elif kind == "bit":
        column_type = f"bit({row['NUMERIC_PRECISION']})"
    elif kind in ("time", "datetime", "timestamp"):
        column_type = f"{kind}({row['DATETIME_PRECISION'] or 0})"
    elif kind in _TEXTS:
        column_type = "text"
    elif kind == "binary":
        column_type = f"binary({row['CHARACTER_OCTET_LENGTH']})"
    elif kind in _BYTES:
        column_type = "bytes"
    elif kind in _GEOMETRIES:
        column_type = "geometry"
    elif kind in ("enum", "set"):
        column_type = kind
        values = tuple(label.replace("''", "'") for label in _LABEL.findall(full))
    else:
        raise Unsuitable(f"column {name} has the type {kind}, which cannot be read exactly from the binlog")
    if column_type in ("text", "enum", "set") and codec_of(row["CHARACTER_SET_NAME"] or "") is None:
        raise Unsuitable(f"column {name} has the unknown character set {row['CHARACTER_SET_NAME']}")
    return Column(name, column_type, nullable, values)


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


def definition_of_binlog(table_map: Any, refined: Refinements) -> Definition:
    """Reads a TableMapEvent of mysql-replication; raises BinlogError, Unsuitable."""
    where = f"{table_map.schema}.{table_map.table}"
    metadata = table_map.optional_metadata
    if not metadata.column_name_list:
        raise BinlogError(
            f"the binlog does not name the columns of {where}",
            hint="SET GLOBAL binlog_row_metadata = FULL",
        )
    key = metadata.simple_primary_key_list or list(metadata.primary_keys_with_prefix)
    columns = tuple(
        _refined(_column_of_binlog(column, _bit(table_map.null_bitmask, number)), refined)
        for number, column in enumerate(table_map.columns)
    )
    return definition(columns, [columns[number].name for number in key])


def _column_of_binlog(column: Any, nullable: bool) -> Column:
    kind = column.type
    values: tuple[str, ...] = ()
    if kind in _BINLOG_INTEGERS:
        column_type = _BINLOG_INTEGERS[kind] + (" unsigned" if column.unsigned else "")
    elif kind in _BINLOG_NAMES:
        column_type = _BINLOG_NAMES[kind]
        if kind in (ENUM, SET):
            values = _labels(column)
    elif kind in _BINLOG_TIMES:
        column_type = f"{_BINLOG_TIMES[kind]}({column.fsp})"
    elif kind == NEWDECIMAL:
        column_type = f"decimal({column.precision},{column.decimals})"
    elif kind == BIT:
        column_type = f"bit({column.bits})"
    elif kind in (VARCHAR, VAR_STRING, STRING, BLOB):
        if not is_binary(column):
            column_type = "text"
        else:
            column_type = f"binary({column.max_length})" if kind == STRING else "bytes"
    else:
        # These include times and dates from before MySQL 5.6, which ALTER TABLE … FORCE converts.
        raise Unsuitable(f"column {column.name} has the binlog type {kind}, which cannot be read exactly")
    return Column(column.name, column_type, nullable, values)


def _refined(column: Column, refined: Refinements) -> Column:
    kind = refined.get(column.name, "")
    # The table may have had another type when the row was changed.
    return replace(column, type=kind) if REFINED.get(kind) == column.type else column


def is_binary(column: Any) -> bool:
    return bool(column.character_set_name == "binary")


def _labels(column: Any) -> tuple[str, ...]:
    labels: Sequence[str] = column.enum_values[1:] if column.type == ENUM else column.set_values
    # The library replaces labels that it cannot decode by empty ones.
    if list(labels).count("") > 1 or ("" in labels and codec_of(column.character_set_name) != "utf-8"):
        raise Unsuitable(f"the labels of column {column.name} in the binlog are not in UTF-8")
    return tuple(labels)


def _bit(bitmap: bytes, number: int) -> bool:
    return bool(bitmap[number >> 3] >> (number & 7) & 1)
