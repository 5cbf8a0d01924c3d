"""Decodes messages of binlog-sync with Spark expressions: no row passes through Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from metaq.pipelines.binlog_mirror.columns import DELETED, KEY, SEQUENCE
from metaq.pipelines.binlog_mirror.dialects import TEXTUAL
from metaq.pipelines.binlog_mirror.errors import MirrorError
from metaq.pipelines.binlog_sync.envelope import DELETE, SPARK_SCHEMA, VERSION, Field, Kind
from metaq.pipelines.binlog_sync.values.columns import Definition
from metaq.pipelines.decimals import decimal_text, is_decimal
from metaq.pipelines.spark_runtime import quoted

BARRIER: Final = "barrier"
"""The column with the text of a message that is a barrier, and NULL for rows."""
READABLE: Final = "readable"
"""The column that is false for messages that binlog-sync cannot have written."""
_MESSAGE: Final = "m"
_NAME: Final = r"^[^\x00\x{10000}-\x{10FFFF}]{0,63}[^\x00\t-\r \x{10000}-\x{10FFFF}]\z"
"""The names that `is_name` allows, in the syntax of Java."""
_OBJECT: Final = "map<string, string>"
"""A row as every row is: an object. Another text would end the run where its columns are read."""


def message_field(name: str) -> Column:
    """Returns a field of the message."""
    return f.col(f"{_MESSAGE}.{name}")


def last_sequence() -> Column:
    """Returns the sequence number of the last change of a message; NULL if it has none."""
    return f.try_element_at(message_field(Field.CHANGES), f.lit(-1))[Field.SEQUENCE]


def first_sequence() -> Column:
    """Returns the sequence number of the first change of a message; NULL if it has none."""
    return f.get(message_field(Field.CHANGES), 0)[Field.SEQUENCE]


def messages(frame: DataFrame) -> DataFrame:
    """Parses the envelope of each message: a struct of its fields, its size, `barrier` and `readable`."""
    text = f.col("body").cast("string")
    parsed = frame.select("queueId", "queueOffset", text.alias("text")).select(
        "queueId",
        "queueOffset",
        f.from_json("text", SPARK_SCHEMA).alias(_MESSAGE),
        f.length("text").alias("bytes"),
        f.when(f.get_json_object("text", f"$.{Field.KIND}") != Kind.ROWS, f.col("text")).alias(BARRIER),
    )
    return parsed.withColumn(READABLE, _is_readable())


def _is_readable() -> Column:
    """Returns whether binlog-sync can have written a message."""
    changes = message_field(Field.CHANGES)
    is_complete = message_field(Field.SCHEMA).isNotNull()
    for name in (Field.DATABASE, Field.TABLE):
        is_complete &= message_field(name).rlike(_NAME)
    is_fine = (message_field(Field.VERSION) == VERSION) & f.when(
        message_field(Field.KIND) == Kind.ROWS,
        is_complete
        & (f.size(changes) > 0)
        & f.forall(
            changes,
            lambda change: (
                change[Field.SEQUENCE].isNotNull()
                & change[Field.OPERATION].isNotNull()
                & f.from_json(change[Field.ROW], _OBJECT).isNotNull()
            ),
        ),
    ).otherwise(f.col(BARRIER).isNotNull())
    return f.coalesce(is_fine, f.lit(False))


def is_newer() -> Column:
    """Returns whether a newer version of binlog-sync may have written a message."""
    return f.coalesce(message_field(Field.VERSION) > VERSION, f.lit(False))


def require_known_version(newer: Iterable[Row | None]) -> None:
    """Raises MirrorError for the first of these messages (queue and offset), if there is one."""
    bad = min(((row.queueId, row.queueOffset) for row in newer if row is not None), default=None)
    if bad is not None:
        raise MirrorError(
            f"message {bad[1]} of queue {bad[0]} was written by a newer version of binlog-sync",
            hint="update binlog-mirror: without this message the mirror would lack changes",
        )


def texts(row: Column, definition: Definition) -> Column:
    """Parses a row into a struct of texts: numbers keep all their digits."""
    schema = StructType([StructField(column.name, StringType()) for column in definition.columns])
    return f.from_json(row, schema, {"mode": "FAILFAST"})


ValueConverter = Callable[[Column, str, bool, bool], Column]
"""Converts a text of a message: takes the text, the type of the mirror's column, whether the text encodes
bytes, and whether a value that does not fit is an error."""


def mirrored(
    values: str, definition: Definition, mirror: Mapping[str, str], convert: ValueConverter, *, strictly: bool
) -> list[Column]:
    """Converts a struct of texts to the columns of a mirror.

    Columns that the definition lacks are NULL. So are values that do not fit, unless `strictly` is true.
    """
    names = {column.name.lower(): column for column in definition.columns}
    columns = []
    for name, kind in mirror.items():
        source = names.get(name.lower())
        if source is None:
            text, is_bytes = f.lit(None).cast("string"), False
        else:
            text = f.col(f"{values}.{quoted(source.name)}")
            is_bytes = source.type in ("bytes", "geometry") or source.type.startswith("binary(")
        columns.append(convert(text, kind, is_bytes, strictly).alias(name))
    return columns


def typed_value(text: Column, kind: str, is_bytes: bool, strictly: bool) -> Column:
    """Converts a text to a value of Spark's type."""
    if kind == "binary":
        return f.unbase64(text) if is_bytes else text.cast("binary")
    if kind == "string" or kind in TEXTUAL:
        return text
    if kind == "timestamp":
        # Messages have times in UTC, whatever the session's time zone is.
        return f.concat(text, f.lit("+00:00")).try_cast(kind)
    if is_decimal(kind):
        text = decimal_text(text)
    if kind in ("date", "timestamp_ntz") or not strictly:
        # 0000-00-00 becomes NULL.
        return text.try_cast(kind)
    return text.cast(kind)


