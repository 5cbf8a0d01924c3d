"""XA transactions: the binlog has rows when they are prepared, tables have them when they are committed.

So rows wait here from the one to the other, and are then told as changes of the commit, with its number. What
is rolled back is told by nobody. A run that ends in between must find the rows again: no place behind the
oldest preparation that is open is one to begin at. Memory is limited; beyond that a run ends, as a place that
never moves on would only hide it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from metaq.pipelines.binlog_sync.progress import Position
from metaq.pipelines.binlog_sync.sequence import BinlogError, xid_text
from metaq.pipelines.binlog_sync.stream import Rows

_STATEMENT: Final = re.compile(
    r"XA\s+(START|BEGIN|END|COMMIT|ROLLBACK)\s+X'((?:[0-9a-f]{2})*)',X'((?:[0-9a-f]{2})*)',(\d+)",
    re.IGNORECASE,
)


_EVENT_BYTES: Final = 300
"""What an event takes in memory besides its data."""


def parse(statement: str) -> tuple[str, str]:
    """What is done with which transaction, as the binlog writes it; raises BinlogError."""
    found = _STATEMENT.match(statement.strip())
    if found is None:
        raise BinlogError(f"the binlog has a statement on an XA transaction that is not known: {statement}")
    return found[1].upper(), xid_text(bytes.fromhex(found[2]), bytes.fromhex(found[3]), int(found[4]))


@dataclass(slots=True)
class _Transaction:
    before: Position
    """Where its preparation begins."""
    rows: list[Rows] = field(default_factory=list)
    size_bytes: int = 0


class OpenTransactions:
    """Those that are prepared, or being so."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._preparing: _Transaction | None = None
        self._prepared: dict[str, _Transaction] = {}
        """In the order of the binlog."""

    def __len__(self) -> int:
        return len(self._prepared)

    @property
    def is_preparing(self) -> bool:
        return self._preparing is not None

    @property
    def oldest(self) -> Position | None:
        """The last place before all of them."""
        return next((transaction.before for transaction in self._prepared.values()), None)

    def begin(self, before: Position) -> None:
        """What comes now are rows of one."""
        self._preparing = _Transaction(before)

    def hold(self, rows: Rows) -> None:
        """Raises BinlogError where it is too much."""
        assert self._preparing is not None
        size_bytes = len(rows.images.data) + _EVENT_BYTES
        self._bytes += size_bytes
        if self._bytes > self._bytes_max:
            raise BinlogError(
                f"rows of XA transactions that wait for their commit take more than {self._bytes_max} bytes",
                hint="raise topic.buffer_bytes; XA RECOVER at the server lists those that are open",
            )
        self._preparing.rows.append(rows)
        self._preparing.size_bytes += size_bytes

    def prepared(self, xid: str) -> None:
        """From here on it waits; raises BinlogError."""
        if self._preparing is None:
            raise BinlogError(f"the binlog prepares the XA transaction {xid}, which it did not begin")
        self._prepared[xid], self._preparing = self._preparing, None

    def take_preparing(self) -> list[Rows]:
        """The rows of one that is committed without being prepared first."""
        transaction, self._preparing = self._preparing, None
        return [] if transaction is None else self._forgotten(transaction)

    def take(self, xid: str) -> list[Rows] | None:
        """Its rows, once; None where it is not known."""
        transaction = self._prepared.pop(xid, None)
        return None if transaction is None else self._forgotten(transaction)

    def clear(self) -> None:
        """They will come again."""
        self._preparing, self._bytes = None, 0
        self._prepared.clear()

    def _forgotten(self, transaction: _Transaction) -> list[Rows]:
        self._bytes -= transaction.size_bytes
        return transaction.rows
