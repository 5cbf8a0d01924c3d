"""XA transactions: the binlog has their rows when they are prepared, tables have them after the commit.

So rows wait here from the preparation to the commit, and are then sent as changes of the commit, with its
number. The rows of a transaction that is rolled back are dropped. A run that ends in between must find the
rows again. So no run may begin after the oldest open preparation. Memory is limited: if it is not enough, the
run fails, because a position that never moves would only hide the problem.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Final

from metaq.pipelines.binlog_sync.coordinates import Position
from metaq.pipelines.binlog_sync.errors import BinlogError
from metaq.pipelines.binlog_sync.reading.binlog_items import Rows, xid_text

_STATEMENT: Final = re.compile(
    r"XA\s+(START|BEGIN|END|COMMIT|ROLLBACK)\s+X'((?:[0-9a-f]{2})*)',X'((?:[0-9a-f]{2})*)',(\d+)",
    re.IGNORECASE,
)
_EVENT_BYTES: Final = 300
"""The memory that an event takes besides its data."""
COMMITTED_XIDS_MAX: Final = 1_000


def parse(statement: str) -> tuple[str, str]:
    """Returns the verb and the transaction's id of a statement in the binlog; raises BinlogError."""
    found = _STATEMENT.match(statement.strip())
    if found is None:
        raise BinlogError(f"the binlog has an unknown statement on an XA transaction: {statement}")
    return found[1].upper(), xid_text(bytes.fromhex(found[2]), bytes.fromhex(found[3]), int(found[4]))


@dataclass(slots=True)
class _Transaction:
    before: Position
    """The position before its preparation."""
    rows: list[Rows] = field(default_factory=list)
    size_bytes: int = 0


class XaTransactions:
    """Holds transactions that are prepared or being prepared, and remembers which ones were committed."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._preparing: _Transaction | None = None
        self._prepared: dict[str, _Transaction] = {}
        """By id, in the order of the binlog."""
        self._committed: dict[str, None] = {}
        """The ids of the last commits, which tables may not have yet."""

    def __len__(self) -> int:
        return len(self._prepared)

    @property
    def is_preparing(self) -> bool:
        return self._preparing is not None

    @property
    def oldest(self) -> Position | None:
        """The last position before all of them."""
        return next((transaction.before for transaction in self._prepared.values()), None)

    @property
    def committed(self) -> Set[str]:
        """The ids of the transactions whose commit was read last."""
        return self._committed.keys()

    def begin(self, before: Position) -> None:
        """Starts to hold the rows of a transaction."""
        self._preparing = _Transaction(before)

    def hold(self, rows: Rows) -> None:
        """Holds rows of the transaction that is being prepared; raises BinlogError if memory runs out."""
        assert self._preparing is not None
        size_bytes = len(rows.images.data) + _EVENT_BYTES
        self._bytes += size_bytes
        if self._bytes > self._bytes_max:
            raise BinlogError(
                f"rows of XA transactions that wait for their commit take more than {self._bytes_max} bytes",
                hint="raise topic.buffer_bytes; XA RECOVER at the server lists open transactions",
            )
        self._preparing.rows.append(rows)
        self._preparing.size_bytes += size_bytes

    def prepare(self, xid: str) -> None:
        """Holds the transaction until its commit or rollback; raises BinlogError."""
        if self._preparing is None:
            raise BinlogError(f"the binlog prepares the XA transaction {xid}, which it did not begin")
        self._prepared[xid], self._preparing = self._preparing, None
        self._committed.pop(xid, None)

    def commit_in_one_phase(self) -> list[Rows]:
        """Returns the rows of the transaction that is committed without being prepared first."""
        transaction, self._preparing = self._preparing, None
        return [] if transaction is None else self._release(transaction)

    def commit(self, xid: str) -> list[Rows] | None:
        """Returns the rows of a prepared transaction, once; None if it is unknown."""
        self._committed[xid] = None
        if len(self._committed) > COMMITTED_XIDS_MAX:
            del self._committed[next(iter(self._committed))]
        return self._take(xid)

    def roll_back(self, xid: str) -> None:
        """Drops the rows of a prepared transaction."""
        self._take(xid)

    def clear(self) -> None:
        """Drops all rows, because the binlog is read again from before them."""
        self._preparing, self._bytes = None, 0
        self._prepared.clear()

    def _take(self, xid: str) -> list[Rows] | None:
        transaction = self._prepared.pop(xid, None)
        return None if transaction is None else self._release(transaction)

    def _release(self, transaction: _Transaction) -> list[Rows]:
        self._bytes -= transaction.size_bytes
        return transaction.rows
