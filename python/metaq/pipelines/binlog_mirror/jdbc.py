"""Mirrors in another database: tables as the source's tables are, beside what it takes to keep them so.

A schema of its own, `metaq_mirror`, holds for each table its notes and the batch that was applied last
(`tables`), and the numbers of rows that are deleted (`tombstones`), so that the tables themselves have rows
that are there and nothing else. A batch goes into a table of its own first, which Spark's tasks fill at
once; one transaction then takes from there what is newer than what the mirror has, and notes the batch.
However a run ends, that transaction has happened or it has not.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from metaq.pipelines.binlog_mirror.columns import DELETED, KEY, SEQUENCE, Evolution, wider
from metaq.pipelines.binlog_mirror.connection import Connection, JdbcConfig, driver_errors, transaction
from metaq.pipelines.binlog_mirror.databases import named
from metaq.pipelines.binlog_mirror.decode import Value, quoted, text_value, typed_value
from metaq.pipelines.binlog_mirror.errors import MirrorError
from metaq.pipelines.binlog_mirror.notes import Notes, TableName

SCHEMA: Final = "metaq_mirror"
ID: Final = "metaq_id"
"""A hash of the key, as keys may be too long for an index."""
STAGE_ROWS: Final = 5_000
"""So many rows go to the database at a time."""
EMPTY: Final = "''"
_TABLES, _TOMBSTONES = f'"{SCHEMA}"."tables"', f'"{SCHEMA}"."tombstones"'


class JdbcTarget:
    """Tables of the source's names; its databases are databases, or schemas where a database has such."""

    def __init__(self, spark: SparkSession, config: JdbcConfig) -> None:
        self.spark = spark
        self.config = config
        self._is_ready = False
        self._stage: str | None = None

    def transaction(self) -> AbstractContextManager[Connection]:
        return transaction(self.spark, self.config)

    def stage(self, app: str) -> str:
        """A name that nobody else uses, not even a run of the same query that is thought to be dead. What
        such runs have left goes, so that one that lives ends with an error."""
        if self._stage is None:
            own = f"stage_{_hash(app)[:16]}_"
            self._stage = own + uuid.uuid4().hex[:16]
            with self.transaction() as connection:
                for (left,) in connection.query(
                    "SELECT table_name FROM information_schema.tables WHERE table_schema = ?", SCHEMA
                ):
                    if str(left).startswith(own):
                        connection.execute(f'DROP TABLE IF EXISTS "{SCHEMA}"."{left}"')
        return self._stage

    def tables(self) -> list[TableName]:
        with self.transaction() as connection:
            if not _is_there(connection, (SCHEMA, "tables")):
                return []
            found = connection.query(f'SELECT "database_name", "table_name" FROM {_TABLES} ORDER BY 1, 2')
        return [(str(database), str(table)) for database, table in found]

    def table_names(self, database: str) -> list[str]:
        return [name for there, name in self.tables() if there == database]

    def open(self, name: TableName) -> JdbcMirror | None:
        with self.transaction() as connection:
            if not self._is_ready and not _is_there(connection, (SCHEMA, "tables")):
                return None
            found = connection.query(
                f'SELECT "notes", "columns" FROM {_TABLES} WHERE "id" = ?', _table_id(name)
            )
        if not found:
            return None
        notes, columns = map(str, found[0])
        return JdbcMirror(self, name, Notes.decode(notes), json.loads(columns))

    def create(self, name: TableName, notes: Notes, columns: Mapping[str, str]) -> JdbcMirror:
        database = self.config.database
        for part in (*name, *columns):
            database.require_name(part)
        _require_free(columns)
        self._prepare()
        with self.transaction() as connection:
            if _is_there(connection, name) and SEQUENCE not in _columns(connection, name):
                raise MirrorError(
                    f"{database.name} has a table {'.'.join(name)} already, which is no mirror",
                    hint="rename it, or mirror into another server",
                )
            connection.execute(database.make_schema(name[0]))
            own, short = database.own_columns, database.identity.format(64)
            lines = [
                f"{named(ID)} {short} NOT NULL {own.format(EMPTY)} PRIMARY KEY",
                f"{named(KEY)} {database.type_of('string')} {own.format('NULL')}",
                f"{named(SEQUENCE)} {short} NOT NULL {own.format(EMPTY)}",
                *(f"{named(column)} {database.type_of(kind)} NULL" for column, kind in columns.items()),
            ]
            connection.execute(f"CREATE TABLE IF NOT EXISTS {_full(name)} ({', '.join(lines)})")
            connection.execute(
                f"INSERT INTO {_TABLES}"
                ' ("id", "database_name", "table_name", "floor", "notes", "columns", "app", "batch")'
                " VALUES (?, ?, ?, ?, ?, ?, '', -1)",
                *(_table_id(name), *name, notes.floor, notes.encode(), json.dumps(dict(columns))),
            )
        return JdbcMirror(self, name, notes, dict(columns))

    def _prepare(self) -> None:
        if self._is_ready:
            return
        database = self.config.database
        text, short = database.type_of("string"), database.identity.format(64)
        with self.transaction() as connection:
            connection.execute(database.make_schema(SCHEMA))
            connection.execute(
                f'CREATE TABLE IF NOT EXISTS {_TABLES} ("id" {short} NOT NULL PRIMARY KEY,'
                f' "database_name" {text}, "table_name" {text}, "floor" {short} NOT NULL,'
                f' "notes" {text}, "columns" {text}, "app" {short} NOT NULL, "batch" bigint NOT NULL)'
            )
            connection.execute(
                f'CREATE TABLE IF NOT EXISTS {_TOMBSTONES} ("table_id" {short} NOT NULL,'
                f' "id" {short} NOT NULL, "seq" {short} NOT NULL, PRIMARY KEY ("table_id", "id"))'
            )
        self._is_ready = True


