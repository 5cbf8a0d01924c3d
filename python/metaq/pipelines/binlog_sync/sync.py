"""The loop: what the binlog brings and what is read from the tables, in one order, into the outbox."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from metaq.errors import CommandError, MetaqError
from metaq.pipelines import Progress, Report
from metaq.pipelines.binlog_sync import ddl, xa
from metaq.pipelines.binlog_sync.columns import Definition, Unsuitable
from metaq.pipelines.binlog_sync.config import BinlogConfig
from metaq.pipelines.binlog_sync.database import EXCLUDE, Server, Table
from metaq.pipelines.binlog_sync.gtids import gtids_of
from metaq.pipelines.binlog_sync.messages import (
    DELETE,
    INSERT,
    SNAPSHOT,
    UPDATE,
    QueueChooser,
    barrier_message,
    encode_change,
    head,
)
from metaq.pipelines.binlog_sync.outbox import Lane, Outbox, Stopped
from metaq.pipelines.binlog_sync.progress import Boundaries, Position
from metaq.pipelines.binlog_sync.rows import Row, TableReader
from metaq.pipelines.binlog_sync.sequence import NOWHERE, ROW_MAX, BinlogError, sequence, transaction_prefix
from metaq.pipelines.binlog_sync.snapshot import Chunk, Chunks, NotYet
from metaq.pipelines.binlog_sync.state import Cursor, State, StateFile, TableState
from metaq.pipelines.binlog_sync.stream import Begin, Commit, Idle, Prepared, Query, Rows, Stream
from metaq.pipelines.binlog_sync.topic import as_queues
from metaq.pipelines.binlog_sync.xa import OpenTransactions

log = logging.getLogger(__name__)

REPORT_INTERVAL_S: Final = 1.0
XIDS_KEPT_MAX: Final = 1_000
READERS_KEPT_MAX: Final = 10_000
"""Each file of the binlog has readers of its own."""


@dataclass(slots=True)
class TableSync:
    """A table, the version of its definition and where its rows go."""

    database: str
    name: str
    schema: int
    definition: Definition
    choose: QueueChooser
    lanes: list[Lane]
    cursor: Cursor | None

    @property
    def full_name(self) -> str:
        return f"{self.database}.{self.name}"

    def state(self) -> TableState:
        return TableState(self.schema, self.definition, self.cursor)


def require_flavour(state: State, server: Server, path: Path) -> None:
    """Raises CommandError: a position of one server means nothing to the other."""
    if state.flavour != server.flavour.name:
        raise CommandError(
            f"{path} is of another kind of server, {state.flavour}, not {server.flavour.name}",
            hint="name another state.file and another topic, which begin with a snapshot",
        )


class Sync:
    """One run. Everything but acknowledgements happens in the thread that calls it."""

    def __init__(
        self,
        config: BinlogConfig,
        state: State,
        state_file: StateFile,
        outbox: Outbox,
        chunks: Chunks,
        report: Report,
        stop: threading.Event,
        skipped: set[str],
        *,
        lowers_names: bool = False,
    ) -> None:
        self._config = config
        self._state = state
        self._state_file = state_file
        self._outbox = outbox
        self._chunks = chunks
        self._report = report
        self._stop = stop
        self._skipped = skipped
        """Selected tables that are not suitable."""
        self._lowers_names = lowers_names
        self._queues = as_queues(config.topic, state.queues)
        self._boundaries = Boundaries(state)
        self._gtids = gtids_of(state.flavour, state.gtid)
        self.flavour = state.flavour
        self.position = Position(state.place, state.gtid)
        """Where the binlog is read on from when the connection is lost."""
        self._reached = self.position
        """The same but for XA transactions that are open: behind what was read last."""
        self._open = OpenTransactions(config.buffer_bytes)
        self._xa_committed: dict[str, None] = {}
        """The last ones, which tables may not have yet."""
        self._tables: dict[str, TableSync] = {}
        self._by_reader: dict[TableReader, TableSync] = {}
        self._pending: deque[str] = deque()
        """Tables whose snapshot is not done."""
        self._chunk: Chunk | None = None
        self._in_transaction = False
        self._gtid = ""
        self._prefix = transaction_prefix(state.era, state.place)
        self._row = 0
        self._committed = 0
        self._is_idle = False
        self._next_save = self._next_report = 0.0
        self._reported = (time.monotonic(), 0)
        self.progress = Progress()

    # Its beginning and its end

    def register(self, tables: Iterable[Table]) -> None:
        """Tells of every table in every queue, and notes which of them are to be read as a whole."""
        for table in tables:
            known = self._state.tables.get(str(table))
            if known is None:
                cursor = Cursor("", table.definition.key) if self._config.snapshot else None
                known = TableState(1, table.definition, cursor)
            elif not known.definition.columns:
                # Renamed, and the run ended before a row or a chunk told what it looks like.
                known = TableState(known.schema + 1, table.definition, known.cursor)
            sync = self._table(table.database, table.name, known)
            self._tell_schema(sync)
            if sync.cursor is not None and not sync.cursor.done:
                self._pending.append(sync.full_name)
        for name, known in self._state.tables.items():
            if name not in self._tables:
                database, _, table_name = name.partition(".")
                self._table(database, table_name, known)
        self._boundaries.passed(self._outbox.put_count, self.position)

    def queues_changed(self) -> None:
        """The topic has more queues than before, so rows may change theirs from here on."""
        self._barrier("queues", "", self._prefix + "00000000", {"queues": len(self._queues)})

    def finish(self, timeout_s: float) -> None:
        """Waits for acknowledgements and keeps how far they reach."""
        with contextlib.suppress(MetaqError, Stopped):
            self._outbox.wait_all(timeout_s)
        self._save()
        self._tell("stopped")

    # The binlog

    def follow(self, stream: Stream) -> None:
        """Until it is to stop; raises StreamLost, MetaqError, Stopped."""
        for item in stream.items():
            self._is_idle = False
            if isinstance(item, Rows):
                self._rows(item)
            elif isinstance(item, Begin):
                self._begin(item)
            elif isinstance(item, Commit):
                self._passed(stream)
            elif isinstance(item, Query):
                self._query(item, stream)
            elif isinstance(item, Prepared):
                self._xa_prepared(item, stream)
            elif isinstance(item, Idle):
                self._is_idle = True
            self._committed = stream.committed
            # Not between the beginning of a statement and itself: the stream may be behind it already.
            if self._pending and not self._in_transaction and not isinstance(item, Begin):
                self._go_on_with_snapshot(stream)
            self._tick()
            if self._stop.is_set():
                return

    def lost(self) -> None:
        """The stream will be opened anew, at the last place between two transactions."""
        self._in_transaction = False
        self._chunk = None
        self._chunks.close()
        self._by_reader.clear()
        self._open.clear()
        self._reached = self.position
        self._gtids = gtids_of(self.flavour, self.position.gtid)

    def require_era(self, server: Server) -> None:
        """Where another server answers, its files are of another era, which is kept before it is used.

        Raises CommandError where its GTIDs are not those of the state.
        """
        require_flavour(self._state, server, self._state_file.path)
        self._lowers_names = server.lowers_names
        if server.identity == self._state.server:
            return
        log.warning("another server answers: %s, it was %s", server.identity, self._state.server)
        self._outbox.wait_all()
        self._state.server = server.identity
        self._state.era = max(self._state.era + 1, int(time.time()))
        self.position = self._reached = Position(NOWHERE, self.position.gtid)
        self._boundaries.passed(self._outbox.put_count, self.position)
        self._save(always=True)

    def _begin(self, item: Begin) -> None:
        if self._chunk is not None and self._chunk.moment.high.order <= item.place.order:
            # Its place is before this transaction, which the reader did not know until now.
            self._send_chunk()
        if self._open.is_preparing:
            raise BinlogError(f"the binlog has an XA transaction before {item.place} without an end")
        self._prefix = transaction_prefix(self._state.era, item.place)
        self._row = 0
        self._gtid = item.gtid
        self._in_transaction = not item.stands_alone
        if item.is_xa:
            self._open.begin(self._reached)

    def _passed(self, stream: Stream) -> None:
        """A transaction is over."""
        self._in_transaction = False
        if self._gtid:
            self._gtids.passed(self._gtid)
        if self._row > ROW_MAX:
            raise BinlogError(f"a transaction before {stream.place} has more than {ROW_MAX} rows")
        self._reached = Position(stream.place, str(self._gtids))
        self.position = self._open.oldest or self._reached
        self._boundaries.passed(self._outbox.put_count, self.position)

    def _rows(self, item: Rows, *, is_xa: bool = False) -> None:
        if self._open.is_preparing:
            self._open.hold(item)
            return
        reader = item.reader
        if reader in self._by_reader:
            table = self._by_reader[reader]
        else:
            if len(self._by_reader) >= READERS_KEPT_MAX:
                self._by_reader.clear()
            table = self._defined(reader.database, reader.table, reader.definition)
            self._by_reader[reader] = table
        choose = table.choose
        chunk = self._undecided(table, is_xa=is_xa)
        by_queue: dict[int, list[bytes]] = {}
        for operation, row in self._changes(item, table.definition.key):
            if chunk is not None:
                chunk.take_out(row)
            self._row += 1
            change = encode_change(f"{self._prefix}{self._row:08x}", operation, row)
            queue = choose(row)
            if queue in by_queue:
                by_queue[queue].append(change)
            else:
                by_queue[queue] = [change]
        for queue, changes in by_queue.items():
            self._outbox.put(table.lanes[queue], item.committed, changes)

    def _changes(self, item: Rows, key: tuple[str, ...]) -> Iterable[tuple[str, Row]]:
        """What becomes of rows. A delete has the key alone; an update that changes the key is two changes."""
        images = item.reader.images(item.images)
        if item.operation == UPDATE:
            for before, after in zip(images, images, strict=True):
                if any(before[name] != after[name] for name in key):
                    yield DELETE, {name: before[name] for name in key}
                    yield INSERT, after
                else:
                    yield UPDATE, after
        elif item.operation == DELETE:
            for image in images:
                yield DELETE, {name: image[name] for name in key}
        else:
            for image in images:
                yield INSERT, image

    # Definitions

    def selects(self, database: str, table: str) -> bool:
        """Whether changes of a table are wanted."""
        return f"{database}.{table}" not in self._skipped and self._config.selects(database, table)

    def refuse(self, database: str, table: str, reason: str) -> None:
        """A selected table is not suitable after all; raises BinlogError unless such are to be skipped."""
        if self._config.unsuitable == "error":
            raise BinlogError(f"{database}.{table} cannot be synchronised: {reason}", hint=EXCLUDE)
        log.warning("%s.%s: %s; it is skipped", database, table, reason)

    def _defined(self, database: str, name: str, definition: Definition) -> TableSync:
        """The table with that definition; where it is a new one, every queue is told."""
        table = self._tables.get(f"{database}.{name}")
        if table is not None and table.definition == definition:
            return table
        version = 1 if table is None else table.schema + 1
        cursor = None if table is None else table.cursor
        table = self._table(database, name, TableState(version, definition, cursor))
        self._tell_schema(table)
        return table

    def _table(self, database: str, name: str, state: TableState) -> TableSync:
        tag = f"{database}.{name}"
        begin = head(database, name, state.schema)
        table = TableSync(
            database,
            name,
            state.schema,
            state.definition,
            QueueChooser(database, name, state.definition.key, len(self._queues)),
            [Lane(queue, tag, begin) for queue in self._queues],
            state.cursor,
        )
        if table.full_name in self._tables:
            # What was put into the lanes before must not be overtaken by what comes into the new ones.
            self._outbox.wait_all()
        self._tables[table.full_name] = table
        self._by_reader.clear()
        self._boundaries.changed(table.full_name, table.state())
        return table

    def _tell_schema(self, table: TableSync) -> None:
        told = {
            "database": table.database,
            "table": table.name,
            "schema": table.schema,
            **table.definition.document(),
        }
        self._barrier("schema", table.full_name, f"{self._prefix}{self._row:08x}", told)

    def _query(self, item: Query, stream: Stream) -> None:
        statement = ddl.parse(item.text, item.database)
        if self._lowers_names:
            statement = statement.lowered()
        kind = statement.kind
        if kind is ddl.Kind.BEGIN:
            self._in_transaction = True
            return
        if kind is ddl.Kind.XA:
            self._xa(item, stream)
            return
        if kind in (ddl.Kind.ROLLBACK, ddl.Kind.ROLLBACK_TO) and self._row:
            raise BinlogError(f"the binlog takes rows back before {stream.place}, which is not synchronised")
        if kind is ddl.Kind.ROWS:
            # Whatever database the session was in: it may name others, and triggers change yet others.
            session = f", by a session in {item.database}" if item.database else ""
            raise BinlogError(
                f"the binlog has a change of rows before {stream.place} as a statement{session}",
                hint="a session has set binlog_format otherwise; it must be ROW, also for other databases",
            )
        self._definition_changed(item, statement)
        if kind in (ddl.Kind.COMMIT, ddl.Kind.ROLLBACK) or not self._in_transaction:
            self._passed(stream)

    def _xa_prepared(self, item: Prepared, stream: Stream) -> None:
        if item.is_committed:
            for rows in self._open.take_preparing():
                self._rows(rows, is_xa=True)
        else:
            self._open.prepared(item.xid)
            self._xa_committed.pop(item.xid, None)
        self._passed(stream)

    def _xa(self, item: Query, stream: Stream) -> None:
        verb, xid = xa.parse(item.text)
        if verb not in ("COMMIT", "ROLLBACK"):
            return
        held = self._open.take(xid)
        if verb == "COMMIT":
            self._xa_committed[xid] = None
            if len(self._xa_committed) > XIDS_KEPT_MAX:
                del self._xa_committed[next(iter(self._xa_committed))]
            if held is None:
                self._read_all_again(xid, stream)
            for rows in held or ():
                self._rows(rows, is_xa=True)
        self._passed(stream)

    def _read_all_again(self, xid: str, stream: Stream) -> None:
        """Of what was prepared before the binlog was read nobody knows the rows, nor the tables."""
        if not self._config.snapshot:
            raise BinlogError(
                f"XA transaction {xid}, committed before {stream.place}, was prepared before the first place",
                hint="set snapshot.enabled = true, and tables are read again",
            )
        log.warning("XA transaction %s was prepared before the first place; tables are read again", xid)
        for table in self._tables.values():
            self._read_again(table)

    def _definition_changed(self, item: Query, statement: ddl.Statement) -> None:
        selects = self.selects
        names = [name for name in statement.tables if selects(*name)]
        tables = [".".join(name) for name in names]
        if not tables and not (statement.database and self._config.may_select_from(statement.database)):
            return
        chunk = self._chunk
        if (
            chunk is not None
            and not chunk.moment.is_exact
            and ((chunk.database, chunk.table) in names or chunk.database == statement.database)
        ):
            # Nobody knows on which side of the statement it was read.
            self._chunk = None
        self._row += 1
        told = {
            "database": statement.database or item.database,
            "action": str(statement.kind),
            "tables": tables,
            "names": names,
            "statement": item.text,
            "queues": len(self._queues),
        }
        self._barrier("ddl", "ddl", f"{self._prefix}{self._row:08x}", told)
        if ddl.changes_rows(item.text) and self._config.snapshot:
            for table in [self._tables[name] for name in tables if name in self._tables]:
                self._read_again(table)
        for database, name in (*(new for _, new in statement.renamed), *statement.exchanged):
            # What it holds was told under another name, or never.
            if selects(database, name) and self._config.snapshot:
                known = self._tables.get(f"{database}.{name}")
                self._read_again(known or self._table(database, name, TableState(0, Definition((), ()))))

    def _read_again(self, table: TableSync) -> None:
        table.cursor = Cursor("", table.definition.key)
        self._boundaries.changed(table.full_name, table.state())
        if self._chunk is not None and (self._chunk.database, self._chunk.table) == (
            table.database,
            table.name,
        ):
            self._chunk = None
        if table.full_name not in self._pending:
            self._pending.append(table.full_name)

    # The snapshot

    def _go_on_with_snapshot(self, stream: Stream) -> None:
        """Reads and sends chunks for as long as the binlog has nothing that comes before them."""
        while self._pending and not self._stop.is_set():
            table = self._tables[self._pending[0]]
            if self._chunk is None:
                try:
                    self._chunk = self._chunks.read(
                        table.database, table.name, table.cursor, self._reached, self._xa_committed.keys()
                    )
                except NotYet:
                    log.info("waiting for the server to commit what its binlog has")
                    return
                except Unsuitable as reason:
                    self.refuse(table.database, table.name, str(reason))
            if self._chunk is None:
                log.warning("%s is not there as it was; its snapshot is over", table.full_name)
                self._snapshot_done(table, replace(table.cursor or Cursor("", ()), done=True))
            elif stream.place.order < self._chunk.moment.high.order:
                return
            else:
                self._send_chunk()
            self._boundaries.passed(self._outbox.put_count, self.position)
            self._tick()

    def _undecided(self, table: TableSync, *, is_xa: bool) -> Chunk | None:
        """The chunk of that table which waits, where its rows may have the changes that come now, or not.

        Of an XA transaction that is never known: MariaDB, too, writes its commit before tables have it, and
        counts it as seen.
        """
        chunk = self._chunk
        if (
            chunk is None
            or (chunk.moment.is_exact and not is_xa)
            or (chunk.database, chunk.table) != (table.database, table.name)
        ):
            return None
        if chunk.definition.key != table.definition.key:
            # A statement that changes it comes before the chunk, which is read again.
            self._chunk = None
            return None
        return chunk

    def _send_chunk(self) -> None:
        """Everything before its place was put before."""
        chunk, self._chunk = self._chunk, None
        assert chunk is not None
        number = sequence(self._state.era, chunk.moment.high, 0)
        # Barriers on the way belong to the place of the chunk.
        self._prefix, self._row = number[:-8], 0
        table = self._defined(chunk.database, chunk.table, chunk.definition)
        cursor = table.cursor or Cursor("", chunk.definition.key)
        if not cursor.begun:
            cursor = replace(cursor, begun=sequence(self._state.era, chunk.moment.low, 0))
            told = self._snapshot_told(table, "begin", cursor.begun)
            self._barrier("snapshot", table.full_name, number, told)
        by_queue: dict[int, list[bytes]] = {}
        for row in chunk.left():
            by_queue.setdefault(table.choose(row), []).append(encode_change(number, SNAPSHOT, row))
        now = int(time.time())
        for queue, changes in by_queue.items():
            self._outbox.put(table.lanes[queue], now, changes)
        cursor = Cursor(cursor.begun, chunk.definition.key, chunk.last, chunk.is_last)
        if chunk.is_last:
            told = self._snapshot_told(table, "end", cursor.begun)
            self._barrier("snapshot", table.full_name, number, told)
            self._snapshot_done(table, cursor)
        else:
            table.cursor = cursor
            self._boundaries.changed(table.full_name, table.state())

    def _snapshot_done(self, table: TableSync, cursor: Cursor) -> None:
        self._pending.popleft()
        table.cursor = cursor
        self._boundaries.changed(table.full_name, table.state())

    def _snapshot_told(self, table: TableSync, state: str, begun: str) -> dict[str, object]:
        return {
            "database": table.database,
            "table": table.name,
            "state": state,
            "begun": begun,
            "queues": len(self._queues),
        }

    # What is told and kept

    def _barrier(self, kind: str, tag: str, number: str, told: Mapping[str, object]) -> None:
        self._outbox.send_barrier(
            self._queues, tag or kind, lambda queue: barrier_message(kind, number, {**told, "queue": queue})
        )

    def _tick(self) -> None:
        # Where nothing comes that would be put, nobody else asks.
        self._outbox.check()
        now = time.monotonic()
        if now >= self._next_save:
            self._next_save = now + self._config.save_interval_s
            self._save()
        if now >= self._next_report:
            self._next_report = now + REPORT_INTERVAL_S
            self._tell("snapshot" if self._pending else "following")

    def _save(self, *, always: bool = False) -> None:
        if self._boundaries.settle(self._outbox.lowest_open()) or always:
            self._state_file.save(self._state)

    def _tell(self, phase: str) -> None:
        now, rows = time.monotonic(), self._outbox.rows
        before, rows_before = self._reported
        progress = self.progress
        progress.phase = phase
        progress.rows_per_second = (rows - rows_before) / max(now - before, 0.001)
        self._reported = (now, rows)
        progress.rows, progress.bytes = rows, self._outbox.bytes
        if self._is_idle:
            progress.lag_s = 0.0
        elif self._committed:
            progress.lag_s = max(time.time() - self._committed, 0.0)
        progress.details = {
            "position": str(self._state.place),
            "gtid": self._state.gtid,
            "messages": self._outbox.messages,
            "retries": self._outbox.retries,
            "tables": len(self._tables),
            "snapshots_left": len(self._pending),
            "xa_open": len(self._open),
        }
        self._report(replace(progress))
