"""Connections in the order in which their clients may expire."""

from __future__ import annotations

from metaq.broker.state.due_connections import STALE_MAX, DueConnections


def taken(due: DueConnections, before_ms: int) -> list[int]:
    found = []
    while (connection := due.oldest(before_ms)) is not None:
        found.append(connection)
        due.remove(connection)
    return found


def test_the_oldest_comes_first() -> None:
    due = DueConnections()
    for connection, since_ms in ((1, 30), (2, 10), (3, 20), (4, 40)):
        due.add(connection, since_ms)
    due.add(2, 35)
    due.remove(3)
    due.remove(3)
    assert due.oldest(30) is None
    assert taken(due, 40) == [1, 2]
    assert len(due) == 1
    due.shift(-5)
    assert due.oldest(35) is None
    assert taken(due, 36) == [4]
    assert len(due) == 0


def test_connections_that_come_and_go_are_not_kept() -> None:
    due = DueConnections()
    for connection in range(100_000):
        due.add(connection, 1)
        due.remove(connection)
    assert len(due) == 0
    assert len(due._queue) <= STALE_MAX + 2
