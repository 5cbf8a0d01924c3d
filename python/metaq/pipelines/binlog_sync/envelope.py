"""The JSON messages of the topic. binlog-sync writes them, binlog-mirror reads them, docs/pipelines.md
describes them for other readers. No other module knows a field's name.

    rows      {"v": 1, "kind": "rows", "database", "table", "schema", "committed",
               "changes": [{"seq", "op", "row", "before"}, …]}
    schema    {"v": 1, "kind": "schema", "seq", "database", "table", "schema", "columns", "key", "queue"}
    snapshot  {"v": 1, "kind": "snapshot", "seq", "database", "table", "state", "begun", "queues", "queue"}
    ddl       {"v": 1, "kind": "ddl", "seq", "database", "action", "tables", "names", "statement", "empties",
               "gone", "queues", "queue"}
    range     {"v": 1, "kind": "range", "seq", "database", "table", "column", "first", "last", "begun",
               "queues", "queue"}
    queues    {"v": 1, "kind": "queues", "seq", "queues", "queue"}

`before` is the whole row before an update or a delete; it is there if topic.row_image is "full".

Messages of the kind `rows` go to the queue of their rows' keys. All others are barriers: each queue gets one.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

import msgspec

from metaq.pipelines.binlog_sync.values.columns import NAME_CHARACTERS_MAX, Definition, is_name
from metaq.pipelines.binlog_sync.values.rows import Row

VERSION: Final = 1

_encode = msgspec.json.Encoder().encode


class Kind:
    """Values of the field `kind`."""

    ROWS: Final = "rows"
    SCHEMA: Final = "schema"
    SNAPSHOT: Final = "snapshot"
    DDL: Final = "ddl"
    RANGE: Final = "range"
    QUEUES: Final = "queues"


class Field:
    """Names of the fields of a `rows` message, which Spark parses by name."""

    VERSION: Final = "v"
    KIND: Final = "kind"
    DATABASE: Final = "database"
    TABLE: Final = "table"
    SCHEMA: Final = "schema"
    COMMITTED: Final = "committed"
    CHANGES: Final = "changes"
    SEQUENCE: Final = "seq"
    OPERATION: Final = "op"
    ROW: Final = "row"
    BEFORE: Final = "before"


SPARK_SCHEMA: Final = (
    f"{Field.VERSION} int, {Field.KIND} string, {Field.DATABASE} string, {Field.TABLE} string,"
    f" {Field.SCHEMA} int, {Field.COMMITTED} bigint, {Field.CHANGES}"
    f" array<struct<{Field.SEQUENCE}: string, {Field.OPERATION}: string, {Field.ROW}: string>>"
)
"""A `rows` message as Spark's `from_json` reads it."""

INSERT, UPDATE, DELETE, SNAPSHOT = "insert", "update", "delete", "snapshot"
"""Values of the field `op`."""


# Changes of rows

_ROWS_MESSAGE: Final = f'%b,"{Field.COMMITTED}":%d,"{Field.CHANGES}":[%b]}}'.encode()


def encode_change(
    sequence: str, operation: str, row: Mapping[str, object], before: Mapping[str, object] | None = None
) -> bytes:
    """Encodes one change of one row; bytes become base64."""
    change: dict[str, object] = {Field.SEQUENCE: sequence, Field.OPERATION: operation, Field.ROW: row}
    if before is not None:
        change[Field.BEFORE] = before
    return _encode(change)


def rows_head(database: str, table: str, schema: int) -> bytes:
    """Encodes the beginning that all `rows` messages of a table and a schema version share."""
    head = {
        Field.VERSION: VERSION,
        Field.KIND: Kind.ROWS,
        Field.DATABASE: database,
        Field.TABLE: table,
        Field.SCHEMA: schema,
    }
    return _encode(head)[:-1]


def rows_message(head: bytes, committed_s: int, changes: list[bytes]) -> bytes:
    """Joins the head of a message, the commit time of its last change and its encoded changes."""
    return _ROWS_MESSAGE % (head, committed_s, b",".join(changes))


