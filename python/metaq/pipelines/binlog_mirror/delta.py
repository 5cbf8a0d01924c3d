"""Mirrors in Delta: tables with the columns of their source, and the sequence number of each row.

A deleted row stays as a tombstone (`metaq_deleted`), so that an older change that is applied again cannot
bring it back. `PATH/_quarantine` holds refused rows, `PATH/_dropped` the rows of dropped tables,
`PATH/_left_out` the list of tables without a mirror.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from metaq.pipelines.binlog_mirror.columns import DELETED, KEY, OWN, SEQUENCE, Evolution, column_named
from metaq.pipelines.binlog_mirror.decode import ValueConverter, typed_value
from metaq.pipelines.binlog_mirror.delta_quarantine import (
    DeltaQuarantine,
    as_refusal,
    broken_constraints,
    within,
)
from metaq.pipelines.binlog_mirror.errors import Unmirrored
from metaq.pipelines.binlog_mirror.left_out import LeftOut
from metaq.pipelines.binlog_mirror.notes import PROPERTY, Notes, TableName
from metaq.pipelines.binlog_mirror.refusals import Refusal, RefusedRow
from metaq.pipelines.binlog_sync.envelope import RangeBarrier
from metaq.pipelines.decimals import decimal_text, is_decimal
from metaq.pipelines.remarks import REMARK
from metaq.pipelines.spark_runtime import quoted
from metaq.pipelines.storage import delete, directories

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
LEFT_OUT: Final = "_left_out"
FOLDER_BYTES_MAX: Final = 255
"""The longest name of a directory in Linux and in HDFS. Object stores limit only the whole path."""
_WITH_FOLDERS: Final = frozenset(("", "file", "hdfs", "viewfs"))


def table_path(root: str, name: TableName) -> str:
    """Returns the directory of a table, whose name may have any character."""
    return f"{root}/{_folder(name[0])}/{_folder(name[1])}"


def _folder(name: str) -> str:
    """Escapes a name. A leading dot or underscore would hide the directory, and `..` would leave it."""
    escaped = quote(name, safe="")
    return f"%{ord(escaped[0]):02X}{escaped[1:]}" if escaped.startswith((".", "_")) else escaped


def folder_too_long(root: str, name: TableName) -> str | None:
    """Returns the first part of a name whose directory the file system of the mirrors refuses."""
    if urlsplit(root).scheme not in _WITH_FOLDERS:
        return None
    return next((part for part in name if len(_folder(part)) > FOLDER_BYTES_MAX), None)


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

    def is_begun(self) -> bool:
        # The directory of a database stays when its last table is dropped.
        names = directories(self._spark, self._root)
        return any(name == LEFT_OUT or not name.startswith(("_", ".")) for name in names)

    def native_types(self) -> frozenset[str]:
        return frozenset()

    def require(self, name: TableName, columns: Collection[str]) -> None:
        if (part := folder_too_long(self._root, name)) is not None:
            raise Unmirrored(
                f"{part} is too long a name for a directory: it has {len(_folder(part))} of"
                f" {FOLDER_BYTES_MAX} characters with its escapes",
                hint="list the table in source.exclude, or use an object store for the mirror",
            )

    def left_out(self) -> dict[TableName, LeftOut]:
        path = self._left_out_path
        if not DeltaTable.isDeltaTable(self._spark, path):
            return {}
        rows = self._spark.read.format("delta").load(path).collect()
        return {(row.database_name, row.table_name): LeftOut(row.seq, row.reason) for row in rows}

    def save_left_out(self, tables: Mapping[TableName, LeftOut]) -> None:
        rows = [(*name, left.sequence, left.reason) for name, left in tables.items()]
        frame = self._spark.createDataFrame(
            rows, "database_name string, table_name string, seq string, reason string"
        )
        frame.coalesce(1).write.format("delta").mode("overwrite").save(self._left_out_path)

    @property
    def _left_out_path(self) -> str:
        return f"{self._root}/{LEFT_OUT}"

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

    def __init__(
        self, spark: SparkSession, root: str, name: TableName, notes: Notes, columns: dict[str, str]
    ) -> None:
        self._spark = spark
        self._root = root
        self.name = name
        self.path = table_path(root, name)
        self._quarantine = DeltaQuarantine(spark, f"{root}/_quarantine", name)
        self.notes = notes
        self.columns = columns
        self.convert: ValueConverter = typed_value

    @classmethod
    def open(cls, spark: SparkSession, root: str, name: TableName) -> DeltaMirror | None:
        """Returns the mirror of a table; None if there is none yet. Raises MirrorError."""
        if folder_too_long(root, name) is not None:
            return None
        path = table_path(root, name)
        if not DeltaTable.isDeltaTable(spark, path):
            return None
        properties = _properties(spark, path)
        notes = Notes.decode(properties[PROPERTY]) if PROPERTY in properties else Notes(".".join(name))
        table = cls(spark, root, name, notes, {})
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
        key_columns = () if notes.newest is None else notes.newest.key
        indexed = {"delta.dataSkippingNumIndexedCols": str(indexed_columns([*own, *columns], key_columns))}
        for key, value in {**_PROPERTIES, **indexed, PROPERTY: notes.encode()}.items():
            builder = builder.property(key, value)
        builder.execute()
        return cls(spark, root, name, notes, dict(columns))

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
        _log.warning("%s: %s", self.notes.table, evolution, extra=REMARK)
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
            self._quarantine.forget(self.notes.floor)

    def drop_range(self, barrier: RangeBarrier) -> None:
        column = column_named(self.columns, barrier.column)
        if column is None:
            return
        is_old = ~f.col(DELETED) & (f.col(SEQUENCE) < barrier.begun) & within(f.col(quoted(column)), barrier)
        values: dict[str, str | Column] = {DELETED: f.lit(True), SEQUENCE: f.lit(barrier.begun)}
        DeltaTable.forPath(self._spark, self.path).update(is_old, values)
        self._quarantine.forget_range(barrier)

    def ensure_index(self) -> None:
        """Delta has no indexes. Its statistics cover the key, see `indexed_columns`."""

    def merge(self, changes: DataFrame, query_id: str, batch_id: int, *, quarantines: bool = False) -> int:
        """Applies changes with larger sequence numbers than the stored rows."""
        refused = 0
        try:
            self._merge(changes)
        except (Py4JJavaError, PySparkException):
            broken = broken_constraints(_properties(self._spark, self.path), self.columns)
            bad = None if broken is None else self._refused(changes, broken)
            if bad is None or (first := bad.head()) is None:
                raise
            if not quarantines:
                raise RefusedRow(as_refusal(self.notes.table, first)) from None
            # First: if the run ends here, the batch is applied again.
            refused = self._quarantine.add(bad)
            _log.warning(
                "%s: %s rows are refused and go to the quarantine", self.notes.table, refused, extra=REMARK
            )
            self._merge(changes.join(bad.select(f.col("key").alias(KEY)), KEY, "left_anti"))
            bad.unpersist()
        self._quarantine.settle(changes)
        return refused

    def _refused(self, changes: DataFrame, broken: Column) -> DataFrame:
        """Returns the rows that break a constraint of the table and would be written."""
        stored = self.frame().select(KEY, f.col(SEQUENCE).alias("stored"))
        newer = changes.join(stored, KEY, "left").where("stored IS NULL OR stored < metaq_seq")
        found = newer.withColumn("broken", broken).where("broken IS NOT NULL")
        row = f.to_json(f.struct(*map(quoted, self.columns)))
        value = f.to_json(f.array(f.from_json(row, "map<string,string>")[f.col("broken.column")]))
        return found.select(
            f.lit(self.name[0]).alias("database_name"),
            f.lit(self.name[1]).alias("table_name"),
            f.col(KEY).alias("key"),
            f.col(SEQUENCE).alias("seq"),
            f.col("broken.column").alias("column_name"),
            # Without the brackets of the array.
            f.when(f.col("broken.column") != "", value.substr(f.lit(2), f.length(value) - 2)).alias("value"),
            f.col("broken.reason").alias("reason"),
            row.alias("row"),
        ).persist()

    def quarantined(self) -> tuple[int, list[Refusal]]:
        return self._quarantine.listed()

    def archive(self, sequence: str) -> None:
        place = f"{table_path(self._root + '/_dropped', self.name)}/{sequence}"
        rows = self.frame().where((f.col(SEQUENCE) < sequence) & ~f.col(DELETED))
        rows.write.format("delta").mode("overwrite").options(
            **{"delta.columnMapping.mode": "name", "overwriteSchema": "true"}
        ).save(place)
        _log.warning("%s was dropped; its rows are in %s", self.notes.table, place, extra=REMARK)

    def discard(self) -> None:
        self._quarantine.forget()
        # Moved first, because a table that is half deleted cannot be read.
        delete(self._spark, self.path, f"{self._root}/_deleted/{uuid.uuid4().hex}")
        context: Any = self._spark.sparkContext
        # Delta would take a table that is created here later for the old one.
        context._jvm.org.apache.spark.sql.delta.DeltaLog.invalidateCache(
            self._spark._jsparkSession, context._jvm.org.apache.hadoop.fs.Path(self.path)
        )
        _log.warning("%s was dropped; its mirror is gone", self.notes.table, extra=REMARK)

    def _merge(self, changes: DataFrame) -> None:
        """Merges changes that are newer than the stored rows.

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


def _properties(spark: SparkSession, path: str) -> dict[str, str]:
    detail = DeltaTable.forPath(spark, path).detail().select("properties").head()
    return {} if detail is None else detail[0]


def indexed_columns(columns: Sequence[str], key: Sequence[str]) -> int:
    """Returns for how many of its first columns Delta keeps the smallest and largest value of each file.

    With them a query by key reads only the files that may have it. Delta's own number is 32.
    """
    lowered = [name.lower() for name in columns]
    places = [lowered.index(name.lower()) + 1 for name in key if name.lower() in lowered]
    return max(32, *places, 0)


def _converted(whole: DataFrame, name: str, kind: str) -> Column:
    """Converts a column; a value that does not fit becomes NULL, and binlog-sync sends it again."""
    column = whole[quoted(name)]
    if is_decimal(kind) and isinstance(whole.schema[name].dataType, StringType):
        column = decimal_text(column)
    try:
        whole.select(column.try_cast(kind))
    except AnalysisException:
        # There is no direct cast between the two types.
        return column.cast("string").try_cast(kind)
    return column.try_cast(kind)
