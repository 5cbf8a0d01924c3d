"""Parses JSON texts into rows of a schema with Spark expressions, and gives a reason if a text does not fit.

It is stricter than Spark, which reads a field of another type as NULL and ignores a second value after the
first, and NOT NULL.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from metaq.errors import ConfigError
from metaq.pipelines.decimals import json_fault

LINE, IS_TEXT, RECORD = "line", "_is_text", "record"
_PARSED, _BAD, _FAULT = "_parsed", "_bad", "_fault"
_OBJECT: Final = r"^\s*\{"
ISO_DATE: Final = r"^\s*\d{4}-\d\d-\d\d"
_NUMBER: Final = r"^-?\d+$"
FIRST_S: Final = -62_135_510_400
LAST_S: Final = 253_402_128_000
"""The years 1 to 9999, less a day for time zones. Arithmetic and directory names fail beyond them."""


def read_schema(path: Path, key: str, text: str) -> StructType:
    """Parses columns in SQL syntax; raises ConfigError. It needs a running Spark session."""
    try:
        found = StructType.fromDDL(text)
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"{path}: {key} = {text!r}: {reason}",
            hint='write columns such as "level STRING NOT NULL, at TIMESTAMP"',
        ) from None
    assert isinstance(found, StructType)
    return found


def is_dated(field: str) -> Column:
    """Returns whether a timestamp field (with dots if it is nested) has a date, or is a sane number.

    Without a date Spark would take today's, which may differ when a batch is repeated. From too many seconds
    it would make a wrong time.
    """
    raw = f.get_json_object(LINE, "$" + "".join(f"['{name}']" for name in field.split(".")))
    is_number = raw.rlike(_NUMBER) & raw.try_cast("double").between(FIRST_S, LAST_S)
    return is_number | raw.rlike(ISO_DATE)


def with_text(rows: DataFrame) -> DataFrame:
    """Adds the body as text, and whether it is valid UTF-8. A body that could not be decompressed is not."""
    text = f.expr("CAST(body AS STRING)")
    return rows.withColumns({LINE: text, IS_TEXT: f.coalesce(f.is_valid_utf8(text), f.lit(False))})


class JsonRows:
    """Parses the column `line` into `record`: a struct of the schema, or a VARIANT without a schema."""

    def __init__(self, schema: StructType | None) -> None:
        self._schema = schema

    def with_record(self, rows: DataFrame) -> DataFrame:
        line = f.col(LINE)
        if self._schema is None:
            return rows.withColumn(RECORD, f.when(f.col(IS_TEXT), f.try_parse_json(line)))
        given = StructType([*_nullable(self._schema).fields, StructField(_BAD, StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD, "allowSingleQuotes": "false"}
        judged = rows.withColumn(_FAULT, json_fault(line, self._schema))
        readable = f.when(f.col(_FAULT).isNull(), line)
        parsed = judged.withColumn(_PARSED, f.from_json(readable, given, options))
        names = [f.col(_PARSED)[name].alias(name) for name in self._schema.names]
        return parsed.withColumn(RECORD, f.struct(*names))

    def misfit(self) -> Column:
        """Returns why a row does not fit, or NULL if it does."""
        line = f.col(LINE)
        is_object = line.rlike(_OBJECT)
        # Spark parses the first value and ignores the rest. So the line is put into an array before a text
        # that it cannot contain: if the line is more than one value, that text is not the second element.
        seal = f.sha2(line, 256)
        sealed = f.concat(f.lit("["), line, f.lit(',"'), seal, f.lit('"]'))
        is_alone = f.json_array_length(sealed).eqNullSafe(2) & f.get_json_object(sealed, "$[1]").eqNullSafe(
            seal
        )
        misfit = f.when(~f.col(IS_TEXT), "not UTF-8")
        misfit = misfit.when(~is_object, "not a JSON object").when(~is_alone, "not JSON")
        if self._schema is None:
            return misfit.when(f.col(RECORD).isNull(), "not JSON")
        fault = f.col(_FAULT)
        misfit = misfit.when(fault.isNotNull(), f.concat(f.lit("does not fit the schema: "), fault))
        is_corrupt = f.col(_PARSED).isNull() | f.col(_PARSED)[_BAD].isNotNull()
        misfit = misfit.when(is_corrupt, f.concat(f.lit("does not fit the schema: "), self._misfits()))
        for path, column, parent in _required(self._schema, f.col(RECORD), None):
            missing = column.isNull() if parent is None else column.isNull() & parent.isNotNull()
            misfit = misfit.when(missing, f"does not fit the schema: {path} is missing")
        return misfit

    def _misfits(self) -> Column:
        """Returns the fields that are present and could not be parsed."""
        assert self._schema is not None
        # A name with a dot or a quote has no JSON path, so it is not listed.
        plain = [name for name in self._schema.names if name.replace("_", "").isalnum()]
        found = [
            f.when(f.col(_PARSED)[name].isNull() & f.get_json_object(LINE, f"$.{name}").isNotNull(), name)
            for name in plain
        ]
        named = f.array_join(f.array(*found), ", ") if found else f.lit("")
        return f.when(named == "", "a field").otherwise(named)


def _nullable(schema: StructType) -> StructType:
    """Makes all fields nullable: `misfit` finds missing ones, with a reason."""
    fields = []
    for field in schema:
        kind = _nullable(field.dataType) if isinstance(field.dataType, StructType) else field.dataType
        fields.append(StructField(field.name, kind, nullable=True))
    return StructType(fields)


def _required(
    schema: StructType, column: Column, parent: Column | None, prefix: str = ""
) -> Iterator[tuple[str, Column, Column | None]]:
    """Yields every required field (path and column), with the column that contains it."""
    for field in schema:
        inner, path = column[field.name], f"{prefix}{field.name}"
        if not field.nullable:
            yield path, inner, parent
        if isinstance(field.dataType, StructType):
            yield from _required(field.dataType, inner, inner, f"{path}.")
