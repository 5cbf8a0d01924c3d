"""Follows the binlog: puts its changes, and the rows of snapshots, into the outbox in one order."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from metaq.errors import MetaqError
from metaq.pipelines import Progress, Report
from metaq.pipelines.binlog_sync.cascades import CASCADES_HINT, Cascades, cascade_warnings
from metaq.pipelines.binlog_sync.config import FULL, REREAD, STOP, BinlogConfig
from metaq.pipelines.binlog_sync.coordinates import Position
from metaq.pipelines.binlog_sync.envelope import DELETE, INSERT, UPDATE, Kind, QueuesBarrier
from metaq.pipelines.binlog_sync.errors import BinlogError
from metaq.pipelines.binlog_sync.reading import ddl, xa
from metaq.pipelines.binlog_sync.reading.binlog_items import Begin, Commit, Idle, Prepared, Query, Rows
from metaq.pipelines.binlog_sync.reading.binlog_stream import BinlogStream
from metaq.pipelines.binlog_sync.reading.chunks import Chunk, ChunkReader
from metaq.pipelines.binlog_sync.reading.database import DatabaseServer, SourceTable
from metaq.pipelines.binlog_sync.reading.foreign_keys import ForeignKeys, Name
from metaq.pipelines.binlog_sync.reading.read_position import ReadPosition
from metaq.pipelines.binlog_sync.reading.xa import XaTransactions
from metaq.pipelines.binlog_sync.reporter import SyncReporter
from metaq.pipelines.binlog_sync.reread_requests import RereadRequests, TableRequests
from metaq.pipelines.binlog_sync.schema_changes import SchemaChanges, TableList, TableLookup
from metaq.pipelines.binlog_sync.sequence import ROW_MAX, ChangeCounter
from metaq.pipelines.binlog_sync.snapshot import Snapshot
from metaq.pipelines.binlog_sync.tables import SyncedTables, TableSelection
from metaq.pipelines.binlog_sync.values.rows import Row
from metaq.pipelines.binlog_sync.writing.change_writer import Change, ChangeWriter
from metaq.pipelines.binlog_sync.writing.checkpoint import Checkpoint
from metaq.pipelines.binlog_sync.writing.outbox import Outbox, Stopped
from metaq.pipelines.binlog_sync.writing.state import Cursor, StateFile, SyncState, TableState
from metaq.pipelines.binlog_sync.writing.topic import as_queues
from metaq.pipelines.remarks import REMARK

_log = logging.getLogger(__name__)


class Follower:
    """One run. Everything but acknowledgements happens in the thread that calls it."""

    def __init__(
        self,
        config: BinlogConfig,
        state: SyncState,
        state_file: StateFile,
        outbox: Outbox,
        chunks: ChunkReader,
        report: Report,
        stop: threading.Event,
        left_out: Mapping[str, str],
        *,
        lowers_names: bool = False,
        foreign_keys: Callable[[list[Name] | None], ForeignKeys] = lambda tables: ForeignKeys(),
        source_table: TableLookup = lambda database, name: None,
        source_tables: TableList = lambda: ([], {}),
    ) -> None:
        """`left_out` has the reasons why selected tables are unsuitable; `foreign_keys` reads the foreign
        keys that these tables, or all selected ones, have now, `source_table` and `source_tables` read
        definitions."""
        self._config = config
        self._outbox = outbox
        self._stop = stop
        self._lowers_names = lowers_names
        self._checkpoint = Checkpoint(state, state_file, outbox, config.save_interval_s)
        self._counter = ChangeCounter(state.era, state.coordinates)
        self._writer = ChangeWriter(outbox, as_queues(config.topic, state.queues))
        self._reporter = SyncReporter(report, outbox, state)
        self._xa = XaTransactions(config.buffer_bytes)
        self._position = ReadPosition(state.flavour, Position(state.coordinates, state.gtid))
        self.selection = TableSelection(config, left_out)
        self.tables = SyncedTables(self._writer, self._checkpoint, self._counter)
        self.snapshot = Snapshot(
            chunks,
            self.selection,
            self.tables,
            self._writer,
            self._counter,
            state,
            rows_per_second=config.reread_rows_per_second,
            interval_s=config.reread_interval_s,
        )
        self._requests = TableRequests(RereadRequests(config.state_file), self.tables, self.snapshot)
        self._schema_changes = SchemaChanges(
            self.selection,
            self.tables,
            self.snapshot,
            self._writer,
            self._counter,
            source_table,
            source_tables,
            may_read_tables=config.snapshot,
            unknown_statements=config.unknown_statements,
        )
        self._foreign_keys = foreign_keys
        self._cascades = Cascades()
        self._in_transaction = False
        self._has_rows = False
        """Whether the transaction has sent changes of rows."""
        self._gtid = ""

    @property
    def progress(self) -> Progress:
        return self._reporter.progress

    @property
    def flavour(self) -> str:
        return self._position.flavour

    @property
    def position(self) -> Position:
        """The position to read on from after a lost connection."""
        return self._position.restart

    def wants(self, database: str, table: str) -> bool:
        """Returns whether changes of a table must be read: to send them, or because of foreign keys."""
        return self.selection.selects(database, table) or self._cascades.watches(database, table)

    # Start and end

    def register(self, tables: Iterable[SourceTable]) -> None:
        """Announces every table in every queue, and starts the snapshots that are not done."""
        known_tables = self._checkpoint.state.tables
        for table in tables:
            known = known_tables.get(str(table))
            if known is None:
                cursor = Cursor("", table.definition.key) if self._config.snapshot else None
                known = TableState(1, table.definition, cursor)
            elif not known.definition.columns:
                # It was renamed, and the run ended before a row or a chunk revealed its definition.
                known = TableState(known.schema + 1, table.definition, known.cursor)
            synced = self.tables.put(table.database, table.name, known)
            self.tables.announce(synced)
            if synced.cursor is not None and not synced.cursor.done:
                self.snapshot.add(synced)
        for name, known in known_tables.items():
            if name not in self.tables:
                database, _, table_name = name.partition(".")
                put = self.tables.put(database, table_name, known)
                if name in self.selection.left_out and (put.cursor is None or put.cursor.done):
                    self.snapshot.leave_out(put)
        self._watch_foreign_keys()
        self._checkpoint.passed(self.position)

    def announce_queues(self) -> None:
        """Announces that the topic has more queues than before, so rows may change their queue."""
        barrier = QueuesBarrier(self._counter.current, self._writer.queue_count)
        self._writer.send_barrier(barrier, Kind.QUEUES)

    def finish(self, timeout_s: float) -> None:
        """Waits for acknowledgements, and saves how far they reach."""
        with contextlib.suppress(MetaqError, Stopped):
            self._outbox.wait_all(timeout_s)
        self._checkpoint.save()
        self._report("stopped")

    def disconnected(self) -> None:
        """Prepares for a new stream, which begins at `position`."""
        self._in_transaction = False
        self.snapshot.reset()
        self.tables.forget_readers()
        self._xa.clear()
        self._position.rewind()

    def reconnected(self, server: DatabaseServer, connection: Any) -> None:
        """Continues with the server that answers now.

        If it is another one, a new era begins, which is saved before it is used. Raises CommandError if its
        GTIDs are of another kind or if it lacks transactions that were read.
        """
        state = self._checkpoint.state
        state.require_flavour(server.flavour.name, self._checkpoint.path)
        self._lowers_names = server.lowers_names
        if server.identity == state.server:
            return
        self._checkpoint.wait_for_acknowledgements()
        server.flavour.require_known(connection, self._config.source, state.gtid)
        state.begin_era(server.identity)
        self._position.move(Position(state.coordinates, state.gtid))
        self._checkpoint.passed(self.position)
        self._checkpoint.save(always=True)

    # The binlog

    def follow(self, stream: BinlogStream) -> None:
        """Follows a stream until the stop event is set; raises StreamLost, MetaqError, Stopped."""
        for item in stream.items():
            self._reporter.is_idle = isinstance(item, Idle)
            if isinstance(item, Rows):
                self._write_rows(item)
            elif isinstance(item, Begin):
                self._begin(item)
            elif isinstance(item, Commit):
                self._end_transaction(stream)
            elif isinstance(item, Query):
                self._query(item, stream)
            elif isinstance(item, Prepared):
                self._xa_prepared(item, stream)
            self._reporter.committed_s = stream.committed_s
            # Not between a begin and its statement: the stream may be after the statement already.
            if not self._in_transaction and not isinstance(item, Begin):
                self._advance_snapshot(stream)
            self._tick()
            if self._stop.is_set():
                return

    def _begin(self, item: Begin) -> None:
        # Only now is it known that the waiting chunk belongs before this transaction.
        self.snapshot.send_before(item.coordinates)
        self._reach_chunk()
        if self._xa.is_preparing:
            raise BinlogError(f"the binlog has an XA transaction without an end before {item.coordinates}")
        self._counter.begin(self._checkpoint.state.era, item.coordinates)
        self._gtid = item.gtid
        self._has_rows = False
        self._in_transaction = not item.stands_alone
        if item.is_xa:
            self._xa.begin(self._position.reached)

    def _end_transaction(self, stream: BinlogStream) -> None:
        self._in_transaction = False
        if self._counter.row > ROW_MAX:
            raise BinlogError(f"a transaction before {stream.coordinates} has more than {ROW_MAX} rows")
        self._position.passed(stream.coordinates, self._gtid, self._xa.oldest)
        self._checkpoint.passed(self.position)

    def _advance_snapshot(self, stream: BinlogStream) -> None:
        """Reads and sends chunks for as long as the binlog has nothing that comes before them."""
        while not self.snapshot.is_done and not self._stop.is_set():
            if not self.snapshot.advance(stream.coordinates, self._position.reached, self._xa.committed):
                return
            self._reach_chunk()
            self._checkpoint.passed(self.position)
            self._tick()

    def _reach_chunk(self) -> None:
        """Moves the position to the last chunk, so that the next one does not count as older."""
        if self.snapshot.sent_at is not None:
            self._position.reach(self.snapshot.sent_at)
            self.snapshot.sent_at = None

    def _write_rows(self, item: Rows, *, is_xa: bool = False) -> None:
        if self._xa.is_preparing:
            self._xa.hold(item)
            return
        reader = item.reader
        if self._cascades.watches(reader.database, reader.table):
            self._follow_cascades(item)
            if not self.selection.selects(reader.database, reader.table):
                return
        self._has_rows = True
        table = self.tables.of_reader(reader)
        if table.definition.is_keyless and item.operation != INSERT and self._config.snapshot:
            # Another row with the same values may be left.
            self.snapshot.mark_stale(table, "rows of a table without a primary key have changed")
        chunk = self.snapshot.undecided_chunk(table, is_xa=is_xa)
        changes = self._numbered(item, table.definition.key, chunk)
        self._writer.write(table.lanes, item.committed_s, changes)

    def _numbered(self, item: Rows, key: tuple[str, ...], chunk: Chunk | None) -> Iterator[Change]:
        next_number = self._counter.next
        is_full = self._config.row_image == FULL
        for operation, row, before in _changes(item, key):
            if chunk is not None:
                chunk.take_out(row)
            yield next_number(), operation, row, before if is_full else None

    # Foreign keys

    def _watch_foreign_keys(self, tables: list[Name] | None = None) -> None:
        """Reads the foreign keys of these tables, or of all, and does what source.cascades says; raises
        CommandError, BinlogError."""
        found = self._foreign_keys(tables)
        for text in cascade_warnings(found, self._config.cascades):
            if self._config.cascades == STOP:
                raise BinlogError(text, hint=CASCADES_HINT)
            _log.warning("%s", text, extra=REMARK)
        if self._config.cascades == REREAD:
            if tables is None:
                self._cascades.watch(found)
            else:
                self._cascades.update(found, tables)

    def _follow_cascades(self, item: Rows) -> None:
        for name in self._cascades.affected(item):
            if (table := self.tables.get(".".join(name))) is not None:
                parent = f"{item.reader.database}.{item.reader.table}"
                self.snapshot.mark_stale(table, f"a foreign key may have changed it with {parent}")

    def _foreign_keys_changed(self, statement: ddl.Statement, stream: BinlogStream) -> None:
        """Follows a statement that adds or removes foreign keys of selected tables."""
        names = [name for name in statement.tables if self.wants(*name)]
        is_dropped = statement.drops_foreign_key
        if not names or not (is_dropped or statement.changes_foreign_keys):
            return
        if is_dropped and stream.committed_s < self._cascades.read_s:
            # It was removed before the foreign keys were read, so nobody knows what it has done.
            for name in names:
                if (table := self.tables.get(".".join(name))) is not None:
                    self.snapshot.restart(table, "it has lost a foreign key that was not known")
        # A rename concerns the foreign keys of other tables too.
        selected = [name for name in names if self.selection.selects(*name)]
        self._watch_foreign_keys(None if statement.renamed else selected)
        stream.forget_unwanted()

    # Statements

    def _query(self, item: Query, stream: BinlogStream) -> None:
        statement = ddl.parse(item.text, item.database, item.dialect)
        if self._lowers_names:
            statement = statement.lowered()
        kind = statement.kind
        if kind is ddl.Kind.BEGIN:
            self._in_transaction = True
            return
        if kind is ddl.Kind.XA:
            self._xa_ended(item, stream)
            return
        # MariaDB logs one after the DROP TABLE of a failed CREATE OR REPLACE, which it does not undo.
        if kind in (ddl.Kind.ROLLBACK, ddl.Kind.ROLLBACK_TO) and self._has_rows:
            raise BinlogError(
                f"the binlog rolls rows back before {stream.coordinates}, which cannot be synchronised"
            )
        if kind is ddl.Kind.ROWS:
            # The database of the session does not matter: a statement may name others, and so may triggers.
            session = f", by a session in {item.database}" if item.database else ""
            raise BinlogError(
                f"the binlog has a change of rows before {stream.coordinates} as a statement{session}",
                hint="a session has set another binlog_format; it must be ROW, also for other databases",
            )
        self._schema_changes.apply(item, statement)
        if kind is ddl.Kind.UNKNOWN:
            # It may have added some, or renamed their tables.
            self._watch_foreign_keys()
            stream.forget_unwanted()
        elif kind is ddl.Kind.TABLE:
            self._foreign_keys_changed(statement, stream)
        if kind in (ddl.Kind.COMMIT, ddl.Kind.ROLLBACK) or not self._in_transaction:
            self._end_transaction(stream)

    def _xa_prepared(self, item: Prepared, stream: BinlogStream) -> None:
        if item.is_committed:
            for rows in self._xa.commit_in_one_phase():
                self._write_rows(rows, is_xa=True)
        else:
            self._xa.prepare(item.xid)
        self._end_transaction(stream)

    def _xa_ended(self, item: Query, stream: BinlogStream) -> None:
        verb, xid = xa.parse(item.text)
        if verb == "COMMIT":
            held = self._xa.commit(xid)
            if held is None:
                self._schema_changes.read_all_again(xid, stream.coordinates)
            for rows in held or ():
                self._write_rows(rows, is_xa=True)
        elif verb == "ROLLBACK":
            self._xa.roll_back(xid)
        else:
            return
        self._end_transaction(stream)

    # Saving and reporting

    def _tick(self) -> None:
        # A source that sends nothing puts nothing, so nobody else would see a failed send.
        self._outbox.check()
        self._checkpoint.save_if_due()
        self._requests.take()
        if self._reporter.is_due():
            self._report("following" if self.snapshot.is_done else "snapshot")

    def _report(self, phase: str) -> None:
        self._reporter.report(
            phase,
            tables=len(self.tables),
            snapshots_left=len(self.snapshot.pending),
            rereading=self.snapshot.rereading,
            xa_open=len(self._xa),
            left_out=self.selection.left_out,
        )


def _changes(item: Rows, key: tuple[str, ...]) -> Iterator[tuple[str, Row, Row | None]]:
    """Yields operations, rows, and the rows before. A delete has only the key; an update of the key becomes
    two changes."""
    images = item.reader.images(item.images)
    if item.operation == UPDATE:
        for before, after in zip(images, images, strict=True):
            if any(before[name] != after[name] for name in key):
                yield DELETE, {name: before[name] for name in key}, before
                yield INSERT, after, None
            else:
                yield UPDATE, after, before
    elif item.operation == DELETE:
        for image in images:
            yield DELETE, {name: image[name] for name in key}, image
    else:
        for image in images:
            yield INSERT, image, None
