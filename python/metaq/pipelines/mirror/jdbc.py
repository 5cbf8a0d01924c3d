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

from metaq.pipelines.mirror.columns import DELETED, KEY, SEQUENCE, Evolution
from metaq.pipelines.mirror.connection import Connection, JdbcConfig, transaction
from metaq.pipelines.mirror.databases import named
from metaq.pipelines.mirror.decode import Value, quoted, text_value, typed_value
from metaq.pipelines.mirror.errors import MirrorError
from metaq.pipelines.mirror.notes import Notes, TableName

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
        self._prepare()
        with self.transaction() as connection:
            found = connection.query(
                f'SELECT "notes", "columns" FROM {_TABLES} WHERE "id" = ?', _hash(".".join(name))
            )
        if not found:
            return None
        notes, columns = map(str, found[0])
        return JdbcMirror(self, name, Notes.decode(notes), json.loads(columns))

    def create(self, name: TableName, notes: Notes, columns: Mapping[str, str]) -> JdbcMirror:
        database = self.config.database
        for part in (*name, *columns):
            database.require_name(part)
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
                *(_hash(".".join(name)), *name, notes.floor, notes.encode(), json.dumps(dict(columns))),
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
        self._id = _hash(".".join(name))
        self.notes = notes
        self.columns = columns
        self.value: Value = text_value

    def save_notes(self) -> None:
        with self._target.transaction() as connection:
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
                connection.execute(database.retype(table, named(name), columns[name], kind))
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
            f'"id" {short} NOT NULL PRIMARY KEY',
            f'"key" {text}',
            f'"seq" {short}',
            '"deleted" smallint',
        ]
        lines += [f'"{value}" {text}' for value in values]
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
        writer.option("dbtable", f"{SCHEMA}.{stage}").option("batchsize", STAGE_ROWS).save()

    def _take(self, connection: Connection, stage: str, app: str, version: int) -> None:
        """Who else is at this table waits for the lock of its line."""
        ((floor, last_app, last),) = connection.query(
            f'SELECT "floor", "app", "batch" FROM {_TABLES} WHERE "id" = ? FOR UPDATE', self._id
        )
        if last_app == app and int(str(last)) >= version:
            return
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
        connection.execute(
            f'INSERT INTO {_TOMBSTONES} ("table_id", "id", "seq")'
            f' SELECT \'{own}\', "id", "seq" FROM {stage} WHERE "deleted" = 1'
        )
        names = ", ".join(named(name) for name in (ID, KEY, SEQUENCE, *self.columns))
        values = ", ".join(
            database.read(f'"c{number}"', kind) for number, kind in enumerate(self.columns.values())
        )
        connection.execute(
            f'INSERT INTO {table} ({names}) SELECT "id", "key", "seq", {values}'
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


def _full(name: TableName) -> str:
    return f"{named(name[0])}.{named(name[1])}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _is_there(connection: Connection, name: TableName) -> bool:
    return bool(_columns(connection, name))


def _columns(connection: Connection, name: TableName) -> list[str]:
    found = connection.query(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = ? AND table_name = ?", *name
    )
    return [str(column) for (column,) in found]
