"""The JSON messages of the topic. binlog-sync writes them, binlog-mirror reads them, docs/pipelines.md
describes them for other readers. No other module knows a field's name.

    rows      {"v": 1, "kind": "rows", "database", "table", "schema", "committed",
               "changes": [{"seq", "op", "row", "before"}, …]}
    schema    {"v": 1, "kind": "schema", "seq", "database", "table", "schema", "columns", "key", "queue"}
    snapshot  {"v": 1, "kind": "snapshot", "seq", "database", "table", "state", "begun", "queues", "queue"}
    ddl       {"v": 1, "kind": "ddl", "seq", "database", "action", "tables", "names", "statement", "queues",
               "queue"}
    range     {"v": 1, "kind": "range", "seq", "database", "table", "column", "first", "last", "begun",
               "queues", "queue"}
    queues    {"v": 1, "kind": "queues", "seq", "queues", "queue"}

`before` is the whole row before an update or a delete; it is there if topic.row_image is "full".

Messages of the kind `rows` go to the queue of their rows' keys. All others are barriers: each queue gets one.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

import msgspec

from metaq.pipelines.binlog_sync.values.columns import Definition
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
            document["seq"],
            document["database"],
            document["table"],
            int(document["schema"]),
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
        return cls(
            document["seq"],
            document["database"],
            document["table"],
            document["state"],
            document["begun"],
            int(document["queues"]),
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
        first, last = (None if document[end] is None else int(document[end]) for end in ("first", "last"))
        if not re.fullmatch(r"[0-9a-f-]+", document["begun"]):
            raise ValueError(f"{document['begun']!r} is not a sequence number")
        return cls(
            document["seq"],
            document["database"],
            document["table"],
            document["column"],
            first,
            last,
            document["begun"],
            int(document["queues"]),
        )


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

    def fields(self) -> dict[str, object]:
        return {
            "database": self.database,
            "action": self.action,
            "tables": [".".join(name) for name in self.names],
            "names": self.names,
            "statement": self.statement,
            "queues": self.queues,
        }

    @classmethod
    def decode(cls, document: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError."""
        # Older messages have only `tables`, whose dots are ambiguous.
        pairs = document.get("names") or [name.split(".", 1) for name in document["tables"]]
        return cls(
            document["seq"],
            document["database"],
            document["action"],
            tuple((database, table) for database, table in pairs),
            document["statement"],
            int(document.get("queues", 0)),
        )


@dataclass(frozen=True, slots=True)
class QueuesBarrier:
    """The topic has more queues than before, so rows may change their queue from here on."""

    kind: ClassVar[str] = Kind.QUEUES
    sequence: str
    queues: int

    def fields(self) -> dict[str, object]:
        return {"queues": self.queues}


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
}


def decode_barrier(document: Mapping[str, Any]) -> Barrier | None:
    """Decodes a barrier, or returns None if a reader need not know it.

    Raises KeyError, TypeError or ValueError if a field is missing or wrong.
    """
    decode = _DECODERS.get(document[Field.KIND])
    return None if decode is None else decode(document)


def queue_of(document: Mapping[str, Any]) -> int:
    """Returns the queue of a barrier's copy; raises KeyError, TypeError or ValueError."""
    return int(document["queue"])