class JdbcMirror:
    """One table."""

    def __init__(self, target: JdbcTarget, name: TableName, notes: Notes, columns: dict[str, str]) -> None:
        self._target = target
        self._config = target.config
        self._name = name
        self._id = _table_id(name)
        self.notes = notes
        self.columns = columns
        self.value: Value = text_value

    def save_notes(self) -> None:
        """What another run has noted meanwhile stays."""
        with self._target.transaction() as connection:
            for (text,) in connection.query(
                f'SELECT "notes" FROM {_TABLES} WHERE "id" = ? FOR UPDATE', self._id
            ):
                self.notes.unite(Notes.decode(str(text)))
            connection.execute(
                f'UPDATE {_TABLES} SET "notes" = ?, "floor" = ? WHERE "id" = ?',
                *(self.notes.encode(), self.notes.floor, self._id),
            )

    def evolve(self, evolution: Evolution) -> None:
        """A run before may have done some of it: MariaDB commits such statements at once."""
        database, table = self._config.database, _full(self._name)
        columns = dict(self.columns)
        with self._target.transaction() as connection:
            there = _columns(connection, self._name)
            _require_free(evolution.added)
            for name, kind in evolution.added.items():
                database.require_name(name)
                columns[name] = kind
                if name not in there:
                    connection.execute(
                        f"ALTER TABLE {table} ADD COLUMN {named(name)} {database.type_of(kind)}"
                    )
            for name in evolution.dropped:
                del columns[name]
                if name in there:
                    connection.execute(f"ALTER TABLE {table} DROP COLUMN {named(name)}")
            for name, kind in evolution.retyped.items():
                # Bytes need not be text, though text is the type that holds both.
                is_wider = wider(columns[name], kind) == kind and columns[name] != "binary"
                change = database.widen if is_wider else database.replace
                connection.execute(change(table, named(name), kind))
                columns[name] = kind
            connection.execute(
                f'UPDATE {_TABLES} SET "columns" = ? WHERE "id" = ?', json.dumps(columns), self._id
            )
        self.columns = columns

    def drop_below_floor(self) -> None:
        floor = self.notes.floor
        if floor:
            with self._target.transaction() as connection:
                connection.execute(f"DELETE FROM {_full(self._name)} WHERE {named(SEQUENCE)} < ?", floor)
                connection.execute(
                    f'DELETE FROM {_TOMBSTONES} WHERE "table_id" = ? AND "seq" < ?', self._id, floor
                )

    def merge(self, changes: DataFrame, app: str, version: int) -> None:
        stage = self._target.stage(app)
        self._fill(stage, changes)
        with self._target.transaction() as connection:
            self._take(connection, f'"{SCHEMA}"."{stage}"', app, version)
        with self._target.transaction() as connection:
            connection.execute(f'DROP TABLE "{SCHEMA}"."{stage}"')

    def _fill(self, stage: str, changes: DataFrame) -> None:
        database = self._config.database
        text, short = database.type_of("string"), database.identity.format(64)
        values = [f"c{number}" for number in range(len(self.columns))]
        lines = [
            # Not unique: a task that is tried again writes its rows again.
            f'"id" {short} NOT NULL',
            f'"key" {text}',
            f'"seq" {short}',
            '"deleted" smallint',
        ]
        lines += [f'"{value}" {text}' for value in values]
        if database.numbered:
            lines.append(database.numbered)
        with self._target.transaction() as connection:
            connection.execute(f'CREATE TABLE "{SCHEMA}"."{stage}" ({", ".join(lines)})')
        columns = [f.col(quoted(name)).alias(value) for name, value in zip(self.columns, values, strict=True)]
        staged = changes.select(
            f.sha2(f.col(KEY), 256).alias("id"),
            f.col(KEY).alias("key"),
            f.col(SEQUENCE).alias("seq"),
            f.col(DELETED).cast("smallint").alias("deleted"),
            *columns,
        )
        writer = staged.write.format("jdbc").mode("append").options(**self._config.options())
        with driver_errors(self._config):
            writer.option("dbtable", f"{SCHEMA}.{stage}").option("batchsize", STAGE_ROWS).save()
        with self._target.transaction() as connection:
            connection.execute(f'CREATE INDEX "{stage}_id" ON "{SCHEMA}"."{stage}" ("id")')

    def _take(self, connection: Connection, stage: str, app: str, version: int) -> None:
        """Who else is at this table waits for the lock of its line."""
        ((floor,),) = connection.query(f'SELECT "floor" FROM {_TABLES} WHERE "id" = ? FOR UPDATE', self._id)
        database, table, own = self._config.database, _full(self._name), self._id
        joined = database.delete_joined
        connection.execute(f'DELETE FROM {stage} WHERE "seq" < ?', str(floor or ""))
        newer = f'{{s}}."{ID}" = {{t}}."id" AND {{s}}."{SEQUENCE}" >= {{t}}."seq"'
        connection.execute(joined(stage, table, newer))
        newer = f'{{s}}."table_id" = \'{own}\' AND {{s}}."id" = {{t}}."id" AND {{s}}."seq" >= {{t}}."seq"'
        connection.execute(joined(stage, _TOMBSTONES, newer))
        connection.execute(joined(table, stage, f'{{s}}."id" = {{t}}."{ID}"'))
        same = f'{{t}}."table_id" = \'{own}\' AND {{s}}."id" = {{t}}."id"'
        connection.execute(joined(_TOMBSTONES, stage, same))
        ((rows, ids),) = connection.query(f'SELECT COUNT(*), COUNT(DISTINCT "id") FROM {stage}')
        select = "SELECT" if rows == ids else "SELECT DISTINCT"
        connection.execute(
            f'INSERT INTO {_TOMBSTONES} ("table_id", "id", "seq")'
            f' {select} \'{own}\', "id", "seq" FROM {stage} WHERE "deleted" = 1'
        )
        names = ", ".join(named(name) for name in (ID, KEY, SEQUENCE, *self.columns))
        values = ", ".join(
            database.read(f'"c{number}"', kind) for number, kind in enumerate(self.columns.values())
        )
        connection.execute(
            f'INSERT INTO {table} ({names}) {select} "id", "key", "seq", {values}'
            f' FROM {stage} WHERE "deleted" = 0'
        )
        connection.execute(
            f'UPDATE {_TABLES} SET "app" = ?, "batch" = ? WHERE "id" = ?', app, version, self._id
        )

    def rows(self) -> DataFrame:
        """As the source has them, beside their key."""
        database = self._config.database
        names = [f"c{number}" for number in range(len(self.columns))]
        told = [
            f'{database.told(named(column), kind)} AS "{name}"'
            for name, (column, kind) in zip(names, self.columns.items(), strict=True)
        ]
        query = f"SELECT {', '.join((named(KEY), *told))} FROM {_full(self._name)}"
        reader = self._target.spark.read.format("jdbc").options(**self._config.options())
        frame = reader.option("query", query).option("fetchsize", STAGE_ROWS).load()
        return frame.select(
            KEY,
            *(
                _typed(frame[name], kind).alias(column)
                for name, (column, kind) in zip(names, self.columns.items(), strict=True)
            ),
        )


def _typed(text: Column, kind: str) -> Column:
    return f.unhex(text) if kind == "binary" else typed_value(text, kind, False, False)


def _require_free(columns: Mapping[str, str]) -> None:
    if ID in (column.lower() for column in columns):
        raise MirrorError(
            f"column {ID} has a name that the mirror needs itself", hint="source.exclude the table"
        )


def _full(name: TableName) -> str:
    return f"{named(name[0])}.{named(name[1])}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _table_id(name: TableName) -> str:
    # Either part may have a dot in it.
    return _hash("\0".join(name))


def _is_there(connection: Connection, name: TableName) -> bool:
    return bool(_columns(connection, name))


def _columns(connection: Connection, name: TableName) -> list[str]:
    found = connection.query(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = ? AND table_name = ?", *name
    )
    return [str(column) for (column,) in found]
