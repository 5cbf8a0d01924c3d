"""Texts that would take minutes as decimals are not converted, in any pipeline.

`1e100000000` keeps a core busy for hours. If one of these values was converted, the test would reach its
time limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from metaq.pipelines.binlog_mirror.decode import ValueConverter, text_value, typed_value
from metaq.pipelines.binlog_mirror.delta import _converted
from metaq.pipelines.binlog_mirror.delta_quarantine import DeltaQuarantine
from metaq.pipelines.binlog_mirror.refusals import QUARANTINE_COLUMNS
from metaq.pipelines.binlog_sync.envelope import RangeBarrier
from metaq.pipelines.json_rows import LINE, RECORD, JsonRows, with_text

pytestmark = pytest.mark.timeout(300)
HUGE = ["1e100000000", "-1e-100000000", "1E+2147483647", "1e1000", "9" * 2_000, "0." + "0" * 5_000]
KIND = "d DECIMAL(38,2), s STRUCT<d: DECIMAL(9,3)>, a ARRAY<DECIMAL(9,3)>, m MAP<STRING, DECIMAL(9,3)>"


def parsed(spark: SparkSession, lines: Iterable[str], schema: str = KIND) -> list[Row]:
    kind = StructType.fromDDL(schema)
    assert isinstance(kind, StructType)
    json_rows = JsonRows(kind)
    bodies = [(number, bytearray(line.encode())) for number, line in enumerate(lines)]
    rows = json_rows.with_record(with_text(spark.createDataFrame(bodies, "number int, body binary")))
    return rows.select("number", RECORD, json_rows.misfit().alias("why"), LINE).orderBy("number").collect()


def lines_of(value: str) -> list[str]:
    shapes = ('{{"d":{}}}', '{{"s":{{"d":{}}}}}', '{{"a":[1,{}]}}', '{{"m":{{"k":{}}}}}', '{{"d":{},"d":1}}')
    return [shape.format(value) for shape in shapes]


@pytest.mark.parametrize("value", HUGE)
def test_numbers_in_lines_of_json(spark: SparkSession, value: str) -> None:
    """log-lake and stream-sql share this."""
    lines = [*lines_of(value), f'{{"other":{value},"d":1', f'{{"s":[{{"d":{value}}},5]}}']
    for row in parsed(spark, lines):
        # Java itself refuses numbers of more than 1,000 characters.
        assert row.why is not None and row.why.startswith(("does not fit the schema: ", "not JSON")), row


@pytest.mark.parametrize(
    "value", [*HUGE, r"1\u0065100000000", "1e1,0,0,0,0,0,0,0,0", "1e\uff11\uff10\uff10\uff10\uff10"]
)
def test_texts_in_lines_of_json(spark: SparkSession, value: str) -> None:
    rows = parsed(spark, [*lines_of(f'"{value}"'), f'{{"s":[{{"d":"{value}"}},5]}}'])
    whys = ["d", "s", "a", "m", "a field", "a field"]
    assert [row.why for row in rows] == [f"does not fit the schema: {why}" for why in whys]


def test_texts_beside_decimals_may_look_like_numbers(spark: SparkSession) -> None:
    ids = ["12e45678", "9e0001234", "x: 1e99999", r"\u0031e99999", "7" * 3_000, r"\"1e99999"]
    rows = parsed(spark, [f'{{"id":"{text}","d":0.0}}' for text in ids], "id STRING, d DECIMAL(9,2)")
    assert [(row.why, row[RECORD].d) for row in rows] == [(None, Decimal("0.00"))] * len(ids)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1e2", "100.00"),
        ("12345678901234567890123456789012345.67", "12345678901234567890123456789012345.67"),
        ("-0.005", "-0.01"),
        ("1.5E+3", "1500.00"),
        ("1e-320", "0.00"),
        ('"1,000.50"', "1000.50"),
        ('"+.5"', "0.50"),
        ("0." + "1" * 1_000, "0.11"),
    ],
)
def test_numbers_that_fit(spark: SparkSession, text: str, number: str) -> None:
    (row,) = parsed(
        spark, [f'{{"d":{text},"s":{{"d":{text}}}}}'], "d DECIMAL(38,2), s STRUCT<d: DECIMAL(38,2)>"
    )
    assert (row.why, row[RECORD].d, row[RECORD].s.d) == (None, Decimal(number), Decimal(number))


def test_texts_that_are_no_decimals_do_not_fit(spark: SparkSession) -> None:
    bad = ["true", "[]", "{}", '""', '"x"', '"1e"', '"1 2"', "1e40", '"NaN"']
    rows = parsed(spark, [f'{{"d":{text}}}' for text in bad])
    assert [row.why for row in rows] == ["does not fit the schema: d"] * len(bad)
    (empty, none) = parsed(
        spark, ['{"s":null,"a":null}', '{"d":null,"s":{"d":null},"a":[null],"m":{"k":null}}']
    )
    assert (empty.why, empty[RECORD].asDict()) == (None, dict.fromkeys("dsam"))
    assert (none.why, none[RECORD].asDict(recursive=True)) == (
        None,
        {"d": None, "s": {"d": None}, "a": [None], "m": {"k": None}},
    )


@pytest.mark.parametrize(
    ("convert", "strictly"), [(typed_value, True), (typed_value, False), (text_value, False)]
)
def test_changes_of_rows(spark: SparkSession, convert: ValueConverter, strictly: bool) -> None:
    right = ["1e2", "9" * 36, "-12.50"]
    texts = spark.createDataFrame([(text,) for text in (*HUGE, *right)], "v string")
    found = texts.select(convert(f.col("v"), "decimal(38,2)", False, strictly).alias("v")).collect()
    numbers = [None if row.v is None else Decimal(row.v) for row in found]
    assert numbers == [None] * len(HUGE) + [Decimal(text) for text in right]


def test_a_column_of_texts_that_becomes_a_decimal(spark: SparkSession) -> None:
    texts = spark.createDataFrame([(text,) for text in (*HUGE, "7.5")], "v string")
    found = texts.select(_converted(texts, "v", "decimal(9,2)").alias("v")).collect()
    assert [row.v for row in found] == [None] * len(HUGE) + [Decimal("7.50")]


def test_keys_in_quarantine(spark: SparkSession, tmp_path: Path) -> None:
    keys = [*HUGE, "5", "50"]
    values: dict[str, Any] = dict.fromkeys(QUARANTINE_COLUMNS, "x")
    values |= {"database_name": "shop", "table_name": "t", "seq": "a1"}
    rows = [tuple((values | {"key": json.dumps([key])}).values()) for key in keys]
    schema = ", ".join(f"{name} string" for name in QUARANTINE_COLUMNS)
    quarantine = DeltaQuarantine(spark, str(tmp_path / "quarantine"), ("shop", "t"))
    quarantine.add(spark.createDataFrame(rows, schema))
    quarantine.forget_range(RangeBarrier("a9", "shop", "t", "id", 1, 9, "a8", 1))
    count, left = quarantine.listed()
    assert (count, {refusal.key for refusal in left}) == (
        len(keys) - 1,
        {json.dumps([key]) for key in keys if key != "5"},
    )
