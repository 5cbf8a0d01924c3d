"""Mirrors in Delta: tables with the columns of their source, and the sequence number of each row.

A deleted row stays as a tombstone (`metaq_deleted`), so that an older change that is applied again cannot
bring it back.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType

from metaq.pipelines.binlog_mirror.columns import DELETED, KEY, OWN, SEQUENCE, Evolution
from metaq.pipelines.binlog_mirror.decode import ValueConverter, typed_value
from metaq.pipelines.binlog_mirror.notes import PROPERTY, Notes, TableName
from metaq.pipelines.spark_runtime import quoted
from metaq.pipelines.storage import directories

_log = logging.getLogger(__name__)

_PROPERTIES: Final = {
    # A merge marks rows instead of rewriting their files.
    "delta.enableDeletionVectors": "true",
    # Columns may have any name and may be dropped.
    "delta.columnMapping.mode": "name",
    "delta.enableTypeWidening": "true",
    "delta.autoOptimize.autoCompact": "true",
    "delta.autoOptimize.optimizeWrite": "true",
    # A table that is created without such a column would refuse one later.
    "delta.feature.timestampNtz": "supported",
}


def table_path(root: str, name: TableName) -> str:
    """Returns the directory of a table, whose name may have any character."""
    return f"{root}/{_folder(name[0])}/{_folder(name[1])}"


def _folder(name: str) -> str:
    """Escapes a name. A leading dot or underscore would hide the directory, and `..` would leave it."""
    escaped = quote(name, safe="")
    return f"%{ord(escaped[0]):02X}{escaped[1:]}" if escaped.startswith((".", "_")) else escaped


def tables_at(spark: SparkSession, root: str, database: str | None = None) -> list[TableName]:
    """Returns the tables that have a mirror, of one database or of all."""
    if database is None:
        databases = [name for name in directories(spark, root) if not name.startswith(("_", "."))]
        return [table for name in sorted(databases) for table in tables_at(spark, root, unquote(name))]
    directory = f"{root}/{_folder(database)}"
    found = [(database, unquote(name)) for name in sorted(directories(spark, directory))]
    return [name for name in found if DeltaTable.isDeltaTable(spark, table_path(root, name))]


class DeltaTarget:
    """Delta tables at `PATH/DATABASE/TABLE`."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        # Column names come from outside: `${env:…}` in one must stay a part of the name.
        spark.conf.set("spark.sql.variable.substitute", "false")
        self._spark = spark
        self._root = root

    def tables(self) -> list[TableName]:
        return tables_at(self._spark, self._root)

    def table_names(self, database: str) -> list[str]:
        return [name for _, name in tables_at(self._spark, self._root, database)]

    def open(self, name: TableName) -> DeltaMirror | None:
        return DeltaMirror.open(self._spark, self._root, name)

    def create(self, name: TableName, notes: Notes, columns: Mapping[str, str]) -> DeltaMirror:
        return DeltaMirror.create(self._spark, self._root, name, notes, columns)