class QueueChooser:
    """Chooses the queue of a row by its table and primary key, and by nothing else."""

    def __init__(self, database: str, table: str, key: tuple[str, ...], queues: int) -> None:
        self._start = zlib.crc32(f"{database}.{table}.".encode())
        self._key = key
        self._queues = queues

    def __call__(self, row: Row) -> int:
        return zlib.crc32(_encode([row[name] for name in self._key]), self._start) % self._queues


# Barriers

QUEUES_MAX: Final = 1_000_000
QUEUES_UNKNOWN: Final = QUEUES_MAX
"""Older messages of the kind `ddl` do not say how many queues get them. Such a drop never becomes complete,
so the mirror keeps the rows."""
COLUMN_VALUE_MAX: Final = 2**64 - 1
"""The largest value of an unsigned BIGINT."""

_SEQUENCE: Final = re.compile(r"[0-9a-f-]{1,64}")


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is not a text")
    return value


def _name(document: Mapping[str, Any], name: str) -> str:
    """Returns the name of a table, of its database or of its column."""
    value = _text(document, name)
    if not is_name(value):
        raise ValueError(f"{name} is {value[:NAME_CHARACTERS_MAX]!r}, which no server allows")
    return value


def _number(document: Mapping[str, Any], name: str, lowest: int, highest: int) -> int:
    value = document[name]
    if type(value) is not int:
        raise TypeError(f"{name} is not a whole number")
    if not lowest <= value <= highest:
        raise ValueError(f"{name} is {value}, which is not between {lowest} and {highest}")
    return value


def _sequence(document: Mapping[str, Any], name: str) -> str:
    value = _text(document, name)
    if not _SEQUENCE.fullmatch(value):
        raise ValueError(f"{name} is {value[:64]!r}, which is not a sequence number")
    return value


def _queues(document: Mapping[str, Any]) -> int:
    """Returns the number of queues that get this barrier; checks that its own queue is one of them."""
    queues = _number(document, "queues", 1, QUEUES_MAX)
    _number(document, "queue", 0, queues - 1)
    return queues


