"""The messages of the topic: JSON, described for readers in docs/pipelines.md."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

import msgspec

from metaq.pipelines.binlog_sync.rows import Row

VERSION: Final = 1

_encode = msgspec.json.Encoder().encode

# Said by each change. Kept short of nothing: a change can be understood with its message alone.
INSERT, UPDATE, DELETE, SNAPSHOT = "insert", "update", "delete", "snapshot"


def encode_change(sequence: str, operation: str, row: Mapping[str, object]) -> bytes:
    """One change of one row; bytes in it become base64."""
    return _encode({"seq": sequence, "op": operation, "row": row})


def head(database: str, table: str, schema: int) -> bytes:
    """What a message with changes of a table begins with."""
    told = {"v": VERSION, "kind": "rows", "database": database, "table": table, "schema": schema}
    return _encode(told)[:-1]


def rows_message(head: bytes, committed: int, changes: list[bytes]) -> bytes:
    """`committed` is when the last of them was committed, in seconds."""
    return b'%b,"committed":%d,"changes":[%b]}' % (head, committed, b",".join(changes))


def barrier_message(kind: str, sequence: str, told: Mapping[str, object]) -> bytes:
    """One of those that stand in every queue."""
    return _encode({"v": VERSION, "kind": kind, "seq": sequence, **told})


class QueueChooser:
    """The queue of a row: the same for the same table and primary key, whatever else happens."""

    def __init__(self, database: str, table: str, key: tuple[str, ...], queues: int) -> None:
        self._start = zlib.crc32(f"{database}.{table}.".encode())
        self._key = key
        self._queues = queues

    def __call__(self, row: Row) -> int:
        return zlib.crc32(_encode([row[name] for name in self._key]), self._start) % self._queues