def text_value(text: Column, kind: str, is_bytes: bool, strictly: bool) -> Column:
    """Converts a text to one that a database parses: times in UTC, bytes as hexadecimal digits."""
    if kind == "binary":
        return f.hex(f.unbase64(text) if is_bytes else text.cast("binary"))
    if kind in ("timestamp", "timestamp_ntz"):
        return text.try_cast("timestamp_ntz").cast("string")
    is_text = kind == "string" or kind in TEXTUAL
    if kind == "date" or not (is_text or strictly):
        return (decimal_text(text) if is_decimal(kind) else text).try_cast(kind).cast("string")
    return text


def key_of(values: str, definition: Definition) -> Column:
    """Returns a text that identifies a primary key, whatever names and types its columns have now."""
    return f.to_json(f.array(*(f.col(f"{values}.{quoted(name)}") for name in definition.key))).alias(KEY)


def changes(
    rows: DataFrame,
    definition: Definition,
    mirror: Mapping[str, str],
    convert: ValueConverter,
    *,
    strictly: bool,
) -> DataFrame:
    """Returns the changes of messages of one table and one definition: key, sequence number, whether it is a
    delete, and the mirror's columns."""
    each = rows.select(f.explode(message_field(Field.CHANGES)).alias("c"))
    parsed = each.select(
        f.col(f"c.{Field.SEQUENCE}").alias(SEQUENCE),
        (f.col(f"c.{Field.OPERATION}") == DELETE).alias(DELETED),
        texts(f.col(f"c.{Field.ROW}"), definition).alias("r"),
    )
    return parsed.select(
        key_of("r", definition),
        SEQUENCE,
        DELETED,
        *mirrored("r", definition, mirror, convert, strictly=strictly),
    )


def latest(frames: list[DataFrame]) -> DataFrame:
    """Returns the newest change of every key."""
    everything = reduce(DataFrame.unionByName, frames)
    newest = f.max_by(f.struct(*(f.col(quoted(name)) for name in everything.columns)), SEQUENCE)
    return everything.groupBy(KEY).agg(newest.alias("newest")).select("newest.*")