@dataclass(frozen=True, slots=True)
class SchemaBarrier:
    """The columns of one schema version of a table."""

    kind: ClassVar[str] = Kind.SCHEMA
    sequence: str
    database: str
    table: str
    schema: int
    definition: Definition

    def fields(self) -> dict[str, object]:
        return {
            "database": self.database,
            "table": self.table,
            "schema": self.schema,
            **self.definition.document(),
        }

    @classmethod
    def decode(cls, document: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError."""
        return cls(
            _sequence(document, "seq"),
            _name(document, "database"),
            _name(document, "table"),
            _number(document, "schema", 0, 2**31 - 1),
            Definition.decode(document),
        )


@dataclass(frozen=True, slots=True)
class SnapshotBarrier:
    """The begin or the end of reading a table as a whole."""

    kind: ClassVar[str] = Kind.SNAPSHOT
    BEGIN: ClassVar[str] = "begin"
    END: ClassVar[str] = "end"
    sequence: str
    database: str
    table: str
    state: str
    begun: str
    """The sequence number at which the snapshot began."""
    queues: int
    """The number of queues that get this barrier."""

    def fields(self) -> dict[str, object]:
        return {
            "database": self.database,
            "table": self.table,
            "state": self.state,
            "begun": self.begun,
            "queues": self.queues,
        }

    @classmethod
    def decode(cls, document: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError."""
        state = _text(document, "state")
        if state not in (cls.BEGIN, cls.END):
            raise ValueError(f"state is {state[:64]!r}")
        return cls(
            _sequence(document, "seq"),
            _name(document, "database"),
            _name(document, "table"),
            state,
            _sequence(document, "begun"),
            _queues(document),
        )


@dataclass(frozen=True, slots=True)
class RangeBarrier:
    """The end of reading a range of keys again: rows of the range with a number below `begun` are gone."""

    kind: ClassVar[str] = Kind.RANGE
    sequence: str
    database: str
    table: str
    column: str
    """The first column of the primary key, which has whole numbers."""
    first: int | None
    last: int | None
    begun: str
    queues: int

    def fields(self) -> dict[str, object]:
        return {
            "database": self.database,
            "table": self.table,
            "column": self.column,
            "first": self.first,
            "last": self.last,
            "begun": self.begun,
            "queues": self.queues,
        }

    @classmethod
    def decode(cls, document: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError."""
        first, last = (
            None if document[end] is None else _number(document, end, -(2**63), COLUMN_VALUE_MAX)
            for end in ("first", "last")
        )
        return cls(
            _sequence(document, "seq"),
            _name(document, "database"),
            _name(document, "table"),
            _name(document, "column"),
            first,
            last,
            _sequence(document, "begun"),
            _queues(document),
        )


def _names(pairs: Iterable[Any]) -> tuple[tuple[str, str], ...]:
    names = tuple((database, table) for database, table in pairs)
    if not all(isinstance(part, str) for name in names for part in name):
        raise TypeError("names are not texts")
    return names


@dataclass(frozen=True, slots=True)
class DdlBarrier:
    """A statement that may change definitions or remove rows."""

    kind: ClassVar[str] = Kind.DDL
    sequence: str
    database: str
    action: str
    names: tuple[tuple[str, str], ...]
    """Database and table of each table that the statement names."""
    statement: str
    queues: int
    empties: bool | None = None
    """The tables, or those of the database, lose all rows. None in older messages."""
    gone: tuple[tuple[str, str], ...] = ()
    """The names that no table has after the statement. Older messages do not tell them."""

    def fields(self) -> dict[str, object]:
        return {
            "database": self.database,
            "action": self.action,
            "tables": [".".join(name) for name in self.names],
            "names": self.names,
            "statement": self.statement,
            "empties": self.empties,
            "gone": self.gone,
            "queues": self.queues,
        }

    @classmethod
    def decode(cls, document: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError."""
        # Older messages have only `tables`, whose dots are ambiguous.
        pairs = document.get("names") or [name.split(".", 1) for name in document["tables"]]
        empties = document.get("empties")
        if empties is not None and not isinstance(empties, bool):
            raise TypeError("empties is neither true nor false")
        return cls(
            _sequence(document, "seq"),
            _text(document, "database"),
            _text(document, "action"),
            _names(pairs),
            _text(document, "statement"),
            _queues(document) if "queues" in document else QUEUES_UNKNOWN,
            empties,
            _names(document.get("gone", ())),
        )


@dataclass(frozen=True, slots=True)
class QueuesBarrier:
    """The topic has more queues than before, so rows may change their queue from here on."""

    kind: ClassVar[str] = Kind.QUEUES
    sequence: str
    queues: int

    def fields(self) -> dict[str, object]:
        return {"queues": self.queues}

    @classmethod
    def decode(cls, document: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError."""
        return cls(_sequence(document, "seq"), _queues(document))


Barrier = SchemaBarrier | SnapshotBarrier | RangeBarrier | DdlBarrier | QueuesBarrier


def barrier_message(barrier: Barrier, queue: int) -> bytes:
    """Encodes the copy of a barrier for one queue."""
    return _encode(
        {
            Field.VERSION: VERSION,
            Field.KIND: barrier.kind,
            Field.SEQUENCE: barrier.sequence,
            **barrier.fields(),
            "queue": queue,
        }
    )


_DECODERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Barrier]]] = {
    Kind.SCHEMA: SchemaBarrier.decode,
    Kind.SNAPSHOT: SnapshotBarrier.decode,
    Kind.RANGE: RangeBarrier.decode,
    Kind.DDL: DdlBarrier.decode,
    Kind.QUEUES: QueuesBarrier.decode,
}


def decode_barrier(document: Mapping[str, Any]) -> tuple[Barrier, int]:
    """Decodes a barrier and the queue of this copy.

    Raises KeyError, TypeError or ValueError if a field is missing or wrong, or if the kind is unknown.
    """
    decode = _DECODERS.get(_text(document, Field.KIND))
    if decode is None:
        raise ValueError(f"{document[Field.KIND][:64]!r} is not a kind of message")
    return decode(document), _number(document, "queue", 0, QUEUES_MAX - 1)


def parse_barrier(text: str) -> tuple[Barrier, int]:
    """Decodes the text of a barrier; raises KeyError, TypeError or ValueError, as `decode_barrier` does."""
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if not isinstance(document, dict):
        raise TypeError("the message is not an object")
    if document.get(Field.VERSION) != VERSION:
        raise ValueError(f"{Field.VERSION} is not {VERSION}")
    return decode_barrier(document)
