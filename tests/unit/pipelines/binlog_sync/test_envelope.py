"""Messages of the topic: their exact form, and barriers that survive a round trip."""

from __future__ import annotations

import json

import pytest

from metaq.pipelines.binlog_sync.envelope import (
    QUEUES_UNKNOWN,
    Barrier,
    DdlBarrier,
    QueuesBarrier,
    RangeBarrier,
    SchemaBarrier,
    SnapshotBarrier,
    barrier_message,
    decode_barrier,
    encode_change,
    parse_barrier,
    rows_head,
    rows_message,
)
from metaq.pipelines.binlog_sync.values.columns import Column, Definition

DEFINITION = Definition((Column("id", "int32", False), Column("e", "enum", True, ("a", "b"))), ("id",))


def test_rows() -> None:
    changes = [
        encode_change("a1", "insert", {"id": 1, "raw": b"\0"}),
        encode_change("a2", "delete", {"id": 1}),
    ]
    assert rows_message(rows_head("shop", "orders", 3), 17, changes) == (
        b'{"v":1,"kind":"rows","database":"shop","table":"orders","schema":3,"committed":17,"changes":['
        b'{"seq":"a1","op":"insert","row":{"id":1,"raw":"AA=="}},{"seq":"a2","op":"delete","row":{"id":1}}]}'
    )


@pytest.mark.parametrize(
    ("barrier", "text"),
    [
        (
            SchemaBarrier("a1", "shop", "t", 2, DEFINITION),
            '{"v":1,"kind":"schema","seq":"a1","database":"shop","table":"t","schema":2,"columns":'
            '[{"name":"id","type":"int32","nullable":false},'
            '{"name":"e","type":"enum","nullable":true,"values":["a","b"]}],"key":["id"],"queue":3}',
        ),
        (
            SnapshotBarrier("a2", "shop", "t", SnapshotBarrier.END, "a1", 4),
            '{"v":1,"kind":"snapshot","seq":"a2","database":"shop","table":"t","state":"end","begun":"a1",'
            '"queues":4,"queue":3}',
        ),
        (
            DdlBarrier("a3", "shop", "truncate", (("shop", "t"),), "TRUNCATE t", 4, True),
            '{"v":1,"kind":"ddl","seq":"a3","database":"shop","action":"truncate","tables":["shop.t"],'
            '"names":[["shop","t"]],"statement":"TRUNCATE t","empties":true,"gone":[],"queues":4,"queue":3}',
        ),
    ],
)
def test_barriers(barrier: Barrier, text: str) -> None:
    encoded = barrier_message(barrier, 3)
    assert encoded.decode() == text
    assert parse_barrier(text) == (barrier, 3)


def test_the_number_of_queues_survives_a_round_trip() -> None:
    barrier = QueuesBarrier("a4", 8)
    assert parse_barrier(barrier_message(barrier, 0).decode()) == (barrier, 0)


SNAPSHOT_END = SnapshotBarrier("a2", "shop", "t", SnapshotBarrier.END, "a1", 4)
DROP = DdlBarrier("a3", "shop", "table", (("shop", "t"),), "DROP TABLE t", 4)
SCHEMA = SchemaBarrier("a1", "shop", "t", 2, DEFINITION)
RANGE = RangeBarrier("a5", "shop", "t", "id", 1, None, "a4", 4)


@pytest.mark.parametrize(
    ("barrier", "field", "values"),
    [
        (SNAPSHOT_END, "v", [2, "1", None]),
        (SNAPSHOT_END, "kind", ["of the future", 7, None, []]),
        (SNAPSHOT_END, "seq", ["", "A1", "a1' OR '", 5, None, "a" * 65]),
        (SNAPSHOT_END, "queue", [-1, 4, 1.0, "0", True, None]),
        (SNAPSHOT_END, "queues", [0, -1, 10**30, "4", True, None]),
        (SNAPSHOT_END, "state", ["over", None]),
        (SNAPSHOT_END, "begun", ["a'; DROP", 1]),
        (SNAPSHOT_END, "database", [None, 7, ["shop"]]),
        (DROP, "queues", [0, 2**40, None]),
        (DROP, "names", [[["shop"]], [["shop", 7]], "ab", 7]),
        (DROP, "statement", [None, {}]),
        (SCHEMA, "schema", [2**31, -1, "2"]),
        (SCHEMA, "key", ["id", [], ["unknown"], [7]]),
        (SCHEMA, "columns", [[], [{"name": "id"}], 7, [{"name": 7, "type": "int32", "nullable": False}]]),
        (SCHEMA, "table", ["", "t" * 65, "t ", "a\0b", "\U0001f600"]),
        (RANGE, "column", ["", 7]),
        (RANGE, "first", [2**64, "1", 1.5, True]),
    ],
)
def test_a_barrier_with_a_wrong_field_is_refused(barrier: Barrier, field: str, values: list[object]) -> None:
    """A snapshot that ends after no queue, for instance, would delete all rows of its table."""
    right = json.loads(barrier_message(barrier, 0))
    for value in values:
        with pytest.raises((KeyError, TypeError, ValueError)):
            parse_barrier(json.dumps(right | {field: value}))


