"""How far the binlog was read, and from where it is read again."""

from __future__ import annotations

from metaq.pipelines.binlog_sync.coordinates import Coordinates, Position
from metaq.pipelines.binlog_sync.reading.read_position import ReadPosition


def at(position: int) -> Coordinates:
    return Coordinates("b.000001", position)


def test_a_chunk_moves_the_position_but_not_past_an_open_xa_transaction() -> None:
    start, later = Position(Coordinates("b.000001", 4), "0-1-1"), Coordinates("b.000001", 900)
    position = ReadPosition("mariadb", start)
    position.reach(later)
    assert position.reached == position.restart == Position(later, "0-1-1")
    position.reach(start.coordinates)
    assert position.reached.coordinates == later
    position.passed(Coordinates("b.000001", 950), "0-1-2", start)
    position.reach(Coordinates("b.000001", 960))
    assert (position.reached.coordinates.position, position.restart) == (960, start)


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
