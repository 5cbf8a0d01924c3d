"""Events of MySQL that are understood before the library sees them, without a server."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metaq.pipelines.binlog_sync.config import read_config
from metaq.pipelines.binlog_sync.database import Source
from metaq.pipelines.binlog_sync.progress import Position
from metaq.pipelines.binlog_sync.sequence import BinlogError, Place
from metaq.pipelines.binlog_sync.stream import Begin, Commit, Idle, Item, Prepared, Query, Rows, Stream

SERVER = "34d5a371-e1bb-11f1-ae18-02fc00000001"
GTID = bytes.fromhex("00" + SERVER.replace("-", "")) + (6).to_bytes(8, "little") + bytes(20)
BEGIN = 4 * b"\0" + 4 * b"\0" + b"\0" + b"\0\0" + b"\0\0" + b"\0" + b"BEGIN"


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Stream]:
    (tmp_path / "secret").write_text("pass\n")
    path = tmp_path / "sync.toml"
    path.write_text(
        '[source]\nuser = "metaq"\npassword_file = "secret"\ntables = ["shop.*"]\n'
        '[topic]\nname = "changes"\n[state]\nfile = "state.json"\n'
    )
    config = read_config(path)
    position = Position(Place("b.000002", 400), f"{SERVER}:1-5")
    made = Stream(
        Source(config), 7, position, flavour="mysql", selects=config.selects, refuse=lambda *_: None
    )
    yield made
    made.close()


def event(kind: int, body: bytes, position: int = 500) -> bytes:
    """As a packet has it."""
    return b"\0" + struct.pack("<IBIIIH", 1_790_000_000, kind, 7, 19 + len(body), position, 0) + body


def table_map(table_id: int, database: bytes, table: bytes) -> bytes:
    names = b"".join(bytes((len(name),)) + name + b"\0" for name in (database, table))
    return event(19, table_id.to_bytes(6, "little") + b"\1\0" + names)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (34, "gtid_mode was not ON"),
        (39, "binlog_row_value_options = ''"),
        (40, "binlog_transaction_compression = OFF"),
    ],
)
def test_what_cannot_be_read_is_loud(stream: Stream, kind: int, told: str) -> None:
    with pytest.raises(BinlogError, match=r"behind b\.000002:400") as failure:
        stream._quick(event(kind, b"..."))
    assert told in failure.value.hint


def test_load_data_is_a_statement(stream: Stream) -> None:
    assert stream._quick(event(18, b"...")) == Query("", "LOAD DATA")


def test_tables_that_nobody_wants_are_not_looked_at(stream: Stream) -> None:
    assert stream._quick(table_map(5, b"other", b"vectors")) is None
    assert stream._readers == {5: None}
    # Nor their rows, of either version.
    for kind in (23, 24, 25, 30, 31, 32):
        assert stream._quick(event(kind, (5).to_bytes(6, "little") + b"\1\0")) is None
    # One that is wanted is left to the library.
    left: Any = stream._quick(table_map(6, b"shop", b"orders"))
    assert left is not None and not isinstance(left, Begin | Rows | Query)


def test_rows_of_both_versions(stream: Stream) -> None:
    reader: Any = object()
    stream._readers[6] = reader
    body = b"\x03" + b"\x07" + b"images"
    for kind, extra in ((23, b""), (30, b"\2\0"), (30, b"\7\0\1\2\3\4\5")):
        rows = stream._quick(event(kind, (6).to_bytes(6, "little") + b"\1\0" + extra + body))
        assert isinstance(rows, Rows) and rows.reader is reader
        images = rows.images
        assert (images.data[images.begin : images.end], images.bitmaps) == (b"images", (b"\x07",))
    update = b"\x03" + b"\x07" + b"\x05" + b"images"
    rows = stream._quick(event(31, (6).to_bytes(6, "little") + b"\1\0\2\0" + update))
    assert isinstance(rows, Rows) and rows.images.bitmaps == (b"\x07", b"\x05")


def read(stream: Stream, *found: Any) -> list[Item]:
    """What becomes of events, or of items that the library gave."""
    left = iter(found)

    def following() -> Any:
        item = next(left, None)
        if item is None:
            raise EOFError
        return stream._quick(item) if isinstance(item, bytes) else item

    stream._next = following  # type: ignore[method-assign]
    items = []
    with pytest.raises(EOFError):
        for item in stream.items():
            items.append(item)
    return items


def test_what_begins_is_told_when_it_is_known(stream: Stream) -> None:
    gtid, begin = event(33, GTID, 519), event(2, BEGIN, 600)
    begun = Begin(Place("b.000002", 519 - len(gtid) + 1), f"{SERVER}:6", False)
    assert read(stream, gtid, begin, event(16, bytes(8))) == [begun, Commit()]
    alone = Query("shop", "TRUNCATE t")
    stands_alone = Begin(begun.place, begun.gtid, True)
    assert read(stream, gtid, Idle(), alone) == [Idle(), stands_alone, alone]
    prepared = Prepared("x'78',x'',1", False)
    is_xa = Begin(begun.place, begun.gtid, False, True)
    assert read(stream, gtid, Query("", "XA START X'78',X'',1"), prepared) == [is_xa, prepared]
    commit = Query("", "XA COMMIT X'78',X'',1")
    assert read(stream, gtid, commit) == [stands_alone, commit]
