"""Decodes messages to rows: the line or its JSON fields, time and date, and a reason if a row is bad.

Everything here is a Spark expression: no row passes through Python.
"""

from __future__ import annotations

from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    DataType,
    DateType,
    IntegralType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from metaq.errors import ConfigError
from metaq.pipelines.json_rows import (
    FIRST_S,
    IS_TEXT,
    ISO_DATE,
    LAST_S,
    JsonRows,
    is_dated,
    read_schema,
    with_text,
)
from metaq.pipelines.log_lake.config import BORN, EPOCH_FORMATS, JSON, STORED, LakeConfig, Records
from metaq.pipelines.log_transport.line_properties import FILE, FILE_ID, HOST, IS_CUT, LINE_AT
from metaq.pipelines.source_columns import message_columns

REASON: Final = "reason"
SOURCE_COLUMNS: Final = (
    "topic,brokerName,queueId,queueOffset,msgId,keys,tags,body,bornTimestamp,storeTimestamp,properties"
)
ORIGIN: Final = (
    "host",
    "file",
    "tags",
    "keys",
    "stored_at",
    "broker",
    "queue_id",
    "queue_offset",
    "msg_id",
    "log_id",
    "log_at",
    "log_cut",
)
"""Columns of both tables that describe the origin of a row."""


class Decoder:
    """Decodes bodies according to the section [records]."""

    def __init__(self, spark: SparkSession, config: LakeConfig) -> None:
        """Raises ConfigError for settings that only Spark can check."""
        self._records = config.records
        text = config.records.schema
        schema = None if text is None else read_schema(config.file, "records.schema", text)
        self._json = JsonRows(schema)
        self._time_type = _time_type(config, schema)
        _check_pattern(spark, config)
        _check_format(spark, config)

    @property
    def content(self) -> tuple[str, ...]:
        """The columns with the content of a message."""
        if self._records.format != JSON:
            return ("line",)
        return ("record", "line") if self._records.keep_line else ("record",)

    def rows(self, messages: DataFrame) -> DataFrame:
        """Decodes messages in their session, whose time zone decides when a day begins."""
        properties = f.col("properties")
        origin = messages.select(
            "body",
            *message_columns(),
            properties[HOST].alias("host"),
            properties[FILE].alias("file"),
            properties[FILE_ID].alias("log_id"),
            properties[LINE_AT].try_cast("bigint").alias("log_at"),
            properties[IS_CUT].eqNullSafe("true").alias("log_cut"),
        )
        rows = with_text(origin)
        misfit = f.when(~f.col(IS_TEXT), "not UTF-8")
        if self._records.format == JSON:
            rows = self._json.with_record(rows)
            misfit = self._json.misfit()
        timed = rows.withColumn("time", self._time())
        reason = f.coalesce(misfit, self._time_fault())
        return timed.withColumn(REASON, reason).withColumn("date", f.to_date("time"))

    # Time

    def _time(self) -> Column:
        records = self._records
        if records.time == STORED:
            return f.col("stored_at")
        if records.time == BORN:
            return f.col("born_at")
        if records.time_pattern is not None:
            found = f.regexp_extract(f.when(f.col(IS_TEXT), f.col("line")), records.time_pattern, 1)
            return _sane(_parsed(found, StringType(), records))
        assert self._time_type is not None and records.time_field is not None
        value = f.col(f"record.{records.time_field}")
        if isinstance(self._time_type, TimestampType | TimestampNTZType):
            value = f.when(is_dated(records.time_field), value)
        return _sane(_parsed(value, self._time_type, records))

    def _time_fault(self) -> Column:
        records, time, stored = self._records, f.col("time"), f.col("stored_at")
        fault = f.when(time.isNull(), "no time")
        if records.late_days:
            too_old = time < stored - f.make_dt_interval(f.lit(records.late_days))
            fault = fault.when(too_old, f"its time is more than {records.late_days} days before its storing")
        if records.early_days:
            too_new = time > stored + f.make_dt_interval(f.lit(records.early_days))
            fault = fault.when(too_new, f"its time is more than {records.early_days} days after its storing")
        return fault


