"""Open XA transactions: the rows that are held, the memory limit, and where the next run must begin."""

from __future__ import annotations

from typing import Any

import pytest

from metaq.pipelines.binlog_sync.coordinates import Coordinates, Position
from metaq.pipelines.binlog_sync.errors import BinlogError
from metaq.pipelines.binlog_sync.reading import xa
from metaq.pipelines.binlog_sync.reading.binlog_items import Rows
from metaq.pipelines.binlog_sync.values.rows import Images


def rows_of(size_bytes: int) -> Rows:
    reader: Any = None
    return Rows(reader, "insert", Images(bytes(size_bytes), 0, size_bytes, ()), 0)


def before(position: int) -> Position:
    return Position(Coordinates("b.000001", position), f"0-1-{position}")


def prepare(transactions: xa.XaTransactions, xid: str, position: int, *held: Rows) -> None:
    transactions.begin(before(position))
    for rows in held:
        transactions.hold(rows)
    transactions.prepare(xid)


def test_the_next_run_begins_before_the_oldest_open_transaction() -> None:
    transactions = xa.XaTransactions(10_000)
    first, second = rows_of(10), rows_of(20)
    assert transactions.oldest is None
    prepare(transactions, "a", 4, first)
    prepare(transactions, "b", 8)
    prepare(transactions, "c", 12, second, second)
    assert (transactions.oldest, len(transactions)) == (before(4), 3)
    assert transactions.commit("b") == []
    assert transactions.oldest == before(4)
    assert transactions.commit("a") == [first]
    assert transactions.commit("a") is None
    assert transactions.oldest == before(12)
    assert transactions.commit("c") == [second, second]
    assert transactions.oldest is None


def test_the_limit_applies_to_all_transactions_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xa, "_EVENT_BYTES", 0)
    transactions = xa.XaTransactions(100)
    prepare(transactions, "a", 4, rows_of(60))
    # Rows that were taken, also in one phase, no longer count.
    transactions.begin(before(8))
    transactions.hold(rows_of(40))
    assert len(transactions.commit_in_one_phase()) == 1
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


def test_small_events_count_with_their_overhead() -> None:
    transactions = xa.XaTransactions(1000)
    transactions.begin(before(4))
    with pytest.raises(BinlogError, match="more than 1000 bytes"):
        for _ in range(10):
            transactions.hold(rows_of(1))


def test_preparing_without_a_begin_fails() -> None:
    with pytest.raises(BinlogError, match="did not begin"):
        xa.XaTransactions(1000).prepare("a")


def test_an_unknown_statement_fails() -> None:
    with pytest.raises(BinlogError, match="XA RECOVER"):
        xa.parse("XA RECOVER")


def test_a_rollback_drops_the_rows() -> None:
    transactions = xa.XaTransactions(1000)
    prepare(transactions, "a", 4, rows_of(10))
    transactions.roll_back("a")
    assert (len(transactions), transactions.oldest, set(transactions.committed)) == (0, None, set())


def test_the_last_commits_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xa, "COMMITTED_XIDS_MAX", 2)
    transactions = xa.XaTransactions(1000)
    for xid in ("a", "b", "c"):
        transactions.commit(xid)
    assert set(transactions.committed) == {"b", "c"}
    # The same id may be used again, and then its first commit no longer matters.
    prepare(transactions, "c", 4)
    assert set(transactions.committed) == {"b"}
