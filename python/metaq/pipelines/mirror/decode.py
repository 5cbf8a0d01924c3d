"""Messages of binlog-sync as frames: no Python runs for a row."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from metaq.pipelines.binlog.columns import Definition
from metaq.pipelines.mirror.columns import DELETED, KEY, SEQUENCE, MirrorError

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


def require_readable(found: DataFrame) -> None:
    """Raises MirrorError, with the place of the first message that is none of ours."""
    changes = f.col("m.changes")
    fine = (f.col("m.v") == VERSION) & f.when(
        f.col("m.kind") == "rows",
        f.col("m.database").isNotNull()
        & f.col("m.table").isNotNull()
        & f.col("m.schema").isNotNull()
        & (f.size(changes) > 0)
        & f.forall(changes, lambda c: c["seq"].isNotNull() & c["op"].isNotNull() & c["row"].isNotNull()),
    ).otherwise(f.col("barrier").isNotNull())
    bad = found.where(~f.coalesce(fine, f.lit(False))).select("queueId", "queueOffset").head()
    if bad is not None:
        raise MirrorError(
            f"message {bad.queueOffset} of queue {bad.queueId} is not as binlog-sync writes them",
            hint="is the topic the one that binlog-sync fills, and by the same version?",
        )


def texts(row: Column, definition: Definition) -> Column:
    """The values of a row, each as text: numbers keep all their digits."""
    schema = StructType([StructField(column.name, StringType()) for column in definition.columns])
    return f.from_json(row, schema, {"mode": "FAILFAST"})


def typed(values: str, definition: Definition, mirror: Mapping[str, str], *, strictly: bool) -> list[Column]:
    """The columns of a mirror out of a struct of texts. What the definition does not have is NULL, and where
    it is not strict so is what does not fit."""
    names = {column.name.lower(): column for column in definition.columns}
    columns = []
    for name, kind in mirror.items():
        source = names.get(name.lower())
        if source is None:
            columns.append(f.lit(None).cast(kind).alias(name))
            continue
        value = f.col(f"{values}.{quoted(source.name)}")
        is_bytes = source.type in ("bytes", "geometry") or source.type.startswith("binary(")
        columns.append(_value(value, kind, is_bytes=is_bytes, strictly=strictly).alias(name))
    return columns


def _value(text: Column, kind: str, *, is_bytes: bool, strictly: bool) -> Column:
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


def key_of(values: str, definition: Definition) -> Column:
    """The same text for the same primary key, whatever its columns are called or typed by now."""
    return f.to_json(f.array(*(f.col(f"{values}.{quoted(name)}") for name in definition.key))).alias(KEY)


def changes(
    rows: DataFrame, definition: Definition, mirror: Mapping[str, str], *, strictly: bool
) -> DataFrame:
    """Of messages of one table and one definition: key, number, whether it is a delete, and the columns."""
    each = rows.select(f.explode("m.changes").alias("c"))
    parsed = each.select("c.seq", "c.op", texts(f.col("c.row"), definition).alias("r"))
    return parsed.select(
        key_of("r", definition),
        f.col("seq").alias(SEQUENCE),
        (f.col("op") == "delete").alias(DELETED),
        *typed("r", definition, mirror, strictly=strictly),
    )


def latest(frames: list[DataFrame]) -> DataFrame:
    """The newest change of every key."""
    everything = reduce(DataFrame.unionByName, frames)
    newest = f.max_by(f.struct(*(f.col(quoted(name)) for name in everything.columns)), SEQUENCE)
    return everything.groupBy(KEY).agg(newest.alias("newest")).select("newest.*")
