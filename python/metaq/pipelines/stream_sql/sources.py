"""Each source as a view: topics as a stream of their fields, tables as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType, TimestampType

from metaq.errors import CommandError, ConfigError
from metaq.pipelines.json_rows import IS_TEXT, LINE, RECORD, JsonRows, is_dated, read_schema, with_text
from metaq.pipelines.stream_sql.config import JSON, RAW, Source, SqlConfig

MESSAGE: Final = "metaq"
"""The column of a row that has its message."""
TIMES: Final = ("stored_at", "born_at")
_REASON: Final = "_reason"
_ADVICE: Final = '; bad = "skip" leaves such messages out'


def metric(source: Source) -> str:
    """What Spark calls the counters of a source in its progress."""
    return f"metaq_{source.name}"


@contextmanager
def bad_messages() -> Iterator[None]:
    """What is said of one that ends the run, found in what Spark makes of it."""
    try:
        yield
    except CommandError as error:
        # Spark shows its plan too, where the same words stand without a place.
        place = r": at [^\s/]+/[^\s/]+/\d+/\d+"
        told = rf"source \w+: [^\n]{{1,500}}?{place}{re.escape(_ADVICE)}"
        found = re.search(told, str(error.__cause__))
        if found is None:
            raise
        raise CommandError(found[0]) from error


def view(spark: SparkSession, config: SqlConfig, source: Source) -> DataFrame:
    """Raises ConfigError for what only Spark can tell."""
    try:
        if not source.is_stream:
            return _table(spark, config, source)
        messages = _messages(spark, source)
        rows = _raw(config, source, messages) if source.format == RAW else _read(config, source, messages)
        return _watermarked(config, source, rows)
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"{config.file}: sources.{source.name}: {reason}") from None


def _table(spark: SparkSession, config: SqlConfig, source: Source) -> DataFrame:
    reader = spark.read.format(source.format).options(**source.options)
    if source.schema is not None:
        reader = reader.schema(read_schema(config.file, source.key("schema"), source.schema))
    return reader.load(source.path)


def _messages(spark: SparkSession, source: Source) -> DataFrame:
    options = {
        "nameservers": source.nameservers,
        "startingOffsets": "earliest" if source.start == "first" else "latest",
        "includeProperties": "true",
        "maxBytesPerTrigger": str(source.batch_bytes),
        "failOnDataLoss": "false" if source.skips_lost else "true",
    }
    if source.pattern is not None:
        options["subscribePattern"] = source.pattern
    else:
        options["subscribe"] = ",".join(source.topics)
    if source.tags is not None:
        options["tags"] = source.tags
    if source.group is not None:
        options["group"] = source.group
    return spark.readStream.format("metaq").options(**options).load()


def is_judged(source: Source) -> bool:
    """Whether rows may be bad, and are counted."""
    return source.is_stream and (source.format != RAW or source.time is not None)


def _raw(config: SqlConfig, source: Source, messages: DataFrame) -> DataFrame:
    """As they are, except for those whose time is a wrong one."""
    if not is_judged(source):
        return messages
    times = {field.name: f.col(field.name) for field in messages.schema if _is_time(field)}
    fault = _time_fault(config, source, messages, times)
    return _judged(source, messages, fault).select(*messages.columns)


def _judged(source: Source, rows: DataFrame, misfit: Column) -> DataFrame:
    judged = rows.withColumn(_REASON, misfit).observe(
        metric(source),
        f.count("*").alias("rows"),
        f.coalesce(f.sum(f.octet_length("body")), f.lit(0)).alias("bytes"),
        f.count(_REASON).alias("bad"),
    )
    return judged.where(_is_good(source))


def _is_time(field: StructField) -> bool:
    return isinstance(field.dataType, TimestampType)


def _time_fault(config: SqlConfig, source: Source, rows: DataFrame, times: Mapping[str, Column]) -> Column:
    """Why a row has no place in time: without one it would vanish, and from one that is far ahead the
    watermark never comes back. Raises ConfigError."""
    if source.time is None:
        return f.lit(None).cast("string")
    if source.time not in times:
        raise ConfigError(
            f"{config.file}: {source.key('time')} = {source.time!r} is no column with a timestamp",
            hint=f"there are: {', '.join(times)}",
        )
    time, early = times[source.time], source.early.replace("\\", "").replace("'", "")
    try:
        latest = f.col("storeTimestamp") + f.expr(f"INTERVAL '{early}'")
        rows.select(latest)  # Only then is it looked at.
    except PySparkException:
        raise ConfigError(
            f"{config.file}: {source.key('early')} = {source.early!r}: it must be a span of time"
            " such as 1 day"
        ) from None
    too_new = f"its time is more than {early} after its storing"
    return f.when(time.isNull(), "no time").when(time > latest, too_new)


def _read(config: SqlConfig, source: Source, messages: DataFrame) -> DataFrame:
    """Fields or lines, with the message beside them, and without what is none."""
    rows = with_text(messages).withColumn(MESSAGE, _message())
    names = [LINE]
    misfit = f.when(~f.col(IS_TEXT), "not UTF-8")
    times: dict[str, Column] = {}
    if source.format == JSON:
        assert source.schema is not None
        schema = read_schema(config.file, source.key("schema"), source.schema)
        _check_names(config, source, schema)
        parser = JsonRows(schema)
        rows, misfit = parser.with_record(rows), parser.misfit()
        names = [f"{RECORD}.`{name}`" for name in schema.names]
        times = {
            field.name: f.when(is_dated(field.name), f.col(RECORD)[field.name])
            for field in schema
            if _is_time(field)
        }
    times |= {name: f.col(MESSAGE)[name] for name in TIMES}
    misfit = f.coalesce(misfit, _time_fault(config, source, rows, times))
    return _judged(source, rows, misfit).select(*names, *_times(source), MESSAGE)


def _is_good(source: Source) -> Column:
    if source.skips_bad:
        return f.col(_REASON).isNull()
    told = f.concat_ws(
        "",
        f.lit(f"source {source.name}: "),
        f.col(_REASON),
        f.lit(": at "),
        f.concat_ws("/", "topic", "brokerName", "queueId", "queueOffset"),
        f.lit(_ADVICE),
    )
    return f.when(f.col(_REASON).isNull(), f.lit(True)).otherwise(f.raise_error(told).cast("boolean"))


def _message() -> Column:
    return f.struct(
        "topic",
        f.col("brokerName").alias("broker"),
        f.col("queueId").alias("queue_id"),
        f.col("queueOffset").alias("queue_offset"),
        f.col("msgId").alias("msg_id"),
        "tags",
        "keys",
        f.col("bornTimestamp").alias("born_at"),
        f.col("storeTimestamp").alias("stored_at"),
        "properties",
    )


def _times(source: Source) -> list[Column]:
    """A watermark is set on a column that stands alone."""
    return [f.col(MESSAGE)[name].alias(name) for name in TIMES if name == source.time]


def _check_names(config: SqlConfig, source: Source, schema: StructType) -> None:
    # Those of a message that the source is told to use as time count before fields of JSON.
    taken = {MESSAGE, *(name for name in TIMES if name == source.time)}
    for name in schema.names:
        if name.lower() in taken:
            raise ConfigError(
                f"{config.file}: {source.key('schema')} has a field {name}, which is a column of the message",
                hint='it can be read as a text: format = "text" with get_json_object in the statement',
            )


def _watermarked(config: SqlConfig, source: Source, rows: DataFrame) -> DataFrame:
    if source.time is None or source.watermark is None:
        return rows
    try:
        return rows.withWatermark(source.time, source.watermark)
    except PySparkException:
        raise ConfigError(
            f"{config.file}: {source.key('watermark')} = {source.watermark!r}: it must be a span of time"
            " such as 10 minutes"
        ) from None
