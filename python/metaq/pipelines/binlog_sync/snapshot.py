"""Sends the rows of whole tables, chunk by chunk, between the changes of the binlog.

`reading/chunks.py` reads the chunks and explains why nothing is missing and no stale row wins.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Container, Set
from dataclasses import replace

from metaq.pipelines.binlog_sync.coordinates import Coordinates, Position
from metaq.pipelines.binlog_sync.envelope import SNAPSHOT, SnapshotBarrier
from metaq.pipelines.binlog_sync.errors import Unsuitable
from metaq.pipelines.binlog_sync.reading.chunks import Chunk, ChunkReader, NotYet
from metaq.pipelines.binlog_sync.sequence import ChangeCounter, sequence_number
from metaq.pipelines.binlog_sync.tables import SyncedTable, SyncedTables, TableSelection
from metaq.pipelines.binlog_sync.writing.change_writer import ChangeWriter
from metaq.pipelines.binlog_sync.writing.state import Cursor, SyncState

_log = logging.getLogger(__name__)


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
    ) -> None:
        self._chunks = chunks
        self._selection = selection
        self._tables = tables
        self._writer = writer
        self._counter = counter
        self._state = state
        self._pending: deque[str] = deque()
        self._chunk: Chunk | None = None

    @property
    def pending(self) -> tuple[str, ...]:
        """The names of the tables whose snapshot is not done."""
        return tuple(self._pending)

    @property
    def is_done(self) -> bool:
        return not self._pending

    def add(self, table: SyncedTable) -> None:
        """Continues the snapshot of a table at its cursor."""
        if table.full_name not in self._pending:
            self._pending.append(table.full_name)

    def restart(self, table: SyncedTable) -> None:
        """Reads a table again from its first row."""
        self._tables.set_cursor(table, Cursor("", table.definition.key))
        if self._is_chunk_of(table):
            self._chunk = None
        self.add(table)

    def reset(self) -> None:
        """Drops the chunk that waits, because the binlog is read again from an earlier position."""
        self._chunk = None
        self._chunks.close()

    def discard_inexact(self, names: Container[tuple[str, str]], database: str) -> None:
        """Drops the chunk of a table that a statement changes, if it may be from either side of it."""
        chunk = self._chunk
        if (
            chunk is not None
            and not chunk.moment.is_exact
            and ((chunk.database, chunk.table) in names or chunk.database == database)
        ):
            self._chunk = None

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
            self._chunk = None
            return None
        return chunk

    def advance(self, coordinates: Coordinates, reached: Position, committed: Set[str]) -> bool:
        """Reads or sends the next chunk; returns False if the binlog must be read further first.

        `coordinates` is where the stream is, `reached` the last position between two transactions, and
        `committed` the ids of XA transactions that the tables must have. Raises CommandError, BinlogError,
        StreamLost, Stopped, MetaqError.
        """
        table = self._tables[self._pending[0]]
        if self._chunk is None:
            try:
                self._chunk = self._chunks.read(table.database, table.name, table.cursor, reached, committed)
            except NotYet:
                _log.info("waiting for the server to commit the transactions of its binlog")
                return False
            except Unsuitable as reason:
                self._selection.refuse(table.database, table.name, str(reason))
        if self._chunk is None:
            _log.warning("%s no longer exists or has become unsuitable; its snapshot ends", table.full_name)
            self._finish(table, replace(table.cursor or Cursor("", ()), done=True))
        elif coordinates.order < self._chunk.moment.high.order:
            return False
        else:
            self._send()
        return True

    def send_before(self, coordinates: Coordinates) -> None:
        """Sends the waiting chunk if it belongs before a transaction that begins at these coordinates."""
        if self._chunk is not None and self._chunk.moment.high.order <= coordinates.order:
            self._send()

    def _send(self) -> None:
        """Sends the chunk. Everything before its position has been put already."""
        chunk, self._chunk = self._chunk, None
        assert chunk is not None
        # Barriers that are sent on the way get the number of the chunk.
        self._counter.begin(self._state.era, chunk.moment.high)
        number = self._counter.current
        table = self._tables.with_definition(chunk.database, chunk.table, chunk.definition)
        cursor = table.cursor or Cursor("", chunk.definition.key)
        if not cursor.begun:
            cursor = replace(cursor, begun=sequence_number(self._state.era, chunk.moment.low, 0))
            self._send_barrier(table, SnapshotBarrier.BEGIN, cursor.begun)
        rows = ((number, SNAPSHOT, row) for row in chunk.remaining())
        self._writer.write(table.lanes, int(time.time()), rows)
        cursor = Cursor(cursor.begun, chunk.definition.key, chunk.last, chunk.is_last)
        if chunk.is_last:
            self._send_barrier(table, SnapshotBarrier.END, cursor.begun)
            self._finish(table, cursor)
        else:
            self._tables.set_cursor(table, cursor)

    def _finish(self, table: SyncedTable, cursor: Cursor) -> None:
        self._pending.popleft()
        self._tables.set_cursor(table, cursor)

    def _send_barrier(self, table: SyncedTable, state: str, begun: str) -> None:
        barrier = SnapshotBarrier(
            self._counter.current, table.database, table.name, state, begun, self._writer.queue_count
        )
        self._writer.send_barrier(barrier, table.full_name)

    def _is_chunk_of(self, table: SyncedTable) -> bool:
        chunk = self._chunk
        return chunk is not None and (chunk.database, chunk.table) == (table.database, table.name)
