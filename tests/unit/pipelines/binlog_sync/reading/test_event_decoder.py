"""The decoder of binlog events: which events it decodes, refuses or leaves to the library."""

from __future__ import annotations

from typing import Any

import pytest

from metaq.pipelines.binlog_sync.coordinates import Coordinates
from metaq.pipelines.binlog_sync.errors import BinlogError
from metaq.pipelines.binlog_sync.reading.binlog_items import Query, Rows
from metaq.pipelines.binlog_sync.reading.event_decoder import EventDecoder, Undecoded
from tests.unit.pipelines.binlog_sync.reading.events import event, table_map


@pytest.fixture
def decoder() -> EventDecoder:
    return EventDecoder(Coordinates("b.000002", 400), lambda database, _: database == "shop")


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        (34, "gtid_mode was not ON"),
        (39, "binlog_row_value_options = ''"),
        (40, "binlog_transaction_compression = OFF"),
    ],
)
def test_events_that_cannot_be_synchronised_are_refused(decoder: EventDecoder, kind: int, hint: str) -> None:
    with pytest.raises(BinlogError, match=r"after b\.000002:400") as failure:
        decoder.decode(event(kind, b"..."))
    assert hint in failure.value.hint


def test_load_data_is_a_statement(decoder: EventDecoder) -> None:
    assert decoder.decode(event(18, b"...")) == Query("", "LOAD DATA")


def test_unselected_tables_are_ignored(decoder: EventDecoder) -> None:
    assert decoder.decode(table_map(5, b"other", b"vectors")) is None
    assert decoder.readers == {5: None}
    for kind in (23, 24, 25, 30, 31, 32):
        assert decoder.decode(event(kind, (5).to_bytes(6, "little") + b"\1\0")) is None


def test_a_selected_table_is_left_to_the_library(decoder: EventDecoder) -> None:
    assert isinstance(decoder.decode(table_map(6, b"shop", b"orders")), Undecoded)


def test_rows_of_both_versions(decoder: EventDecoder) -> None:
    reader: Any = object()
    decoder.readers[6] = reader
    body = b"\x03" + b"\x07" + b"images"
    for kind, extra in ((23, b""), (30, b"\2\0"), (30, b"\7\0\1\2\3\4\5")):
        rows = decoder.decode(event(kind, (6).to_bytes(6, "little") + b"\1\0" + extra + body))
        assert isinstance(rows, Rows) and rows.reader is reader
        images = rows.images
        assert (images.data[images.begin : images.end], images.bitmaps) == (b"images", (b"\x07",))
    update = b"\x03" + b"\x07" + b"\x05" + b"images"
    rows = decoder.decode(event(31, (6).to_bytes(6, "little") + b"\1\0\2\0" + update))
    assert isinstance(rows, Rows) and rows.images.bitmaps == (b"\x07", b"\x05")
