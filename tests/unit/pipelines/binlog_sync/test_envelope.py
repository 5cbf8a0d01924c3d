"""Messages of the topic: their exact form, and barriers that survive a round trip."""

from __future__ import annotations

import json

import pytest

from metaq.pipelines.binlog_sync.envelope import (
    Barrier,
    DdlBarrier,
    QueuesBarrier,
    SchemaBarrier,
    SnapshotBarrier,
    barrier_message,
    decode_barrier,
    encode_change,
    queue_of,
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
            '{"name":"e","type":"enum","nullable":true,"values":["a","b"]}],"key":["id"],"queue":5}',
        ),
        (
            SnapshotBarrier("a2", "shop", "t", SnapshotBarrier.END, "a1", 4),
            '{"v":1,"kind":"snapshot","seq":"a2","database":"shop","table":"t","state":"end","begun":"a1",'
            '"queues":4,"queue":5}',
        ),
        (
            DdlBarrier("a3", "shop", "truncate", (("shop", "t"),), "TRUNCATE t", 4),
            '{"v":1,"kind":"ddl","seq":"a3","database":"shop","action":"truncate","tables":["shop.t"],'
            '"names":[["shop","t"]],"statement":"TRUNCATE t","queues":4,"queue":5}',
        ),
    ],
)
def test_barriers(barrier: Barrier, text: str) -> None:
    encoded = barrier_message(barrier, 5)
    assert encoded.decode() == text
    document = json.loads(encoded)
    assert decode_barrier(document) == barrier
    assert queue_of(document) == 5


def test_readers_ignore_other_kinds() -> None:
    assert decode_barrier(json.loads(barrier_message(QueuesBarrier("a4", 8), 0))) is None
    assert decode_barrier({"kind": "of the future"}) is None


def test_older_messages_have_no_names() -> None:
    document = json.loads(
        barrier_message(DdlBarrier("a3", "a", "table", (("a", "b.c"),), "DROP TABLE t", 1), 0)
    )
    del document["names"]
    barrier = decode_barrier(document)
    assert isinstance(barrier, DdlBarrier) and barrier.names == (("a", "b.c"),)
