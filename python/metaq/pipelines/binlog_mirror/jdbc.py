"""Mirrors in another database.

The schema `metaq_mirror` holds the notes and the last batch of each table (`tables`), and the sequence
numbers of deleted rows (`tombstones`). So the mirrored tables themselves have only existing rows. Spark's
tasks first write a batch to a staging table in parallel. Then one transaction takes the changes that are
newer than the mirror's rows, and records the batch (`jdbc_apply.py`). However a run ends, that transaction
has happened or it has not.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from metaq.pipelines.binlog_mirror.columns import DELETED, KEY, SEQUENCE, Evolution, column_named, wider
from metaq.pipelines.binlog_mirror.connection import Connection, JdbcConfig, driver_errors, transaction
from metaq.pipelines.binlog_mirror.decode import ValueConverter, text_value, typed_value
from metaq.pipelines.binlog_mirror.dialects import named
from metaq.pipelines.binlog_mirror.errors import TOO_LARGE_FOR_INDEX, DatabaseError, Unmirrored
from metaq.pipelines.binlog_mirror.jdbc_apply import NUL, REFUSED_COLUMNS, StagedBatch
from metaq.pipelines.binlog_mirror.jdbc_schema import (
    ID,
    LEFT_OUT,
    QUARANTINE,
    SCHEMA,
    TABLES,
    TOMBSTONES,
    KeyIndex,
    columns_of,
    full_name,
    hashed,
    is_there,
    prepare,
)
from metaq.pipelines.binlog_mirror.left_out import LeftOut
from metaq.pipelines.binlog_mirror.notes import Notes, TableName
from metaq.pipelines.binlog_mirror.refusals import LISTED_MAX, Refusal, RefusedRow
from metaq.pipelines.binlog_sync.envelope import RangeBarrier
from metaq.pipelines.remarks import REMARK
from metaq.pipelines.spark_runtime import quoted

_log = logging.getLogger(__name__)
STAGE_ROWS: Final = 5_000
"""The number of rows in one round trip to the database."""
EMPTY: Final = "''"
LEFT_OUT_TABLE: Final = (SCHEMA, "left_out")
ARCHIVED: Final = "_dropped_"
"""Between the name of a table and the number of its drop, in the name of its archive."""


class JdbcTarget:
    """Tables with the names of the source. Its databases become databases, or schemas in PostgreSQL."""

    def __init__(self, spark: SparkSession, config: JdbcConfig) -> None:
        self.spark = spark
        self.config = config
        self._is_ready = False
        self._stage: str | None = None
        self._native_types: frozenset[str] | None = None

    def is_begun(self) -> bool:
        with self.transaction() as connection:
            return is_there(connection, (SCHEMA, "tables"))

    def native_types(self) -> frozenset[str]:
        if self._native_types is None:
            with self.transaction() as connection:
                ((version,),) = connection.query("SELECT version()")
            self._native_types = self.config.dialect.native_types(str(version))
        return self._native_types

    def transaction(self) -> AbstractContextManager[Connection]:
        return transaction(self.spark, self.config)

    def stage(self, query_id: str) -> str:
        """Returns the name of a staging table that only this run uses.

        Staging tables that other runs of the same query have left are dropped. So a run that is thought to be
        dead and is not ends with an error.
        """
        if self._stage is None:
            # An older version may have created the schema without the quarantine.
            self._prepare()
            own = f"stage_{hashed(query_id)[:16]}_"
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
            if not is_there(connection, (SCHEMA, "tables")):
                return []
            found = connection.query(f'SELECT "database_name", "table_name" FROM {TABLES} ORDER BY 1, 2')
        return [(str(database), str(table)) for database, table in found]

    def table_names(self, database: str) -> list[str]:
        return [name for there, name in self.tables() if there == database]

    def require(self, name: TableName, columns: Collection[str]) -> None:
        dialect = self.config.dialect
        dialect.require_schema(name[0])
        for part in (*name, *columns):
            dialect.require_name(part)
        _require_free(columns)

    def left_out(self) -> dict[TableName, LeftOut]:
        with self.transaction() as connection:
            if not is_there(connection, LEFT_OUT_TABLE):
                return {}
            found = connection.query(f'SELECT "database_name", "table_name", "seq", "reason" FROM {LEFT_OUT}')
        return {
            (str(database), str(table)): LeftOut(str(sequence or ""), str(reason))
            for database, table, sequence, reason in found
        }

    def save_left_out(self, tables: Mapping[TableName, LeftOut]) -> None:
        # An older version may have created the schema without this table.
        self._prepare()
        with self.transaction() as connection:
            connection.execute(f"DELETE FROM {LEFT_OUT}")
            for name, left in tables.items():
                connection.execute(
                    f'INSERT INTO {LEFT_OUT} ("id", "database_name", "table_name", "seq", "reason")'
                    " VALUES (?, ?, ?, ?, ?)",
                    *(hashed(*name), *name, left.sequence, left.reason),
                )

    def open(self, name: TableName) -> JdbcMirror | None:
        with self.transaction() as connection:
            if not self._is_ready and not is_there(connection, (SCHEMA, "tables")):
                return None
            found = connection.query(f'SELECT "notes", "columns" FROM {TABLES} WHERE "id" = ?', hashed(*name))
        if not found:
            return None
        notes, columns = map(str, found[0])
        mirror = JdbcMirror(self, name, Notes.decode(notes), json.loads(columns))
        if mirror.notes.dropped and not self._has(name):
            # A run has ended between dropping the table and deleting what is stored about it.
            mirror.discard()
            return None
        return mirror

    def _has(self, name: TableName) -> bool:
        with self.transaction() as connection:
            return is_there(connection, name)

    def create(self, name: TableName, notes: Notes, columns: Mapping[str, str]) -> JdbcMirror:
        dialect = self.config.dialect
        self._prepare()
        with _table_errors(), self.transaction() as connection:
            if is_there(connection, name) and SEQUENCE not in columns_of(connection, name):
                raise Unmirrored(
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
            connection.execute(f"CREATE TABLE IF NOT EXISTS {full_name(name)} ({', '.join(lines)})")
            connection.execute(
                f"INSERT INTO {TABLES}"
                ' ("id", "database_name", "table_name", "floor", "notes", "columns", "app", "batch")'
                " VALUES (?, ?, ?, ?, ?, ?, '', -1)",
                *(hashed(*name), *name, notes.floor, notes.encode(), json.dumps(dict(columns))),
            )
        return JdbcMirror(self, name, notes, dict(columns))

    def _prepare(self) -> None:
        if self._is_ready:
            return
        with self.transaction() as connection:
            prepare(connection, self.config.dialect)
        self._is_ready = True


class JdbcMirror:
    """One mirrored table."""

    def __init__(self, target: JdbcTarget, name: TableName, notes: Notes, columns: dict[str, str]) -> None:
        self._target = target
        self._config = target.config
        self.name = name
        self._id = hashed(*name)
        self.notes = notes
        self.columns = columns
        self.convert: ValueConverter = text_value

    def save_notes(self) -> None:
        """Saves the notes, and keeps those that another run has saved meanwhile."""
        with self._target.transaction() as connection:
            for (text,) in connection.query(
                f'SELECT "notes" FROM {TABLES} WHERE "id" = ? FOR UPDATE', self._id
            ):
                self.notes.merge(Notes.decode(str(text)))
            connection.execute(
                f'UPDATE {TABLES} SET "notes" = ?, "floor" = ? WHERE "id" = ?',
                *(self.notes.encode(), self.notes.floor, self._id),
            )

    def evolve(self, evolution: Evolution) -> None:
        """Changes the columns. A previous run may have done it in part: MariaDB commits DDL at once."""
        dialect, table = self._config.dialect, full_name(self.name)
        columns = dict(self.columns)
        with _table_errors(), self._target.transaction() as connection:
            there = columns_of(connection, self.name)
            _require_free(evolution.added)
            if self.notes.keys() & {name.lower() for name in (*evolution.retyped, *evolution.dropped)}:
                # MariaDB cannot change the type of an indexed column to text. `ensure_index` follows.
                KeyIndex(dialect, self.name, (), ()).drop(connection)
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
                f'UPDATE {TABLES} SET "columns" = ? WHERE "id" = ?', json.dumps(columns), self._id
            )
        self.columns = columns

    def drop_below_floor(self) -> None:
        floor = self.notes.floor
        if floor:
            with self._target.transaction() as connection:
                connection.execute(f"DELETE FROM {full_name(self.name)} WHERE {named(SEQUENCE)} < ?", floor)
                for table in (TOMBSTONES, QUARANTINE):
                    connection.execute(
                        f'DELETE FROM {table} WHERE "table_id" = ? AND "seq" < ?', self._id, floor
                    )

    def drop_range(self, barrier: RangeBarrier) -> None:
        column = column_named(self.columns, barrier.column)
        if column is None:
            return
        is_old = f"FROM {full_name(self.name)} WHERE {named(SEQUENCE)} < ?{_within(named(column), barrier)}"
        key = self._config.dialect.first_of_key(named("key"))
        with self._target.transaction() as connection:
            connection.execute(
                f'INSERT INTO {TOMBSTONES} ("table_id", "id", "seq")'
                f" SELECT '{self._id}', {named(ID)}, '{barrier.begun}' {is_old}",
                barrier.begun,
            )
            connection.execute(f"DELETE {is_old}", barrier.begun)
            connection.execute(
                f'DELETE FROM {QUARANTINE} WHERE "table_id" = ? AND "seq" < ?{_within(key, barrier)}',
                self._id,
                barrier.begun,
            )

    def merge(self, changes: DataFrame, query_id: str, batch_id: int, *, quarantines: bool = False) -> int:
        stage = self._target.stage(query_id)
        full_stage = f'"{SCHEMA}"."{stage}"'
        self._fill(stage, changes)
        try:
            refused = self._apply(full_stage, query_id, batch_id, quarantines)
        except DatabaseError as error:
            if error.state != TOO_LARGE_FOR_INDEX or not self._drop_index():
                raise
            _log.warning(
                "%s: a key is too long for the index, which is dropped", self.notes.table, extra=REMARK
            )
            refused = self._apply(full_stage, query_id, batch_id, quarantines)
        except RefusedRow:
            self._drop(full_stage)
            raise
        self._drop(full_stage)
        return refused

    def _drop(self, stage: str) -> None:
        with self._target.transaction() as connection:
            connection.execute(f"DROP TABLE {stage}")

    def _apply(self, stage: str, query_id: str, batch_id: int, quarantines: bool) -> int:
        with self._target.transaction() as connection:
            batch = StagedBatch(
                connection, self._config.dialect, self.name, self._id, self.columns, stage, quarantines
            )
            return batch.apply(query_id, batch_id)

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
        lines += [f'"{name}" {text}' for name in (*REFUSED_COLUMNS, *values)]
        if dialect.numbered:
            lines.append(dialect.numbered)
        with self._target.transaction() as connection:
            connection.execute(f'CREATE TABLE "{SCHEMA}"."{stage}" ({", ".join(lines)})')
        refused, columns = self._staged(values)
        staged = changes.select(
            f.sha2(f.col(KEY), 256).alias("id"),
            f.col(KEY).alias("key"),
            f.col(SEQUENCE).alias("seq"),
            f.col(DELETED).cast("smallint").alias("deleted"),
            *refused,
            *columns,
        )
        writer = staged.write.format("jdbc").mode("append").options(**self._config.options())
        with driver_errors(self._config):
            writer.option("dbtable", f"{SCHEMA}.{stage}").option("batchsize", STAGE_ROWS).save()
        with self._target.transaction() as connection:
            connection.execute(f'CREATE INDEX "{stage}_id" ON "{SCHEMA}"."{stage}" ("id")')

    def _staged(self, values: list[str]) -> tuple[list[Column], list[Column]]:
        """Returns columns that mark rows which the database would refuse even in a staging table, and the
        columns with the values."""
        columns = {name: f.col(quoted(name)) for name in self.columns}
        if not self._config.dialect.refuses_nul:
            return [], [column.alias(value) for column, value in zip(columns.values(), values, strict=True)]
        bad = {name: columns[name].contains("\0") for name, kind in self.columns.items() if kind == "string"}
        staged = [
            (f.when(~bad[name], column) if name in bad else column).alias(value)
            for (name, column), value in zip(columns.items(), values, strict=True)
        ]
        if not bad:
            return [], staged
        named_column = f.coalesce(*(f.when(is_bad, f.lit(name)) for name, is_bad in bad.items()))
        shown = f.coalesce(
            *(f.when(is_bad, f.to_json(f.array(columns[name]))) for name, is_bad in bad.items())
        )
        is_refused = reduce(Column.__or__, (f.coalesce(is_bad, f.lit(False)) for is_bad in bad.values()))
        dialect = self._config.dialect.name
        refused = {
            "column_name": named_column,
            # Without the brackets of the array.
            "value": shown.substr(f.lit(2), f.length(shown) - 2),
            "reason": f.when(is_refused, f.lit(f"{NUL}, which {dialect} cannot store")),
            "row": f.when(
                is_refused, f.to_json(f.struct(*(column.alias(name) for name, column in columns.items())))
            ),
        }
        return [column.alias(name) for name, column in refused.items()], staged

    def quarantined(self) -> tuple[int, list[Refusal]]:
        own = f'FROM {QUARANTINE} WHERE "table_id" = ?'
        with self._target.transaction() as connection:
            if not is_there(connection, (SCHEMA, "quarantine")):
                return 0, []
            ((count,),) = connection.query(f"SELECT COUNT(*) {own}", self._id)
            found = connection.query(
                f'SELECT "key", "column_name", "value", "reason" {own} ORDER BY "id" LIMIT {LISTED_MAX}',
                self._id,
            )
        return int(count or 0), [
            Refusal(self.notes.table, str(key), column or "", value or "", str(reason))
            for key, column, value, reason in found
        ]

    # The index on the natural key

    def _index(self) -> KeyIndex | None:
        newest = self.notes.newest
        names = {name.lower(): name for name in self.columns}
        # Without a primary key, all columns together identify a row; an index on them helps nobody.
        is_keyless = newest is None or newest.is_keyless
        key = [] if newest is None or is_keyless else [names.get(name.lower()) for name in newest.key]
        if None in key:
            # With mirror.schema_changes = "ignore", a mirror may lack a column of the key.
            return None
        columns = [name for name in key if name is not None]
        return KeyIndex(self._config.dialect, self.name, columns, [self.columns[name] for name in columns])

    def ensure_index(self) -> None:
        """Creates the index on the columns of the source's primary key, unless it is there."""
        index = self._index()
        if index is None:
            return
        try:
            with self._target.transaction() as connection:
                if index.create(connection):
                    _log.info("%s: created the index %s", self.notes.table, index.name)
        except DatabaseError as error:
            # The mirror is right without it; only queries by key are slow.
            _log.warning("%s has no index on its key: %s", self.notes.table, error, extra=REMARK)

    def _drop_index(self) -> bool:
        with self._target.transaction() as connection:
            return KeyIndex(self._config.dialect, self.name, (), ()).drop(connection)

    # Dropped tables

    def archive(self, sequence: str) -> None:
        """Copies the rows from before a drop to another table, again if a run ended in the middle of that."""
        archive = (self.name[0], self._archive_name(sequence))
        names = ", ".join(named(name) for name in (ID, KEY, SEQUENCE, *self.columns))
        with self._target.transaction() as connection:
            connection.execute(f"DROP TABLE IF EXISTS {full_name(archive)}")
            connection.execute(self._config.dialect.copy_empty(full_name(self.name), full_name(archive)))
            connection.execute(
                f"INSERT INTO {full_name(archive)} ({names}) SELECT {names} FROM {full_name(self.name)}"
                f" WHERE {named(SEQUENCE)} < ?",
                sequence,
            )
        _log.warning("%s was dropped; its rows are in %s", self.notes.table, ".".join(archive), extra=REMARK)

    def _archive_name(self, sequence: str) -> str:
        end = ARCHIVED + hashed(sequence)[:12]
        name = self.name[1]
        while len((name + end).encode()) > min(self._config.dialect.name_bytes_max, 64):
            name = name[:-1]
        return name + end

    def discard(self) -> None:
        """Drops the table and everything that is stored about it."""
        with self._target.transaction() as connection:
            connection.execute(f"DROP TABLE IF EXISTS {full_name(self.name)}")
            for table in (TOMBSTONES, QUARANTINE):
                connection.execute(f'DELETE FROM {table} WHERE "table_id" = ?', self._id)
            connection.execute(f'DELETE FROM {TABLES} WHERE "id" = ?', self._id)
        _log.warning("%s was dropped; its mirror is gone", self.notes.table, extra=REMARK)

    def rows(self) -> DataFrame:
        """Returns the rows with the source's columns and their key."""
        dialect = self._config.dialect
        names = [f"c{number}" for number in range(len(self.columns))]
        texts = [
            f'{dialect.text_of(named(column), kind)} AS "{name}"'
            for name, (column, kind) in zip(names, self.columns.items(), strict=True)
        ]
        query = f"SELECT {', '.join((named(KEY), *texts))} FROM {full_name(self.name)}"
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


@contextmanager
def _table_errors() -> Iterator[None]:
    """Raises Unmirrored if the database refuses the names or the columns of a table."""
    try:
        yield
    except DatabaseError as error:
        if error.is_about_table:
            raise Unmirrored(str(error), hint="list the table in source.exclude") from None
        raise


def _require_free(columns: Iterable[str]) -> None:
    if ID in (column.lower() for column in columns):
        raise Unmirrored(
            f"column {ID} has a name that the mirror needs itself", hint="list the table in source.exclude"
        )


def _within(value: str, barrier: RangeBarrier) -> str:
    """Returns the conditions for a value in a range, each after AND."""
    limits = ((barrier.first, ">="), (barrier.last, "<="))
    return "".join(f" AND {value} {sign} {limit}" for limit, sign in limits if limit is not None)
