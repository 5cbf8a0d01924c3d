"""Sends the rows of whole tables, chunk by chunk, between the changes of the binlog.

`reading/chunks.py` reads the chunks and explains why nothing is missing and no stale row wins. A table is
read again if its rows may have changed without a trace in the binlog, at a limited pace, and so is a range of
its keys on request.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Container, Set
from dataclasses import dataclass, replace
from typing import Final

from metaq.errors import CommandError
from metaq.pipelines.binlog_sync.coordinates import Coordinates, Position
from metaq.pipelines.binlog_sync.envelope import SNAPSHOT, RangeBarrier, SnapshotBarrier
from metaq.pipelines.binlog_sync.errors import Unsuitable
from metaq.pipelines.binlog_sync.pace import Pace
from metaq.pipelines.binlog_sync.reading.chunks import (
    Chunk,
    ChunkReader,
    KeyRange,
    NotYet,
    WholeTable,
)
from metaq.pipelines.binlog_sync.sequence import ChangeCounter, reading_begun
from metaq.pipelines.binlog_sync.tables import SyncedTable, SyncedTables, TableSelection
from metaq.pipelines.binlog_sync.writing.change_writer import ChangeWriter
from metaq.pipelines.binlog_sync.writing.state import Cursor, SyncState
from metaq.pipelines.remarks import REMARK

_log = logging.getLogger(__name__)

HELD_S_MAX: Final = 10.0
"""How long a chunk may wait with an open transaction, which blocks changes of its table's definition."""
LATER_S: Final = 1.0


@dataclass(slots=True)
class RangeReading:
    """A range of keys that is read again."""

    table: str
    keys: KeyRange
    cursor: Cursor
    done: Callable[[], None]
    """Called when the range is sent, or cannot be read."""


