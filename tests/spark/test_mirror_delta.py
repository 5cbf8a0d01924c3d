"""Mirrors in Delta, without a source."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from metaq.pipelines.binlog_mirror import delta
from metaq.pipelines.binlog_mirror.columns import DELETED, KEY, SEQUENCE, Evolution
from metaq.pipelines.binlog_mirror.delta import DeltaMirror, DeltaTarget
from metaq.pipelines.binlog_mirror.notes import Notes
from metaq.pipelines.binlog_mirror.refusals import RefusedRow
from metaq.pipelines.binlog_sync.envelope import RangeBarrier

NAME = ("shop", "t")
DAY = datetime.date(2026, 1, 31)
ODD = "${env:HOME}"

pytestmark = pytest.mark.timeout(900)


def merge(
    spark: SparkSession, mirror: DeltaMirror, batch_id: int, *rows: tuple[Any, ...], quarantines: bool = False
) -> int:
    columns = {KEY: "string", SEQUENCE: "string", DELETED: "boolean", **mirror.columns}
    schema = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    changes = spark.createDataFrame(list(rows), schema)
    return mirror.merge(changes, "query", batch_id, quarantines=quarantines)


def test_the_columns_of_an_existing_table_change(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Older versions created tables without this property.
    properties = {name: value for name, value in delta._PROPERTIES.items() if "Ntz" not in name}
    monkeypatch.setattr(delta, "_PROPERTIES", properties)
    target = DeltaTarget(spark, str(tmp_path))
    mirror = target.create(NAME, Notes("shop.t"), {"id": "int", "day": "date"})
    merge(spark, mirror, 0, ("[1]", "a1", False, 1, DAY))
    mirror.evolve(Evolution({"at": "timestamp_ntz", ODD: "int"}, {"day": "int"}))
    assert mirror.columns == {"id": "int", "day": "int", "at": "timestamp_ntz", ODD: "int"}
    (row,) = mirror.rows().collect()
    assert row.asDict() == {KEY: "[1]", "id": 1, "day": None, "at": None, ODD: None}

    # A checkpoint that is an old copy gives the same batch id to other messages.
    moment = datetime.datetime(2026, 1, 31, 12)
    merge(spark, mirror, 0, ("[1]", "a2", False, 1, 7, moment, 8), ("[2]", "a3", False, 2, None, None, None))
    assert {row.id: (row.day, row["at"], row[ODD]) for row in mirror.rows().collect()} == {
        1: (7, moment, 8),
        2: (None, None, None),
    }
    merge(spark, mirror, 0, ("[1]", "a1", False, 1, 0, moment, 0))
    assert mirror.rows().where("id = 1").collect()[0].day == 7

    mirror.notes.floor = ODD
    mirror.save_notes()
    again = target.open(NAME)
    assert again is not None and again.notes.floor == ODD


BAD = {3: "a4", 4: "a4", 5: "a4", 9: "a8", 10: "a4"}
"""The sequence numbers of rows that are refused. Row 9 was read again."""


def test_refused_rows_and_dropped_tables(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path)
    target = DeltaTarget(spark, root)
    mirror = target.create(NAME, Notes("shop.t"), {"id": "int", "amount": "int"})
    merge(spark, mirror, 0, ("[1]", "a1", False, 1, 5))
    # Somebody has added a constraint to the mirror.
    spark.sql(f"ALTER TABLE delta.`{mirror.path}` ADD CONSTRAINT sane CHECK (metaq_deleted OR amount > 0)")
    rows = (("[1]", "a2", False, 1, -5), ("[2]", "a2", False, 2, 7))
    with pytest.raises(RefusedRow) as refused:
        merge(spark, mirror, 1, *rows)
    assert str(refused.value) == (
        "column amount of row [1] of shop.t is refused: it breaks the constraint sane:"
        ' metaq_deleted OR amount > 0; its value is "-5"'
    )
    assert merge(spark, mirror, 1, *rows, quarantines=True) == 1
    assert {row.id: row.amount for row in mirror.rows().collect()} == {1: 5, 2: 7}
    again = target.open(NAME)
    assert again is not None
    count, (found,) = again.quarantined()
    assert (count, found.key, found.column) == (1, "[1]", "amount")
    assert target.tables() == [NAME]
    # The same batch again: the row stays where it is. A later change takes it out.
    assert merge(spark, again, 1, *rows, quarantines=True) == 1
    merge(spark, again, 2, ("[1]", "a3", False, 1, 6))
    assert again.quarantined() == (0, [])
    # A range of keys is read again: rows in it that came no more leave the quarantine.
    bad = [(f'["{number}"]', sequence, False, number, -1) for number, sequence in BAD.items()]
    assert merge(spark, again, 3, *bad, quarantines=True) == len(BAD)
    again.drop_range(RangeBarrier("a9", *NAME, "id", 4, 9, "a8", 1))
    assert {refusal.key for refusal in again.quarantined()[1]} == {'["3"]', '["9"]', '["10"]'}

    again.archive("a3")
    again.discard()
    assert target.tables() == [] and target.open(NAME) is None
    archived = spark.read.format("delta").load(f"{root}/_dropped/shop/t/a3").collect()
    assert [(row.id, row.amount) for row in archived] == [(2, 7)]
    # The table comes back with other columns.
    new = target.create(NAME, Notes("shop.t"), {"id": "int", "name": "string"})
    merge(spark, new, 3, ("[1]", "a4", False, 1, "x"))
    assert [row.name for row in new.rows().collect()] == ["x"]
