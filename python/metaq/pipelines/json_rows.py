"""JSON texts as rows of a schema, by expressions of Spark, and why a text is none of them.

Stricter than Spark, for which a field of another type is NULL, a second value behind the first is nothing,
and NOT NULL says nothing.
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

LINE, IS_TEXT, RECORD = "line", "_is_text", "record"
_PARSED, _BAD = "_parsed", "_bad"
_OBJECT: Final = r"^\s*\{"
ISO_DATE: Final = r"^\s*\d{4}-\d\d-\d\d"
_NUMBER: Final = r"^-?\d+$"
FIRST_S: Final = -62_135_510_400
LAST_S: Final = 253_402_128_000
"""From the year 1 to 9999, less a day for zones. Beyond that arithmetic fails, and names of directories."""


def read_schema(path: Path, key: str, text: str) -> StructType:
    """Columns as SQL has them. Only Spark can tell, so a session must be there; raises ConfigError."""
    try:
        found = StructType.fromDDL(text)
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"{path}: {key} = {text!r}: {reason}",
            hint='it must be columns as in "level STRING NOT NULL, at TIMESTAMP"',
        ) from None
    assert isinstance(found, StructType)
    return found


def is_dated(field: str) -> Column:
    """Whether the text of a timestamp, with dots where it is inside another field, says one for itself.

    Without a date Spark takes that of today, which a batch that is done again may not have; and of seconds
    that are too many it makes a wrong time.
    """
    raw = f.get_json_object(LINE, "$" + "".join(f"['{name}']" for name in field.split(".")))
    is_number = raw.rlike(_NUMBER) & raw.try_cast("double").between(FIRST_S, LAST_S)
    return is_number | raw.rlike(ISO_DATE)


def with_text(rows: DataFrame) -> DataFrame:
    """The body as a text, and whether it is one."""
    text = f.expr("CAST(body AS STRING)")
    return rows.withColumns({LINE: text, IS_TEXT: f.is_valid_utf8(text)})


class JsonRows:
    """Reads the column `line` into `record`: a struct of the schema, or a VARIANT without one."""

    def __init__(self, schema: StructType | None) -> None:
        self._schema = schema

    def with_record(self, rows: DataFrame) -> DataFrame:
        line = f.col(LINE)
        if self._schema is None:
            return rows.withColumn(RECORD, f.when(f.col(IS_TEXT), f.try_parse_json(line)))
        given = StructType([*_nullable(self._schema).fields, StructField(_BAD, StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD, "allowSingleQuotes": "false"}
        parsed = rows.withColumn(_PARSED, f.from_json(line, given, options))
        names = [f.col(_PARSED)[name].alias(name) for name in self._schema.names]
        return parsed.withColumn(RECORD, f.struct(*names))

    def misfit(self) -> Column:
        """Of a row with a record: why it is none; NULL where it is one."""
        line = f.col(LINE)
        is_object = line.rlike(_OBJECT)
        # Spark reads the first value and leaves what stands behind it. Followed by a text that it cannot hold
        # itself, a line that is more than one value, or closes a bracket of ours, moves that text.
        seal = f.sha2(line, 256)
        sealed = f.concat(f.lit("["), line, f.lit(',"'), seal, f.lit('"]'))
        is_alone = f.json_array_length(sealed).eqNullSafe(2) & f.get_json_object(sealed, "$[1]").eqNullSafe(
            seal
        )
        misfit = f.when(~f.col(IS_TEXT), "not UTF-8")
        misfit = misfit.when(~is_object, "not a JSON object").when(~is_alone, "not JSON")
        if self._schema is None:
            return misfit.when(f.col(RECORD).isNull(), "not JSON")
        is_corrupt = f.col(_PARSED).isNull() | f.col(_PARSED)[_BAD].isNotNull()
        misfit = misfit.when(is_corrupt, f.concat(f.lit("does not fit the schema: "), self._misfits()))
        for path, column, parent in _required(self._schema, f.col(RECORD), None):
            missing = column.isNull() if parent is None else column.isNull() & parent.isNotNull()
            misfit = misfit.when(missing, f"does not fit the schema: {path} is missing")
        return misfit

    def _misfits(self) -> Column:
        """The fields that are there and could not be read."""
        assert self._schema is not None
        # A name with a dot or a quote has no path, and is not told.
        plain = [name for name in self._schema.names if name.replace("_", "").isalnum()]
        found = [
            f.when(f.col(_PARSED)[name].isNull() & f.get_json_object(LINE, f"$.{name}").isNotNull(), name)
            for name in plain
        ]
        named = f.array_join(f.array(*found), ", ") if found else f.lit("")
        return f.when(named == "", "a field").otherwise(named)


def _nullable(schema: StructType) -> StructType:
    """What is missing is found by ourselves, with a reason."""
    fields = []
    for field in schema:
        kind = _nullable(field.dataType) if isinstance(field.dataType, StructType) else field.dataType
        fields.append(StructField(field.name, kind, nullable=True))
    return StructType(fields)


def _required(
    schema: StructType, column: Column, parent: Column | None, prefix: str = ""
) -> Iterator[tuple[str, Column, Column | None]]:
    """Every field that may not be missing, with the one that it is inside of."""
    for field in schema:
        inner, path = column[field.name], f"{prefix}{field.name}"
        if not field.nullable:
            yield path, inner, parent
        if isinstance(field.dataType, StructType):
            yield from _required(field.dataType, inner, inner, f"{path}.")