class Snapshot:
    """The tables that are still to be read as a whole, and the chunk that waits to be sent."""

    def __init__(
        self,
        chunks: ChunkReader,
        selection: TableSelection,
        tables: SyncedTables,
        writer: ChangeWriter,
        counter: ChangeCounter,
        state: SyncState,
        *,
        rows_per_second: int = 0,
        interval_s: float = 0.0,
    ) -> None:
        """`rows_per_second` limits how fast tables are read again (0: no limit), `interval_s` how often one
        table is, unless a statement or a request demands it."""
        self._chunks = chunks
        self._selection = selection
        self._tables = tables
        self._writer = writer
        self._counter = counter
        self._state = state
        self._pace = Pace(rows_per_second)
        self._reading = max((one.cursor.reading for one in state.tables.values() if one.cursor), default=0)
        self._interval_s = interval_s
        self._pending: deque[str] = deque()
        self._ranges: deque[RangeReading] = deque()
        self._due: dict[str, float] = {}
        """When a table may be read, for tables that must wait."""
        self._begun_at: dict[str, float] = {}
        """When a table was last read again because rows had changed."""
        self._estimates: dict[str, int] = {}
        self._chunk: Chunk | None = None
        self._chunk_range: RangeReading | None = None
        """The range that the waiting chunk belongs to."""
        self._chunk_read_at = 0.0
        self.sent_at: Coordinates | None = None
        """The position of the last chunk that was sent: everything before it was put."""

    @property
    def pending(self) -> tuple[str, ...]:
        """The names of the tables whose snapshot is not done."""
        return tuple(self._pending)

    @property
    def rereading(self) -> dict[str, int]:
        """The estimated number of rows of each table that is being read again."""
        return {name: self._estimates[name] for name in self._pending if name in self._estimates}

    @property
    def is_done(self) -> bool:
        return not self._pending and not self._ranges

    def add(self, table: SyncedTable) -> None:
        """Continues the snapshot of a table at its cursor."""
        if table.full_name not in self._pending:
            self._pending.append(table.full_name)

    def restart(self, table: SyncedTable, reason: str) -> None:
        """Reads a table again from its first row, and says so with the number of rows."""
        rows = self._announce(table, reason, logging.WARNING)
        self._tables.set_cursor(table, Cursor("", table.definition.key, reading=self._new_reading()))
        if self._is_chunk_of(table):
            self._drop_chunk()
        self._estimates[table.full_name] = rows
        self._due.pop(table.full_name, None)
        self.add(table)

    def mark_stale(self, table: SyncedTable, reason: str) -> None:
        """Reads a table again because rows have changed without a trace, but not more often than allowed."""
        cursor = table.cursor
        name = table.full_name
        if cursor is not None and not cursor.done:
            # If it is being read now, rows that were read before this change may be wrong.
            if (cursor.begun or self._is_chunk_of(table)) and not cursor.is_stale:
                self._tables.set_cursor(table, replace(cursor, is_stale=True))
            return
        self._tables.set_cursor(table, Cursor("", table.definition.key, reading=self._new_reading()))
        self._estimates[name] = self._announce(
            table, reason, logging.INFO if name in self._begun_at else logging.WARNING
        )
        self._defer(name)
        self.add(table)

    def read_range(self, table: SyncedTable, keys: KeyRange, done: Callable[[], None]) -> None:
        """Reads a range of keys again, before whole tables; calls `done` when that is sent."""
        _log.warning("%s will be read again where %s", table.full_name, keys, extra=REMARK)
        cursor = Cursor("", table.definition.key, reading=self._new_reading())
        self._ranges.append(RangeReading(table.full_name, keys, cursor, done))

    def leave_out(self, table: SyncedTable) -> None:
        """Ends the reading of a table that has become unsuitable. If it is ever taken back, even by another
        run, it is read from its first row, because changes of its rows are missing until then."""
        name = table.full_name
        if name in self._pending:
            self._pending.remove(name)
        self._estimates.pop(name, None)
        self._due.pop(name, None)
        if self._is_chunk_of(table):
            self._drop_chunk()
        if table.cursor is not None:
            self._tables.set_cursor(table, Cursor("", table.cursor.key, reading=self._new_reading()))

    def reset(self) -> None:
        """Drops the chunk that waits, because the binlog is read again from an earlier position."""
        # First the connection, because the server may not answer any more.
        self._chunks.close()
        self._drop_chunk()

    def discard_inexact(self, names: Container[tuple[str, str]], database: str) -> None:
        """Drops the chunk of a table that a statement changes, if it may be from either side of it."""
        chunk = self._chunk
        if (
            chunk is not None
            and not chunk.moment.is_exact
            and ((chunk.database, chunk.table) in names or chunk.database == database)
        ):
            self._drop_chunk()

    def undecided_chunk(self, table: SyncedTable, *, is_xa: bool) -> Chunk | None:
        """Returns the waiting chunk of a table if it may or may not include the changes that come now.

        This is never known for an XA transaction: even MariaDB writes its commit before the tables have it,
        and counts it as seen.
        """
        chunk = self._chunk
        if chunk is None or (chunk.moment.is_exact and not is_xa) or not self._is_chunk_of(table):
            return None
        if chunk.definition.key != table.definition.key:
            # The statement that changes the key comes before the chunk, so the chunk is read again.
            self._drop_chunk()
            return None
        return chunk

    def advance(self, coordinates: Coordinates, reached: Position, committed: Set[str]) -> bool:
        """Reads or sends the next chunk; returns False if there is none now, or the binlog must be read
        further first.

        `coordinates` is where the stream is, `reached` the last position between two transactions, and
        `committed` the ids of XA transactions that the tables must have. Raises CommandError, BinlogError,
        StreamLost, Stopped, MetaqError.
        """
        if self._chunk is None:
            if self._ranges:
                return self._pace.allows() and self._read_range(reached, committed)
            table = self._next_table()
            if table is None or not self._read(table, coordinates, reached, committed):
                return False
        if self._chunk is None:
            return True
        if coordinates.order < self._chunk.moment.high.order:
            is_long = time.monotonic() - self._chunk_read_at > HELD_S_MAX
            if is_long and isinstance(self._chunk, WholeTable):
                self._drop_chunk()
            return False
        self._send()
        return True

    def send_before(self, coordinates: Coordinates) -> None:
        """Sends the waiting chunk if it belongs before a transaction that begins at these coordinates."""
        if self._chunk is not None and self._chunk.moment.high.order <= coordinates.order:
            self._send()

    # Reading

    def _next_table(self) -> SyncedTable | None:
        """Returns the first table that may be read now."""
        now = time.monotonic()
        for name in self._pending:
            table = self._tables[name]
            if self._due.get(name, 0.0) > now:
                continue
            if table.cursor is None or not table.cursor.reading or self._pace.allows():
                return table
        return None

    def _read(
        self, table: SyncedTable, coordinates: Coordinates, reached: Position, committed: Set[str]
    ) -> bool:
        """Reads the next chunk of a table; returns False if that must wait."""
        self._due.pop(table.full_name, None)
        if not self._selection.selects(table.database, table.name):
            self.leave_out(table)
            return True
        try:
            chunk = self._chunks.read(table.database, table.name, table.cursor, reached, committed)
        except NotYet:
            _log.info("waiting for the server to commit the transactions of its binlog")
            return False
        except Unsuitable as reason:
            self._selection.refuse(table.database, table.name, str(reason))
            self.leave_out(table)
            return True
        if chunk is None:
            _log.warning("%s no longer exists; its snapshot ends", table.full_name, extra=REMARK)
            self._send_absence(table, reached.coordinates)
            self._finish(table, replace(table.cursor or Cursor("", ()), done=True, is_stale=False))
            return True
        if isinstance(chunk, WholeTable) and not chunk.is_near(coordinates):
            chunk.close()
            self._due[table.full_name] = time.monotonic() + LATER_S
            return False
        self._hold(chunk, None)
        return True

    def _read_range(self, reached: Position, committed: Set[str]) -> bool:
        reading = self._ranges[0]
        database, _, name = reading.table.partition(".")
        try:
            chunk = self._chunks.read(database, name, reading.cursor, reached, committed, reading.keys)
        except NotYet:
            return False
        except Unsuitable:
            chunk = None
        if chunk is None or chunk.definition.key[0] != reading.keys.column:
            _log.warning(
                "%s has changed; the range of its keys is not read again", reading.table, extra=REMARK
            )
            self._finish_range(reading)
            return True
        self._hold(chunk, reading)
        return True

    def _hold(self, chunk: Chunk, reading: RangeReading | None) -> None:
        self._chunk, self._chunk_range = chunk, reading
        self._chunk_read_at = time.monotonic()

    def _drop_chunk(self) -> None:
        if self._chunk is not None:
            self._chunk.close()
        self._chunk = self._chunk_range = None

    # Sending

    def _send(self) -> None:
        """Sends the chunk. Everything before its position has been put already."""
        chunk, self._chunk = self._chunk, None
        reading, self._chunk_range = self._chunk_range, None
        assert chunk is not None
        self.sent_at = chunk.moment.high
        # Barriers that are sent on the way get the number of the chunk.
        cursor = self._cursor_of(chunk) if reading is None else reading.cursor
        self._counter.begin(self._state.era, chunk.moment.high, cursor.reading)
        begun = reading_begun(self._state.era, chunk.moment.low, cursor.reading)
        table = self._tables.with_definition(chunk.database, chunk.table, chunk.definition)
        if reading is not None:
            self._send_range(table, chunk, reading, begun)
        else:
            self._send_part(table, chunk, cursor, begun)

    def _cursor_of(self, chunk: Chunk) -> Cursor:
        table = self._tables.get(f"{chunk.database}.{chunk.table}")
        return (table and table.cursor) or Cursor("", chunk.definition.key)

    def _send_part(self, table: SyncedTable, chunk: Chunk, cursor: Cursor, begun: str) -> None:
        """Sends a chunk of a whole table."""
        if not cursor.begun:
            cursor = replace(cursor, begun=begun)
            if cursor.reading:
                self._begun_at[table.full_name] = time.monotonic()
            self._send_barrier(table, SnapshotBarrier.BEGIN, cursor.begun)
        rows = self._send_rows(table, chunk)
        if cursor.reading:
            self._pace.spend(rows)
        cursor = replace(cursor, key=chunk.definition.key, last=chunk.last, done=chunk.is_last)
        if chunk.is_last:
            self._send_barrier(table, SnapshotBarrier.END, cursor.begun)
            self._finish(table, cursor)
        else:
            self._tables.set_cursor(table, cursor)

    def _send_absence(self, table: SyncedTable, coordinates: Coordinates) -> None:
        """Says that a table has no rows before these coordinates, because it does not exist any more.

        Its end may be a statement that was not understood. If it is one that the reader has not come to yet,
        rows that were inserted meanwhile have larger numbers.
        """
        cursor = table.cursor
        if cursor is None or not cursor.reading or not table.definition.columns:
            return
        # Rows that this reading has sent are gone, too.
        reading = self._new_reading()
        self._counter.begin(self._state.era, coordinates, reading)
        begun = reading_begun(self._state.era, coordinates, reading)
        self._send_barrier(table, SnapshotBarrier.BEGIN, begun)
        self._send_barrier(table, SnapshotBarrier.END, begun)

    def _send_range(self, table: SyncedTable, chunk: Chunk, reading: RangeReading, begun: str) -> None:
        cursor = replace(reading.cursor, begun=reading.cursor.begun or begun, last=chunk.last)
        reading.cursor = replace(cursor, key=chunk.definition.key)
        self._pace.spend(self._send_rows(table, chunk))
        if chunk.is_last:
            keys = reading.keys
            barrier = RangeBarrier(
                self._counter.current,
                table.database,
                table.name,
                keys.column,
                keys.first,
                keys.last,
                cursor.begun,
                self._writer.queue_count,
            )
            self._writer.send_barrier(barrier, table.full_name)
            self._finish_range(reading)

    def _send_rows(self, table: SyncedTable, chunk: Chunk) -> int:
        """Sends the rows of a chunk; returns their number."""
        number = self._counter.current
        count = 0
        for portion in chunk.portions():
            rows = list(portion)
            count += len(rows)
            changes = ((number, SNAPSHOT, row, None) for row in rows)
            self._writer.write(table.lanes, int(time.time()), changes)
        return count

    def _new_reading(self) -> int:
        """Returns a number that is larger than those of all readings before, even of killed runs."""
        self._reading = max(self._reading + 1, time.time_ns() // 1_000_000)
        return self._reading

    def _finish(self, table: SyncedTable, cursor: Cursor) -> None:
        name = table.full_name
        self._pending.remove(name)
        self._estimates.pop(name, None)
        if cursor.is_stale:
            self._tables.set_cursor(table, Cursor("", cursor.key, reading=self._new_reading()))
            self._defer(name)
            self._pending.append(name)
        else:
            self._tables.set_cursor(table, cursor)

    def _finish_range(self, reading: RangeReading) -> None:
        self._ranges.remove(reading)
        reading.done()

    def _defer(self, name: str) -> None:
        """Lets a table wait until it may be read again."""
        if name in self._begun_at:
            self._due[name] = self._begun_at[name] + self._interval_s

    def _announce(self, table: SyncedTable, reason: str, level: int) -> int:
        """Says that a table will be read again; returns the estimated number of its rows."""
        try:
            rows = self._chunks.estimate(table.database, table.name)
        except CommandError as error:
            _log.info("the number of rows of %s is unknown: %s", table.full_name, error)
            rows = 0
        _log.log(
            level,
            "%s will be read again, about %s rows: %s",
            table.full_name,
            f"{rows:,}",
            reason,
            extra=REMARK,
        )
        return rows

    def _send_barrier(self, table: SyncedTable, state: str, begun: str) -> None:
        barrier = SnapshotBarrier(
            self._counter.current, table.database, table.name, state, begun, self._writer.queue_count
        )
        self._writer.send_barrier(barrier, table.full_name)

    def _is_chunk_of(self, table: SyncedTable) -> bool:
        chunk = self._chunk
        return chunk is not None and (chunk.database, chunk.table) == (table.database, table.name)
