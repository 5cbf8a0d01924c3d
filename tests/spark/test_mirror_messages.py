"""Messages that binlog-sync cannot have written are found before their rows are read."""

from __future__ import annotations

import json

from pyspark.sql import SparkSession

from metaq.pipelines.binlog_mirror.decode import READABLE, messages, texts
from metaq.pipelines.binlog_sync.values.columns import Column, Definition, is_name


def test_a_row_that_is_no_object_makes_its_message_foreign(spark: SparkSession) -> None:
    """Before, such a row ended the run, and again after every restart."""
    good = ['{"id":1}', '{"id":{"x":[1]}}', "{}"]
    bad = ["x", "5", '[{"id":1}]', '{"id":1', "", "null"]
    head = {"v": 1, "kind": "rows", "database": "d", "table": "t", "schema": 1}
    bodies = [
        json.dumps({**head, "changes": [{"seq": "ff", "op": "insert", "row": row}]}).encode()
        for row in (*good, *bad)
    ]
    rows = [(0, number, bytearray(body)) for number, body in enumerate(bodies)]
    frame = spark.createDataFrame(rows, "queueId int, queueOffset long, body binary")
    found = messages(frame).where(READABLE)
    first = found.selectExpr("queueOffset", "m.changes[0].row AS row")
    definition = Definition((Column("id", "int32", False),), ("id",))
    kept = first.select("queueOffset", texts(first["row"], definition)).collect()
    assert sorted(row.queueOffset for row in kept) == list(range(len(good)))


def test_rows_of_a_table_whose_name_no_server_allows_are_foreign(spark: SparkSession) -> None:
    """A target may fail at such a name, for instance as the name of a file."""
    names = ["t", "x" * 64, "é" * 64, "a b", "a\nb", "%", "a.b", "\uffff"]
    bad = ["", "x" * 65, "a\0b", "end ", "end\n", "\U0001f600"]
    assert [is_name(name) for name in (*names, *bad)] == [True] * len(names) + [False] * len(bad)
    change = {"seq": "ff", "op": "insert", "row": {"id": 1}}
    rows = []
    for number, name in enumerate((*names, *bad)):
        head = {"v": 1, "kind": "rows", "database": "d", "table": name, "schema": 1, "changes": [change]}
        rows.append((0, number, bytearray(json.dumps(head).encode())))
    frame = spark.createDataFrame(rows, "queueId int, queueOffset long, body binary")
    found = [row.queueOffset for row in messages(frame).where(READABLE).select("queueOffset").collect()]
    assert sorted(found) == list(range(len(names)))
