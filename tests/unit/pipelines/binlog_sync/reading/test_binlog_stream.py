"""The stream of the binlog: how it tells transactions from single statements, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from metaq.pipelines.binlog_sync.config import BinlogConfig
from metaq.pipelines.binlog_sync.coordinates import Coordinates, Position
from metaq.pipelines.binlog_sync.reading.binlog_items import Begin, Commit, Idle, Item, Prepared, Query
from metaq.pipelines.binlog_sync.reading.binlog_stream import BinlogStream
from metaq.pipelines.binlog_sync.reading.database import SourceDatabase
from tests.unit.pipelines.binlog_sync.reading.events import BEGIN, GTID, SERVER, event


@pytest.fixture
def stream(config: BinlogConfig) -> Iterator[BinlogStream]:
    position = Position(Coordinates("b.000002", 400), f"{SERVER}:1-5")
    made = BinlogStream(
        SourceDatabase(config),
        7,
        position,
        flavour="mysql",
        selects=config.selects,
        refuse=lambda *_: None,
    )
    yield made
    made.close()


def read(stream: BinlogStream, *given: Any) -> list[Item]:
    """Returns the items for packets, or for items that the library has decoded."""
    left = iter(given)

    def following() -> Any:
        item = next(left, None)
        if item is None:
            raise EOFError
        return stream._decoder.decode(item) if isinstance(item, bytes) else item

    stream._next = following  # type: ignore[method-assign]
    items = []
    with pytest.raises(EOFError):
        for item in stream.items():
            items.append(item)
    return items


def test_a_begin_waits_for_the_event_that_reveals_its_kind(stream: BinlogStream) -> None:
    gtid, begin = event(33, GTID, 519), event(2, BEGIN, 600)
    begun = Begin(Coordinates("b.000002", 519 - len(gtid) + 1), f"{SERVER}:6", False)
    assert read(stream, gtid, begin, event(16, bytes(8))) == [begun, Commit()]
    alone = Query("shop", "TRUNCATE t")
    stands_alone = Begin(begun.coordinates, begun.gtid, True)
    assert read(stream, gtid, Idle(), alone) == [Idle(), stands_alone, alone]
    prepared = Prepared("x'78',x'',1", False)
    is_xa = Begin(begun.coordinates, begun.gtid, False, True)
    assert read(stream, gtid, Query("", "XA START X'78',X'',1"), prepared) == [is_xa, prepared]
    commit = Query("", "XA COMMIT X'78',X'',1")
    assert read(stream, gtid, commit) == [stands_alone, commit]
