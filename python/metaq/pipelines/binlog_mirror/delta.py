"""One mirror table: a Delta table with the columns of its source, and for each row its number.

A deleted row stays as a tombstone (`metaq_deleted`), so that an older change that comes again cannot bring it
back.
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
from metaq.pipelines.binlog_mirror.decode import Value, quoted, typed_value
from metaq.pipelines.binlog_mirror.notes import PROPERTY, Notes, TableName

log = logging.getLogger(__name__)

_PROPERTIES: Final = {
    # A merge marks rows instead of writing their files anew.
    "delta.enableDeletionVectors": "true",
    # Columns may have any name, and be dropped.
    "delta.columnMapping.mode": "name",
    "delta.enableTypeWidening": "true",
    "delta.autoOptimize.autoCompact": "true",
    "delta.autoOptimize.optimizeWrite": "true",
    # A table that is made without such a column would not take one later.
    "delta.feature.timestampNtz": "supported",
}


def table_path(root: str, name: TableName) -> str:
    """Names of databases and tables may have any character."""
    return f"{root}/{_folder(name[0])}/{_folder(name[1])}"


def _folder(name: str) -> str:
    """What begins with a dot or an underscore is hidden, and `..` is another place."""
    told = quote(name, safe="")
    return f"%{ord(told[0]):02X}{told[1:]}" if told.startswith((".", "_")) else told


def tables_at(spark: SparkSession, root: str, database: str | None = None) -> list[TableName]:
    """Of a database, or all that have a mirror."""
    if database is None:
        names = [name for name in _folders(spark, root) if not name.startswith(("_", "."))]
        return [table for name in sorted(names) for table in tables_at(spark, root, unquote(name))]
    where = f"{root}/{_folder(database)}"
    found = [(database, unquote(name)) for name in sorted(_folders(spark, where))]
    return [name for name in found if DeltaTable.isDeltaTable(spark, table_path(root, name))]


def _folders(spark: SparkSession, path: str) -> list[str]:
    context: Any = spark.sparkContext
    place = context._jvm.org.apache.hadoop.fs.Path(path)
    files = place.getFileSystem(context._jsc.hadoopConfiguration())
    if not files.exists(place):
        return []
    return [status.getPath().getName() for status in files.listStatus(place) if status.isDirectory()]


class DeltaTarget:
    """Delta tables at `PATH/DATABASE/TABLE`."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        # Names of columns are outsiders' words, and `${env:…}` is a part of a name.
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
    """A table that is there, with its notes and columns as they are on disk."""

    def __init__(self, spark: SparkSession, path: str, notes: Notes, columns: dict[str, str]) -> None:
        self._spark = spark
        self.path = path
        self.notes = notes
        self.columns = columns
        self.value: Value = typed_value

    @classmethod
    def open(cls, spark: SparkSession, root: str, name: TableName) -> DeltaMirror | None:
        """None where there is none yet; raises MirrorError."""
        path = table_path(root, name)
        if not DeltaTable.isDeltaTable(spark, path):
            return None
        properties = DeltaTable.forPath(spark, path).detail().select("properties").head()
        told = {} if properties is None else properties[0]
        notes = Notes.decode(told[PROPERTY]) if PROPERTY in told else Notes(".".join(name))
        table = cls(spark, path, notes, {})
        table._look()
        return table

    @classmethod
    def create(
        cls, spark: SparkSession, root: str, name: TableName, notes: Notes, columns: Mapping[str, str]
    ) -> DeltaMirror:
        own = {KEY: "string", SEQUENCE: "string", DELETED: "boolean"}
        # Names may need quoting, which a schema of single fields does not know.
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

    def _look(self) -> None:
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
        """Where it ends in between, the next run finds what is left to do by the columns that are there."""
        if not evolution:
            return
        log.warning("%s: %s", self.notes.table, evolution)
        if "timestamp_ntz" in (*evolution.added.values(), *evolution.retyped.values()):
            # Tables of before may be without.
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
        self._look()

    def _rewrite(self, retyped: Mapping[str, str]) -> None:
        """Delta changes a type in place only where it becomes wider."""
        whole = self.frame()
        columns = [
            _converted(whole, name, retyped[name]).alias(name) if name in retyped else whole[quoted(name)]
            for name in whole.columns
        ]
        writer = whole.select(*columns).write.format("delta").mode("overwrite")
        writer.option("overwriteSchema", "true").save(self.path)

    def frame(self) -> DataFrame:
        """With tombstones."""
        return self._spark.read.format("delta").load(self.path)

    def rows(self) -> DataFrame:
        """As the source has them, beside their key."""
        return self.frame().where(~f.col(DELETED)).drop(SEQUENCE, DELETED)

    def drop_below_floor(self) -> None:
        if self.notes.floor:
            DeltaTable.forPath(self._spark, self.path).delete(f.col(SEQUENCE) < self.notes.floor)

    def merge(self, changes: DataFrame, app: str, version: int) -> None:
        """The numbers decide alone, and not Delta's `txnAppId` and `txnVersion`: a query whose checkpoint is
        an old copy gives a batch's number again, to other messages (docs/decisions/0002)."""
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
    """NULL where a value does not fit: the reader brings it again."""
    column = whole[quoted(name)]
    try:
        whole.select(column.try_cast(kind))
    except AnalysisException:
        # No value of the one type is one of the other.
        return column.cast("string").try_cast(kind)
    return column.try_cast(kind)