def _sane(time: Column) -> Column:
    first, last = (f.timestamp_seconds(f.lit(second)) for second in (FIRST_S, LAST_S))
    return f.when(time.between(first, last), time)


def _parsed(value: Column, kind: DataType, records: Records) -> Column:
    if isinstance(kind, TimestampType):
        return value
    if isinstance(kind, DateType | TimestampNTZType):
        first, last = (f.lit(day).cast(kind) for day in ("0001-01-02", "9999-12-30"))
        return f.when(value.between(first, last), value.cast("timestamp"))
    if records.time_format in EPOCH_FORMATS:
        unit = 1 if records.time_format == "epoch_s" else 1000
        number = value.try_cast("double") / unit
        # Spark fails beyond the year 9999.
        return f.when(number.between(0, 253_402_300_799), f.timestamp_seconds(number))
    if records.time_format is not None:
        # A year that a timestamp cannot hold is an error even here; `try_add` turns it into NULL.
        return f.try_add(f.try_to_timestamp(value, f.lit(records.time_format)), f.make_dt_interval())
    return f.when(value.rlike(ISO_DATE), f.try_to_timestamp(f.trim(value)))


def _time_type(config: LakeConfig, schema: StructType | None) -> DataType | None:
    """Returns the type of the time field; raises ConfigError."""
    where, records = config.file, config.records
    if records.time_field is None or schema is None:
        return None
    kind: DataType = schema
    for name in records.time_field.split("."):
        names = kind.names if isinstance(kind, StructType) else []
        if name not in names:
            raise ConfigError(
                f"{where}: records.time_field = {records.time_field!r}: the schema has no such field",
                hint=f"there are: {', '.join(schema.names)}",
            )
        assert isinstance(kind, StructType)
        kind = kind[name].dataType
    if isinstance(kind, IntegralType) and records.time_format not in EPOCH_FORMATS:
        raise ConfigError(
            f"{where}: records.time_format must be {' or '.join(EPOCH_FORMATS)}:"
            f" records.time_field is {kind.simpleString()}"
        )
    if not isinstance(kind, IntegralType | StringType | TimestampType | TimestampNTZType | DateType):
        raise ConfigError(
            f"{where}: records.time_field = {records.time_field!r} is {kind.simpleString()}",
            hint="it must be a timestamp, a date, a text or a whole number",
        )
    return kind


def _check_pattern(spark: SparkSession, config: LakeConfig) -> None:
    """Raises ConfigError if Java, whose syntax differs from Python's, refuses the pattern."""
    pattern = config.records.time_pattern
    if pattern is None:
        return
    line = spark.createDataFrame([("",)], "line STRING")
    try:
        line.select(f.regexp_extract("line", pattern, 0)).collect()
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"{config.file}: records.time_pattern = {pattern!r}: it must be a regular expression ({reason})"
        ) from None
    try:
        # Spark counts groups only if there is a match, so an empty alternative is added.
        line.select(f.regexp_extract("line", f"{pattern}|", 1)).collect()
    except PySparkException as error:
        if "REGEX_GROUP_INDEX" not in str(error):
            raise
        raise ConfigError(
            f"{config.file}: records.time_pattern = {pattern!r} has no group",
            hint=r"put the time into parentheses: ^(\S+ \S+)",
        ) from None


def _check_format(spark: SparkSession, config: LakeConfig) -> None:
    """Raises ConfigError if Spark refuses the format of times."""
    text = config.records.time_format
    if text is None or text in EPOCH_FORMATS:
        return
    try:
        spark.range(1).select(f.try_to_timestamp(f.lit("2026"), f.lit(text))).collect()
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"{config.file}: records.time_format = {text!r}: {reason}",
            hint="it must be a pattern such as dd/MMM/yyyy:HH:mm:ss Z, or epoch_s or epoch_ms",
        ) from None
