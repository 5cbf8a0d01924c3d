"""Statements that change definitions or rows of whole tables."""

from __future__ import annotations

import logging
from typing import Final

from metaq.pipelines.binlog_sync.coordinates import Coordinates
from metaq.pipelines.binlog_sync.envelope import DdlBarrier, Kind
from metaq.pipelines.binlog_sync.errors import BinlogError
from metaq.pipelines.binlog_sync.reading import ddl
from metaq.pipelines.binlog_sync.reading.binlog_items import Query
from metaq.pipelines.binlog_sync.sequence import ChangeCounter
from metaq.pipelines.binlog_sync.snapshot import Snapshot
from metaq.pipelines.binlog_sync.tables import SyncedTable, SyncedTables, TableSelection
from metaq.pipelines.binlog_sync.values.columns import Definition
from metaq.pipelines.binlog_sync.writing.change_writer import ChangeWriter
from metaq.pipelines.binlog_sync.writing.state import TableState

_log = logging.getLogger(__name__)

TEXT_MAX: Final = 200
"""How much of a statement a log line shows."""


class SchemaChanges:
    """Announces statements in every queue, and reads tables again whose rows the binlog does not have."""

    def __init__(
        self,
        selection: TableSelection,
        tables: SyncedTables,
        snapshot: Snapshot,
        writer: ChangeWriter,
        counter: ChangeCounter,
        *,
        may_read_tables: bool,
    ) -> None:
        """`may_read_tables` says whether snapshots are enabled."""
        self._selection = selection
        self._tables = tables
        self._snapshot = snapshot
        self._writer = writer
        self._counter = counter
        self._may_read_tables = may_read_tables

    def apply(self, query: Query, statement: ddl.Statement) -> None:
        """Handles a statement if it names a selected table; raises Stopped, MetaqError."""
        selects = self._selection.selects
        names = tuple(name for name in statement.tables if selects(*name))
        if not names and not (statement.database and self._selection.may_select_from(statement.database)):
            return
        self._snapshot.discard_inexact(names, statement.database)
        barrier = DdlBarrier(
            self._counter.next(),
            statement.database or query.database,
            str(statement.kind),
            names,
            query.text,
            self._writer.queue_count,
        )
        self._writer.send_barrier(barrier, Kind.DDL)
        if statement.kind is not ddl.Kind.TRUNCATE and ddl.empties(query.text):
            self._tables.note_dropped(names, statement.database)
        if not self._may_read_tables:
            return
        effects = ddl.row_effects(query.text)
        for name in names:
            if (table := self._tables.get(".".join(name))) is not None:
                self._apply_effects(table, effects, query.text)
        for name in (*(new for _, new in statement.renamed), *statement.exchanged):
            # Its rows were sent under another name, or never.
            if selects(*name):
                known = self._tables.get(".".join(name))
                table = known or self._tables.put(*name, TableState(0, Definition((), ())))
                self._snapshot.restart(table, _shortened(query.text))

    def _apply_effects(self, table: SyncedTable, effects: ddl.RowEffects, text: str) -> None:
        """Reads a table again if readers would otherwise have wrong values."""
        added = {name.lower() for name in effects.added}
        dropped = {name.lower() for name in effects.dropped}
        key = {name.lower() for name in table.definition.key}
        if (
            effects.changes_rows
            # Without a primary key, all columns together are the key.
            or (table.definition.is_keyless and (added or dropped))
            or key & dropped
            # A reader may have kept the old values of the column that had this name.
            or added & (dropped | set(table.dropped))
        ):
            self._tables.set_dropped(table, set())
            self._snapshot.restart(table, _shortened(text))
        elif dropped:
            self._tables.set_dropped(table, dropped | set(table.dropped))

    def read_all_again(self, xid: str, coordinates: Coordinates) -> None:
        """Reads all tables again after the commit of an XA transaction whose rows were prepared before the
        first position; raises BinlogError if snapshots are disabled."""
        if not self._may_read_tables:
            raise BinlogError(
                f"XA transaction {xid}, committed before {coordinates}, was prepared before the first"
                " position that was read",
                hint="set snapshot.enabled = true, and the tables are read again",
            )
        _log.warning(
            "XA transaction %s was prepared before the first position; reading all tables again", xid
        )
        for table in self._tables:
            self._snapshot.restart(table, f"XA transaction {xid}")


def _shortened(statement: str) -> str:
    text = " ".join(statement.split())
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"
