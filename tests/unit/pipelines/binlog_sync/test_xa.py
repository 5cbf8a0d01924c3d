"""XA transactions that are open: what is held, how much of it, and where the next run must begin."""

from __future__ import annotations

from typing import Any

import pytest

from metaq.pipelines.binlog_sync import xa
from metaq.pipelines.binlog_sync.progress import Position
from metaq.pipelines.binlog_sync.rows import Images
from metaq.pipelines.binlog_sync.sequence import BinlogError, Place
from metaq.pipelines.binlog_sync.stream import Rows


def rows_of(size_bytes: int) -> Rows:
    reader: Any = None
    return Rows(reader, "insert", Images(bytes(size_bytes), 0, size_bytes, ()), 0)


def before(position: int) -> Position:
    return Position(Place("b.000001", position), f"0-1-{position}")


def prepare(transactions: xa.OpenTransactions, xid: str, position: int, *held: Rows) -> None:
    transactions.begin(before(position))
    for rows in held:
        transactions.hold(rows)
    transactions.prepared(xid)


def test_the_oldest_that_is_open_says_where_to_begin() -> None:
    transactions = xa.OpenTransactions(10_000)
    first, second = rows_of(10), rows_of(20)
    assert transactions.oldest is None
    prepare(transactions, "a", 4, first)
    prepare(transactions, "b", 8)
    prepare(transactions, "c", 12, second, second)
    assert (transactions.oldest, len(transactions)) == (before(4), 3)
    assert transactions.take("b") == []
    assert transactions.oldest == before(4)
    assert transactions.take("a") == [first]
    assert transactions.take("a") is None
    assert transactions.oldest == before(12)
    assert transactions.take("c") == [second, second]
    assert transactions.oldest is None


def test_all_together_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xa, "_EVENT_BYTES", 0)
    transactions = xa.OpenTransactions(100)
    prepare(transactions, "a", 4, rows_of(60))
    # What was taken is no longer held, nor what ended in one phase.
    transactions.begin(before(8))
    transactions.hold(rows_of(40))
    assert len(transactions.take_preparing()) == 1
    assert not transactions.is_preparing
    transactions.begin(before(8))
    transactions.hold(rows_of(40))
    with pytest.raises(BinlogError, match="more than 100 bytes") as failure:
        transactions.hold(rows_of(1))
    assert "topic.buffer_bytes" in failure.value.hint
    transactions.clear()
    assert (len(transactions), transactions.oldest, transactions.is_preparing) == (0, None, False)
    prepare(transactions, "b", 4, rows_of(100))


@pytest.mark.parametrize(
    ("statement", "verb", "xid"),
    [
        ("XA COMMIT X'7831',X'62',3", "COMMIT", "x'7831',x'62',3"),
        ("XA ROLLBACK X'7831',X'',1", "ROLLBACK", "x'7831',x'',1"),
        ("xa end X'7A',X'',1", "END", "x'7a',x'',1"),
        ("XA COMMIT X'7a',X'',1 ONE PHASE", "COMMIT", "x'7a',x'',1"),
    ],
)
def test_statements(statement: str, verb: str, xid: str) -> None:
    assert xa.parse(statement) == (verb, xid)


def test_small_events_count_as_what_they_take() -> None:
    transactions = xa.OpenTransactions(1000)
    transactions.begin(before(4))
    with pytest.raises(BinlogError, match="more than 1000 bytes"):
        for _ in range(10):
            transactions.hold(rows_of(1))


def test_what_was_not_begun_is_not_prepared() -> None:
    with pytest.raises(BinlogError, match="did not begin"):
        xa.OpenTransactions(1000).prepared("a")


def test_a_statement_that_is_not_known_is_told() -> None:
    with pytest.raises(BinlogError, match="XA RECOVER"):
        xa.parse("XA RECOVER")
