"""How far the binlog was read, and from where it is read again."""

from __future__ import annotations

from metaq.pipelines.binlog_sync.coordinates import Coordinates, Position
from metaq.pipelines.binlog_sync.reading.read_position import ReadPosition


def at(position: int) -> Coordinates:
    return Coordinates("b.000001", position)


def test_reading_restarts_before_the_oldest_open_transaction() -> None:
    position = ReadPosition("mariadb", Position(at(4), "0-1-1"))
    position.passed(at(100), "0-1-2", None)
    before = position.reached
    assert before == position.restart == Position(at(100), "0-1-2")
    position.passed(at(200), "0-1-3", before)
    assert (position.reached, position.restart) == (Position(at(200), "0-1-3"), before)
    position.rewind()
    assert position.reached == position.restart == before
    # The GTIDs after the rewind do not include the transaction that is read again.
    position.passed(at(150), "7-1-1", None)
    assert position.reached.gtid == "0-1-2,7-1-1"
