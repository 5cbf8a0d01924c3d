"""Messages of binlog-sync as frames: no Python runs for a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from metaq.pipelines.binlog_mirror.columns import DELETED, KEY, SEQUENCE
from metaq.pipelines.binlog_mirror.errors import MirrorError
from metaq.pipelines.binlog_sync.columns import Definition

_ENVELOPE: Final = (
    "v int, kind string, database string, table string, schema int, committed bigint,"
    " changes array<struct<seq: string, op: string, row: string>>"
)
VERSION: Final = 1


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def messages(frame: DataFrame) -> DataFrame:
    """Every message taken apart as far as its kind; `barrier` is the text of one that is no rows."""
    text = f.col("body").cast("string")
    return frame.select("queueId", "queueOffset", text.alias("text")).select(
        "queueId",
        "queueOffset",
        f.from_json("text", _ENVELOPE).alias("m"),
        f.length("text").alias("bytes"),
        f.when(f.get_json_object("text", "$.kind") != "rows", f.col("text")).alias("barrier"),
    )


def readable() -> Column:
    """Whether a message is as binlog-sync writes them."""
    changes = f.col("m.changes")
    fine = (f.col("m.v") == VERSION) & f.when(
        f.col("m.kind") == "rows",
        f.col("m.database").isNotNull()
        & f.col("m.table").isNotNull()
        & f.col("m.schema").isNotNull()
        & (f.size(changes) > 0)
        & f.forall(changes, lambda c: c["seq"].isNotNull() & c["op"].isNotNull() & c["row"].isNotNull()),
    ).otherwise(f.col("barrier").isNotNull())
    return f.coalesce(fine, f.lit(False))


def require_readable(places: Iterable[Row | None]) -> None:
    """Raises MirrorError, with the place of the first message that is none of ours."""
    bad = min(((place.queueId, place.queueOffset) for place in places if place is not None), default=None)
    if bad is not None:
        raise MirrorError(
            f"message {bad[1]} of queue {bad[0]} is not as binlog-sync writes them",
            hint="is the topic the one that binlog-sync fills, and by the same version?",
        )


def texts(row: Column, definition: Definition) -> Column:
    """The values of a row, each as text: numbers keep all their digits."""
    schema = StructType([StructField(column.name, StringType()) for column in definition.columns])
    return f.from_json(row, schema, {"mode": "FAILFAST"})


Value = Callable[[Column, str, bool, bool], Column]
"""Of a text that messages have, the type of the mirror's column, whether the text is that of bytes, and
whether what does not fit is an error."""


def mirrored(
    values: str, definition: Definition, mirror: Mapping[str, str], value: Value, *, strictly: bool
) -> list[Column]:
    """The columns of a mirror out of a struct of texts. What the definition does not have is NULL, and where
    it is not strict so is what does not fit."""
    names = {column.name.lower(): column for column in definition.columns}
    columns = []
    for name, kind in mirror.items():
        source = names.get(name.lower())
        if source is None:
            text, is_bytes = f.lit(None).cast("string"), False
        else:
            text = f.col(f"{values}.{quoted(source.name)}")
            is_bytes = source.type in ("bytes", "geometry") or source.type.startswith("binary(")
        columns.append(value(text, kind, is_bytes, strictly).alias(name))
    return columns


def typed_value(text: Column, kind: str, is_bytes: bool, strictly: bool) -> Column:
    """As Spark has it."""
    if kind == "binary":
        return f.unbase64(text) if is_bytes else text.cast("binary")
    if kind == "string":
        return text
    if kind == "timestamp":
        # Messages have it in UTC, whatever the session's time zone is.
        return f.concat(text, f.lit("+00:00")).try_cast(kind)
    if kind in ("date", "timestamp_ntz") or not strictly:
        # 0000-00-00 is no date.
        return text.try_cast(kind)
    return text.cast(kind)


def text_value(text: Column, kind: str, is_bytes: bool, strictly: bool) -> Column:
    """As a database reads it: times in UTC, bytes in hexadecimal digits."""
    if kind == "binary":
        return f.hex(f.unbase64(text) if is_bytes else text.cast("binary"))
    if kind in ("timestamp", "timestamp_ntz"):
        return text.try_cast("timestamp_ntz").cast("string")
    if kind == "date" or (kind != "string" and not strictly):
        return text.try_cast(kind).cast("string")
    return text


def key_of(values: str, definition: Definition) -> Column:
    """The same text for the same primary key, whatever its columns are called or typed by now."""
    return f.to_json(f.array(*(f.col(f"{values}.{quoted(name)}") for name in definition.key))).alias(KEY)


def changes(
    rows: DataFrame, definition: Definition, mirror: Mapping[str, str], value: Value, *, strictly: bool
) -> DataFrame:
    """Of messages of one table and one definition: key, number, whether it is a delete, and the columns."""
    each = rows.select(f.explode("m.changes").alias("c"))
    parsed = each.select("c.seq", "c.op", texts(f.col("c.row"), definition).alias("r"))
    return parsed.select(
        key_of("r", definition),
        f.col("seq").alias(SEQUENCE),
        (f.col("op") == "delete").alias(DELETED),
        *mirrored("r", definition, mirror, value, strictly=strictly),
    )


def latest(frames: list[DataFrame]) -> DataFrame:
    """The newest change of every key."""
    everything = reduce(DataFrame.unionByName, frames)
    newest = f.max_by(f.struct(*(f.col(quoted(name)) for name in everything.columns)), SEQUENCE)
    return everything.groupBy(KEY).agg(newest.alias("newest")).select("newest.*")
