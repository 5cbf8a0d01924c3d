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

NAME = ("shop", "t")
DAY = datetime.date(2026, 1, 31)
ODD = "${env:HOME}"

pytestmark = pytest.mark.timeout(900)


def merge(spark: SparkSession, mirror: DeltaMirror, batch_id: int, *rows: tuple[Any, ...]) -> None:
    columns = {KEY: "string", SEQUENCE: "string", DELETED: "boolean", **mirror.columns}
    schema = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    mirror.merge(spark.createDataFrame(list(rows), schema), "query", batch_id)


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