class DeltaMirror:
    """An existing table, with its notes and columns as they are on disk."""

    def __init__(self, spark: SparkSession, path: str, notes: Notes, columns: dict[str, str]) -> None:
        self._spark = spark
        self.path = path
        self.notes = notes
        self.columns = columns
        self.convert: ValueConverter = typed_value

    @classmethod
    def open(cls, spark: SparkSession, root: str, name: TableName) -> DeltaMirror | None:
        """Returns the mirror of a table; None if there is none yet. Raises MirrorError."""
        path = table_path(root, name)
        if not DeltaTable.isDeltaTable(spark, path):
            return None
        detail = DeltaTable.forPath(spark, path).detail().select("properties").head()
        properties = {} if detail is None else detail[0]
        notes = Notes.decode(properties[PROPERTY]) if PROPERTY in properties else Notes(".".join(name))
        table = cls(spark, path, notes, {})
        table._read_columns()
        return table

    @classmethod
    def create(
        cls, spark: SparkSession, root: str, name: TableName, notes: Notes, columns: Mapping[str, str]
    ) -> DeltaMirror:
        own = {KEY: "string", SEQUENCE: "string", DELETED: "boolean"}
        # `addColumn` cannot quote names, so the schema is parsed from DDL.
        schema: Any = StructType.fromDDL(
            ", ".join(f"{quoted(column)} {kind}" for column, kind in {**own, **columns}.items())
        )
        path = table_path(root, name)
        builder = DeltaTable.createIfNotExists(spark).location(path).addColumns(schema)
        for key, value in {**_PROPERTIES, PROPERTY: notes.encode()}.items():
            builder = builder.property(key, value)
        builder.execute()
        return cls(spark, path, notes, dict(columns))

    @property
    def _sql_name(self) -> str:
        return f"delta.{quoted(self.path)}"

    def _read_columns(self) -> None:
        fields: list[StructField] = DeltaTable.forPath(self._spark, self.path).toDF().schema.fields
        self.columns = {
            field.name: field.dataType.simpleString() for field in fields if field.name not in OWN
        }

    def save_notes(self) -> None:
        self._set_property(PROPERTY, self.notes.encode())

    def _set_property(self, name: str, value: str) -> None:
        text = value.replace("\\", "\\\\").replace("'", "\\'")
        self._spark.sql(f"ALTER TABLE {self._sql_name} SET TBLPROPERTIES ('{name}' = '{text}')")

    def evolve(self, evolution: Evolution) -> None:
        """Changes the columns. If the run ends in between, the next one compares them again."""
        if not evolution:
            return
        _log.warning("%s: %s", self.notes.table, evolution)
        if "timestamp_ntz" in (*evolution.added.values(), *evolution.retyped.values()):
            # Tables of older versions may lack it.
            self._set_property("delta.feature.timestampNtz", "supported")
        if evolution.added:
            added = ", ".join(f"{quoted(name)} {kind}" for name, kind in evolution.added.items())
            self._spark.sql(f"ALTER TABLE {self._sql_name} ADD COLUMNS ({added})")
        for name in evolution.dropped:
            self._spark.sql(f"ALTER TABLE {self._sql_name} DROP COLUMN {quoted(name)}")
        left = {}
        for name, kind in evolution.retyped.items():
            try:
                self._spark.sql(f"ALTER TABLE {self._sql_name} ALTER COLUMN {quoted(name)} TYPE {kind}")
            except AnalysisException:
                left[name] = kind
        if left:
            self._rewrite(left)
        self._read_columns()

    def _rewrite(self, retyped: Mapping[str, str]) -> None:
        """Rewrites the table with other types. Delta itself can only widen a type."""
        whole = self.frame()
        columns = [
            _converted(whole, name, retyped[name]).alias(name) if name in retyped else whole[quoted(name)]
            for name in whole.columns
        ]
        writer = whole.select(*columns).write.format("delta").mode("overwrite")
        writer.option("overwriteSchema", "true").save(self.path)

    def frame(self) -> DataFrame:
        """Returns all rows, including tombstones."""
        return self._spark.read.format("delta").load(self.path)

    def rows(self) -> DataFrame:
        """Returns the rows with the source's columns and their key."""
        return self.frame().where(~f.col(DELETED)).drop(SEQUENCE, DELETED)

    def drop_below_floor(self) -> None:
        if self.notes.floor:
            DeltaTable.forPath(self._spark, self.path).delete(f.col(SEQUENCE) < self.notes.floor)

    def merge(self, changes: DataFrame, query_id: str, batch_id: int) -> None:
        """Applies changes with larger sequence numbers than the stored rows.

        Delta's `txnAppId` and `txnVersion` are not used: a query whose checkpoint is an old copy gives the
        same batch id to other messages (docs/decisions/0002).
        """
        columns: dict[str, str | Column] = {
            quoted(name): f.col(f"s.{quoted(name)}") for name in (*OWN, *self.columns)
        }
        (
            DeltaTable.forPath(self._spark, self.path)
            .alias("t")
            .merge(changes.alias("s"), f"t.{KEY} = s.{KEY}")
            .whenMatchedUpdate(condition=f"s.{SEQUENCE} > t.{SEQUENCE}", set=columns)
            .whenNotMatchedInsert(values=columns)
            .execute()
        )


def _converted(whole: DataFrame, name: str, kind: str) -> Column:
    """Converts a column; a value that does not fit becomes NULL, and binlog-sync sends it again."""
    column = whole[quoted(name)]
    try:
        whole.select(column.try_cast(kind))
    except AnalysisException:
        # There is no direct cast between the two types.
        return column.cast("string").try_cast(kind)
    return column.try_cast(kind)