@pytest.mark.parametrize(
    "kind",
    [
        *(
            "bit(x)",
            "bit(0)",
            "bit(65)",
            "bit(8",
            "bit(1,1)",
            "int",
            "int8  unsigned",
            "INT32",
            "int32\n",
            "",
        ),
        *(f"decimal({'9' * 5_000},1)", "decimal(0,7)", "decimal(66,0)", "decimal(5,6)", "decimal(5)"),
        *("decimal(-5,1)", "decimal(٣,1)", "time(7)", "binary(1024)", "binary(-1)", "binary", "varchar(9)"),
    ],
)
def test_a_definition_with_an_unknown_type_is_refused(kind: str) -> None:
    """One such message ended binlog-mirror, and again after every restart."""
    right = json.loads(barrier_message(SCHEMA, 0))
    right["columns"][0]["type"] = kind
    with pytest.raises(ValueError, match="unknown type"):
        parse_barrier(json.dumps(right))


@pytest.mark.parametrize(
    "kind",
    [
        *("int8", "int24 unsigned", "int64 unsigned", "float", "double", "year", "date", "json", "text"),
        *("bytes", "geometry", "enum", "set", "uuid", "inet4", "inet6", "binary(0)", "binary(255)"),
        *("decimal(1,0)", "decimal(65,38)", "bit(1)", "bit(64)", "time(0)", "datetime(6)", "timestamp(3)"),
    ],
)
def test_the_types_of_binlog_sync_are_accepted(kind: str) -> None:
    barrier = SchemaBarrier("a1", "shop", "t", 2, Definition((Column("id", kind, False),), ("id",)))
    assert parse_barrier(barrier_message(barrier, 0).decode()) == (barrier, 0)


@pytest.mark.parametrize("names", [("id", "ID"), ("id", ""), ("id", "x" * 65), ("id", "end ")])
def test_a_definition_with_names_that_no_table_has_is_refused(names: tuple[str, ...]) -> None:
    columns = tuple(Column(name, "int32", False) for name in names)
    barrier = SchemaBarrier("a1", "shop", "t", 2, Definition(columns, ("id",)))
    with pytest.raises(ValueError, match="name"):
        parse_barrier(barrier_message(barrier, 0).decode())


@pytest.mark.parametrize("text", ["", "[]", "7", "{", '{"v":1}', "NaN"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        parse_barrier(text)


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e400"])
def test_numbers_that_json_does_not_have_are_refused(number: str) -> None:
    text = barrier_message(SNAPSHOT_END, 0).decode().replace('"queue":0', f'"queue":{number}')
    with pytest.raises((TypeError, ValueError)):
        parse_barrier(text)


def test_a_drop_without_a_number_of_queues_never_becomes_complete() -> None:
    document = json.loads(barrier_message(DROP, 0))
    del document["queues"]
    barrier, _ = decode_barrier(document)
    assert isinstance(barrier, DdlBarrier) and barrier.queues == QUEUES_UNKNOWN


def test_older_messages_have_no_names() -> None:
    document = json.loads(
        barrier_message(DdlBarrier("a3", "a", "table", (("a", "b.c"),), "DROP TABLE t", 1), 0)
    )
    del document["names"]
    barrier, _ = decode_barrier(document)
    assert isinstance(barrier, DdlBarrier) and barrier.names == (("a", "b.c"),)


def test_a_barrier_that_is_nested_deep_is_not_one_of_ours() -> None:
    """Spark reads texts that are 1,000 deep, and Python does not."""
    deep = '{"v":1,"kind":"ddl","x":' + "[" * 100_000 + "]" * 100_000 + "}"
    with pytest.raises(ValueError, match="recursion"):
        parse_barrier(deep)
