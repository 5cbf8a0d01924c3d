"""Decimals of texts that strangers send. Everything here is a Spark expression.

Spark and Java scale a number by its exponent, digit by digit: the 12 bytes 1e-100000000 keep an executor busy
for minutes. So texts are looked at before they are converted.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructField, StructType

DIGITS_MAX: Final = 1_100
"""Before and after the point. The smallest number of 64 bits has 1,074 decimals, and no database has more."""
EXPONENT_DIGITS_MAX: Final = 3
_DECIMAL: Final = (
    rf"^[+-]?([0-9]{{1,{DIGITS_MAX}}}(\.[0-9]{{0,{DIGITS_MAX}}})?|\.[0-9]{{1,{DIGITS_MAX}}})"
    rf"([eE][+-]?[0-9]{{1,{EXPONENT_DIGITS_MAX}}})?\z"
)
_LONG_EXPONENT: Final = rf"[0-9.][eE][+-]?[0-9]{{{EXPONENT_DIGITS_MAX + 1}}}"
_SUSPICIOUS: Final = rf"[eE][+-]?[\p{{Nd}},]{{{EXPONENT_DIGITS_MAX + 1}}}|[\p{{Nd}},]{{{DIGITS_MAX}}}|\\u"
"""A text in JSON may be a number that takes long. Java reads digits of all scripts, Spark ignores commas, and
an escape may hide anything."""
_BAD: Final = "_bad"


def is_decimal(kind: str) -> bool:
    """Returns whether this is one of Spark's names for decimals."""
    return kind.startswith("decimal")


def decimal_text(text: Column) -> Column:
    """Returns the text if it is a number that can be converted at once, and NULL otherwise."""
    return f.when(text.rlike(_DECIMAL), text)


def json_fault(line: Column, schema: StructType) -> Column:
    """Returns what in a JSON text would take long to be read as a decimal of the schema, or NULL."""
    fields = [field for field in schema if _has_decimals(field.dataType)]
    if not fields:
        return f.lit(None).cast("string")
    # Numbers are looked for outside of texts. These two expressions do not recurse, however long a text is.
    without_texts = f.regexp_replace(f.regexp_replace(line, r"(?s)\\.", ""), '"[^"]*"', '""')
    fault = f.when(
        line.rlike(_LONG_EXPONENT) & without_texts.rlike(_LONG_EXPONENT),
        f"a number with an exponent of more than {EXPONENT_DIGITS_MAX} digits",
    )
    # Spark also reads numbers in quotes. Few lines need a look at these, and a second parser.
    suspicious = f.when(line.rlike(_SUSPICIOUS), line)
    given = StructType([*(_with_texts(field) for field in fields), StructField(_BAD, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD, "allowSingleQuotes": "false"}
    texts = f.from_json(suspicious, given, options)
    bad = [f.when(_is_unfit(texts[field.name], field.dataType), f.lit(field.name)) for field in fields]
    named = f.array_join(f.array(*bad), ", ")
    fault = fault.when(named != "", named)
    # Spark would read a value before it sees that another one is wrong, or that its name comes again.
    is_unclear = suspicious.isNotNull() & (texts[_BAD].isNotNull() | f.try_parse_json(suspicious).isNull())
    return fault.when(is_unclear, "a field")


def _has_decimals(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_decimals(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return _has_decimals(kind.elementType)
    if isinstance(kind, MapType):
        return _has_decimals(kind.valueType)
    return isinstance(kind, DecimalType)


def _with_texts(field: StructField) -> StructField:
    return StructField(field.name, _texts(field.dataType))


def _texts(kind: DataType) -> DataType:
    """Returns the type with texts in place of decimals, at any depth, and without fields that have none."""
    if isinstance(kind, StructType):
        return StructType([_with_texts(field) for field in kind if _has_decimals(field.dataType)])
    if isinstance(kind, ArrayType):
        return ArrayType(_texts(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _texts(kind.valueType))
    return StringType()


def _is_unfit(value: Column, kind: DataType) -> Column:
    """Returns whether a value of the type `_texts(kind)` has a text that is no number."""
    if isinstance(kind, StructType):
        found = [
            _is_unfit(value[field.name], field.dataType) for field in kind if _has_decimals(field.dataType)
        ]
        return reduce(Column.__or__, found)
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return f.coalesce(f.exists(value, lambda each: _is_unfit(each, element)), f.lit(False))
    if isinstance(kind, MapType):
        inner = kind.valueType
        return f.coalesce(f.exists(f.map_values(value), lambda each: _is_unfit(each, inner)), f.lit(False))
    # Spark reads a number in quotes as people write it: "1,000.50".
    return value.isNotNull() & decimal_text(f.replace(value, f.lit(","))).isNull()
