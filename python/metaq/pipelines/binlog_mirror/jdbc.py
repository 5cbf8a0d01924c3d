"""Mirrors in another database.

The schema `metaq_mirror` holds the notes and the last batch of each table (`tables`), and the sequence
numbers of deleted rows (`tombstones`). So the mirrored tables themselves have only existing rows. Spark's
tasks first write a batch to a staging table in parallel. Then one transaction takes the changes that are
newer than the mirror's rows, and records the batch. However a run ends, that transaction has happened or it
has not.
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
from metaq.pipelines.binlog_mirror.decode import ValueConverter, text_value, typed_value
from metaq.pipelines.binlog_mirror.dialects import named
from metaq.pipelines.binlog_mirror.errors import MirrorError
from metaq.pipelines.binlog_mirror.notes import Notes, TableName
from metaq.pipelines.spark_runtime import quoted

SCHEMA: Final = "metaq_mirror"
ID: Final = "metaq_id"
"""A hash of the key, because keys may be too long for an index."""
STAGE_ROWS: Final = 5_000
"""The number of rows in one round trip to the database."""
EMPTY: Final = "''"
_TABLES, _TOMBSTONES = f'"{SCHEMA}"."tables"', f'"{SCHEMA}"."tombstones"'


class JdbcTarget:
    """Tables with the names of the source. Its databases become databases, or schemas in PostgreSQL."""

    def __init__(self, spark: SparkSession, config: JdbcConfig) -> None:
        self.spark = spark
        self.config = config
        self._is_ready = False
        self._stage: str | None = None

    def transaction(self) -> AbstractContextManager[Connection]:
        return transaction(self.spark, self.config)

    def stage(self, query_id: str) -> str:
        """Returns the name of a staging table that only this run uses.

        Staging tables that other runs of the same query have left are dropped. So a run that is thought to be
        dead and is not ends with an error.
        """
        if self._stage is None:
            own = f"stage_{_hash(query_id)[:16]}_"
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
        dialect = self.config.dialect
        for part in (*name, *columns):
            dialect.require_name(part)
        _require_free(columns)
        self._prepare()
        with self.transaction() as connection:
            if _is_there(connection, name) and SEQUENCE not in _columns(connection, name):
                raise MirrorError(
                    f"{dialect.name} already has a table {'.'.join(name)}, which is not a mirror",
                    hint="rename it, or use another server for the mirror",
                )
            connection.execute(dialect.make_schema(name[0]))
            own, short = dialect.own_columns, dialect.identity.format(64)
            lines = [
                f"{named(ID)} {short} NOT NULL {own.format(EMPTY)} PRIMARY KEY",
                f"{named(KEY)} {dialect.type_of('string')} {own.format('NULL')}",
                f"{named(SEQUENCE)} {short} NOT NULL {own.format(EMPTY)}",
                *(f"{named(column)} {dialect.type_of(kind)} NULL" for column, kind in columns.items()),
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
        dialect = self.config.dialect
        text, short = dialect.type_of("string"), dialect.identity.format(64)
        with self.transaction() as connection:
            connection.execute(dialect.make_schema(SCHEMA))
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
    """One mirrored table."""

    def __init__(self, target: JdbcTarget, name: TableName, notes: Notes, columns: dict[str, str]) -> None:
        self._target = target
        self._config = target.config
        self._name = name
        self._id = _table_id(name)
        self.notes = notes
        self.columns = columns
        self.convert: ValueConverter = text_value

    def save_notes(self) -> None:
        """Saves the notes, and keeps those that another run has saved meanwhile."""
        with self._target.transaction() as connection:
            for (text,) in connection.query(
                f'SELECT "notes" FROM {_TABLES} WHERE "id" = ? FOR UPDATE', self._id
            ):
                self.notes.merge(Notes.decode(str(text)))
            connection.execute(
                f'UPDATE {_TABLES} SET "notes" = ?, "floor" = ? WHERE "id" = ?',
                *(self.notes.encode(), self.notes.floor, self._id),
            )

    def evolve(self, evolution: Evolution) -> None:
        """Changes the columns. A previous run may have done it in part: MariaDB commits DDL at once."""
        dialect, table = self._config.dialect, _full(self._name)
        columns = dict(self.columns)
        with self._target.transaction() as connection:
            there = _columns(connection, self._name)
            _require_free(evolution.added)
            for name, kind in evolution.added.items():
                dialect.require_name(name)
                columns[name] = kind
                if name not in there:
                    connection.execute(
                        f"ALTER TABLE {table} ADD COLUMN {named(name)} {dialect.type_of(kind)}"
                    )
            for name in evolution.dropped:
                del columns[name]
                if name in there:
                    connection.execute(f"ALTER TABLE {table} DROP COLUMN {named(name)}")
            for name, kind in evolution.retyped.items():
                # `wider` gives text for bytes, but bytes need not be valid text.
                is_wider = wider(columns[name], kind) == kind and columns[name] != "binary"
                change = dialect.widen if is_wider else dialect.replace
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

    def merge(self, changes: DataFrame, query_id: str, batch_id: int) -> None:
        stage = self._target.stage(query_id)
        self._fill(stage, changes)
        with self._target.transaction() as connection:
            self._apply_stage(connection, f'"{SCHEMA}"."{stage}"', query_id, batch_id)
        with self._target.transaction() as connection:
            connection.execute(f'DROP TABLE "{SCHEMA}"."{stage}"')

    def _fill(self, stage: str, changes: DataFrame) -> None:
        dialect = self._config.dialect
        text, short = dialect.type_of("string"), dialect.identity.format(64)
        values = [f"c{number}" for number in range(len(self.columns))]
        lines = [
            # Not unique: a task that Spark retries writes its rows again.
            f'"id" {short} NOT NULL',
            f'"key" {text}',
            f'"seq" {short}',
            '"deleted" smallint',
        ]
        lines += [f'"{value}" {text}' for value in values]
        if dialect.numbered:
            lines.append(dialect.numbered)
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

    def _apply_stage(self, connection: Connection, stage: str, query_id: str, batch_id: int) -> None:
        """Moves newer changes from the staging table to the mirror, under a lock on the table's record."""
        ((floor,),) = connection.query(f'SELECT "floor" FROM {_TABLES} WHERE "id" = ? FOR UPDATE', self._id)
        dialect, table, own = self._config.dialect, _full(self._name), self._id
        joined = dialect.delete_joined
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
            dialect.read(f'"c{number}"', kind) for number, kind in enumerate(self.columns.values())
        )
        connection.execute(
            f'INSERT INTO {table} ({names}) {select} "id", "key", "seq", {values}'
            f' FROM {stage} WHERE "deleted" = 0'
        )
        connection.execute(
            f'UPDATE {_TABLES} SET "app" = ?, "batch" = ? WHERE "id" = ?', query_id, batch_id, self._id
        )

    def rows(self) -> DataFrame:
        """Returns the rows with the source's columns and their key."""
        dialect = self._config.dialect
        names = [f"c{number}" for number in range(len(self.columns))]
        texts = [
            f'{dialect.text_of(named(column), kind)} AS "{name}"'
            for name, (column, kind) in zip(names, self.columns.items(), strict=True)
        ]
        query = f"SELECT {', '.join((named(KEY), *texts))} FROM {_full(self._name)}"
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
            f"column {ID} has a name that the mirror needs itself", hint="list the table in source.exclude"
        )


def _full(name: TableName) -> str:
    return f"{named(name[0])}.{named(name[1])}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _table_id(name: TableName) -> str:
    # Either part may contain a dot.
    return _hash("\0".join(name))


def _is_there(connection: Connection, name: TableName) -> bool:
    return bool(_columns(connection, name))


def _columns(connection: Connection, name: TableName) -> list[str]:
    found = connection.query(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = ? AND table_name = ?", *name
    )
    return [str(column) for (column,) in found]
