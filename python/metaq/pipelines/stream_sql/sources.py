"""Makes a view of each source: topics as a stream of their fields, tables as they are."""

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
from metaq.pipelines.source_columns import message_columns
from metaq.pipelines.stream_sql.config import JSON, RAW, SourceConfig, SqlConfig

MESSAGE: Final = "metaq"
"""The column with the message that a row comes from."""
TIMES: Final = ("stored_at", "born_at")
_REASON: Final = "_reason"
_ADVICE: Final = '; bad = "skip" leaves such messages out'


def metric(source: SourceConfig) -> str:
    """Returns the name of a source's counters in Spark's progress."""
    return f"metaq_{source.name}"


@contextmanager
def bad_messages() -> Iterator[None]:
    """Finds the reason for a bad message in an error of Spark, and raises CommandError with it."""
    try:
        yield
    except CommandError as error:
        # Spark also shows its plan, which has the same words without a position.
        position = r": at [^\s/]+/[^\s/]+/\d+/\d+"
        pattern = rf"source \w+: [^\n]{{1,500}}?{position}{re.escape(_ADVICE)}"
        found = re.search(pattern, str(error.__cause__))
        if found is None:
            raise
        raise CommandError(found[0]) from error


def view(spark: SparkSession, config: SqlConfig, source: SourceConfig) -> DataFrame:
    """Returns the frame of a source; raises ConfigError for settings that only Spark can check."""
    try:
        if not source.is_stream:
            return _table(spark, config, source)
        messages = _messages(spark, source)
        rows = _raw(config, source, messages) if source.format == RAW else _read(config, source, messages)
        return _watermarked(config, source, rows)
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"{config.file}: sources.{source.name}: {reason}") from None


def _table(spark: SparkSession, config: SqlConfig, source: SourceConfig) -> DataFrame:
    reader = spark.read.format(source.format).options(**source.options)
    if source.schema is not None:
        reader = reader.schema(read_schema(config.file, source.key("schema"), source.schema))
    return reader.load(source.path)


def _messages(spark: SparkSession, source: SourceConfig) -> DataFrame:
    options = {
        "nameservers": source.nameservers,
        "startingOffsets": source.start,
        "includeProperties": "true",
        "maxBytesPerTrigger": str(source.batch_bytes),
        "failOnDataLoss": "false" if source.skips_lost else "true",
        # Anybody can send such a body. It is a bad message, as others are.
        "failOnUnreadableBody": "false",
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


def is_judged(source: SourceConfig) -> bool:
    """Returns whether rows may be bad, and are counted."""
    return source.is_stream and (source.format != RAW or source.time is not None)


def _raw(config: SqlConfig, source: SourceConfig, messages: DataFrame) -> DataFrame:
    """Returns the messages as they are, except for those with a wrong time."""
    if not is_judged(source):
        return messages
    times = {field.name: f.col(field.name) for field in messages.schema if _is_time(field)}
    fault = _time_fault(config, source, messages, times)
    return _judged(source, messages, fault).select(*messages.columns)


def _judged(source: SourceConfig, rows: DataFrame, misfit: Column) -> DataFrame:
    judged = rows.withColumn(_REASON, misfit).observe(
        metric(source),
        f.count("*").alias("rows"),
        f.coalesce(f.sum(f.octet_length("body")), f.lit(0)).alias("bytes"),
        f.count(_REASON).alias("bad"),
    )
    return judged.where(_is_good(source))


def _is_time(field: StructField) -> bool:
    return isinstance(field.dataType, TimestampType)


def _time_fault(
    config: SqlConfig, source: SourceConfig, rows: DataFrame, times: Mapping[str, Column]
) -> Column:
    """Returns why the time of a row is wrong; raises ConfigError.

    A row without a time would vanish, and a time far ahead would move the watermark forward for good.
    """
    if source.time is None:
        return f.lit(None).cast("string")
    if source.time not in times:
        raise ConfigError(
            f"{config.file}: {source.key('time')} = {source.time!r} is not a column with a timestamp",
            hint=f"there are: {', '.join(times)}",
        )
    time, early = times[source.time], source.early.replace("\\", "").replace("'", "")
    try:
        latest = f.col("storeTimestamp") + f.expr(f"INTERVAL '{early}'")
        rows.select(latest)  # Only now does Spark check it.
    except PySparkException:
        raise ConfigError(
            f"{config.file}: {source.key('early')} = {source.early!r}: it must be a span of time"
            " such as 1 day"
        ) from None
    too_new = f"its time is more than {early} after its storing"
    return f.when(time.isNull(), "no time").when(time > latest, too_new)


def _read(config: SqlConfig, source: SourceConfig, messages: DataFrame) -> DataFrame:
    """Returns the fields or lines of good messages, with the message in a column."""
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


def _is_good(source: SourceConfig) -> Column:
    if source.skips_bad:
        return f.col(_REASON).isNull()
    text = f.concat_ws(
        "",
        f.lit(f"source {source.name}: "),
        f.col(_REASON),
        f.lit(": at "),
        f.concat_ws("/", "topic", "brokerName", "queueId", "queueOffset"),
        f.lit(_ADVICE),
    )
    return f.when(f.col(_REASON).isNull(), f.lit(True)).otherwise(f.raise_error(text).cast("boolean"))


def _message() -> Column:
    return f.struct(*message_columns())


def _times(source: SourceConfig) -> list[Column]:
    """Returns the time of the message as a column, because a watermark needs one at the top level."""
    return [f.col(MESSAGE)[name].alias(name) for name in TIMES if name == source.time]


def _check_names(config: SqlConfig, source: SourceConfig, schema: StructType) -> None:
    # If the time of the message is used, its column takes precedence over a field of JSON.
    taken = {MESSAGE, *(name for name in TIMES if name == source.time)}
    for name in schema.names:
        if name.lower() in taken:
            raise ConfigError(
                f"{config.file}: {source.key('schema')} has a field {name}, which is a column of the message",
                hint='use format = "text", and get_json_object in the statement',
            )


def _watermarked(config: SqlConfig, source: SourceConfig, rows: DataFrame) -> DataFrame:
    if source.time is None or source.watermark is None:
        return rows
    try:
        return rows.withWatermark(source.time, source.watermark)
    except PySparkException:
        raise ConfigError(
            f"{config.file}: {source.key('watermark')} = {source.watermark!r}: it must be a span of time"
            " such as 10 minutes"
        ) from None
