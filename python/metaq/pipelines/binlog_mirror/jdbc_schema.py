"""The schema `metaq_mirror` of a target database, in which binlog-mirror keeps what it needs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from metaq.pipelines.binlog_mirror.connection import Connection
from metaq.pipelines.binlog_mirror.dialects import Dialect, named
from metaq.pipelines.binlog_mirror.notes import TableName
from metaq.pipelines.binlog_mirror.refusals import QUARANTINE_COLUMNS

SCHEMA: Final = "metaq_mirror"
ID: Final = "metaq_id"
"""A hash of the key, because keys may be too long for an index."""
TABLES, TOMBSTONES, QUARANTINE, LEFT_OUT = (
    f'"{SCHEMA}"."{name}"' for name in ("tables", "tombstones", "quarantine", "left_out")
)


def prepare(connection: Connection, dialect: Dialect) -> None:
    """Creates the schema and its tables."""
    text, short = dialect.type_of("string"), dialect.identity.format(64)
    connection.execute(dialect.make_schema(SCHEMA))
    connection.execute(
        f'CREATE TABLE IF NOT EXISTS {TABLES} ("id" {short} NOT NULL PRIMARY KEY,'
        f' "database_name" {text}, "table_name" {text}, "floor" {short} NOT NULL,'
        f' "notes" {text}, "columns" {text}, "app" {short} NOT NULL, "batch" bigint NOT NULL)'
    )
    connection.execute(
        f'CREATE TABLE IF NOT EXISTS {TOMBSTONES} ("table_id" {short} NOT NULL,'
        f' "id" {short} NOT NULL, "seq" {short} NOT NULL, PRIMARY KEY ("table_id", "id"))'
    )
    connection.execute(
        f'CREATE TABLE IF NOT EXISTS {LEFT_OUT} ("id" {short} NOT NULL PRIMARY KEY,'
        f' "database_name" {text}, "table_name" {text}, "seq" {short} NOT NULL, "reason" {text})'
    )
    columns = dict.fromkeys(QUARANTINE_COLUMNS, text) | {"seq": f"{short} NOT NULL"}
    lines = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
    connection.execute(
        f'CREATE TABLE IF NOT EXISTS {QUARANTINE} ("table_id" {short} NOT NULL, "id" {short} NOT NULL,'
        f' {lines}, PRIMARY KEY ("table_id", "id"))'
    )


def full_name(name: TableName) -> str:
    return f"{named(name[0])}.{named(name[1])}"


def hashed(*texts: str) -> str:
    # A text may contain any other separator.
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def is_there(connection: Connection, name: TableName) -> bool:
    return bool(columns_of(connection, name))


def columns_of(connection: Connection, name: TableName) -> list[str]:
    found = connection.query(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = ? AND table_name = ?", *name
    )
    return [str(column) for (column,) in found]


class KeyIndex:
    """The index on the columns of the source's primary key. It is not unique: texts that differ in the source
    may be equal by the rules of the target.

    Its name tells which columns it has, so that nothing else needs to be stored.
    """

    def __init__(self, dialect: Dialect, name: TableName, key: Sequence[str], kinds: Sequence[str]) -> None:
        self._dialect = dialect
        self._table = name
        self._prefix = f"metaq_key_{hashed(*name)[:12]}_"
        self._columns = dict(zip(key, kinds, strict=True))
        self.name = self._prefix + hashed(*key, *kinds)[:12]

    def create(self, connection: Connection) -> bool:
        """Creates the index and drops those of other columns; returns whether anything was missing."""
        there = self._there(connection)
        if there == [self.name]:
            return False
        for name in there:
            if name != self.name:
                connection.execute(self._dialect.drop_index(self._table, name))
        if self.name not in there and self._columns:
            parts = self._dialect.index_parts(self._columns)
            connection.execute(f"CREATE INDEX {named(self.name)} ON {full_name(self._table)} ({parts})")
            return True
        return False

    def drop(self, connection: Connection) -> bool:
        """Drops the index, whichever columns it has; returns whether there was one."""
        there = self._there(connection)
        for name in there:
            connection.execute(self._dialect.drop_index(self._table, name))
        return bool(there)

    def _there(self, connection: Connection) -> list[str]:
        found = {str(name) for (name,) in connection.query(self._dialect.indexes, *self._table)}
        return sorted(name for name in found if name.startswith(self._prefix))
