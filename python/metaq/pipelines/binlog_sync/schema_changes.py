"""Statements that change definitions or rows of whole tables."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from metaq.counts import counted
from metaq.pipelines.binlog_sync.config import STOP
from metaq.pipelines.binlog_sync.coordinates import Coordinates
from metaq.pipelines.binlog_sync.envelope import DdlBarrier, Kind
from metaq.pipelines.binlog_sync.errors import BinlogError, Unsuitable
from metaq.pipelines.binlog_sync.reading import ddl
from metaq.pipelines.binlog_sync.reading.binlog_items import Query
from metaq.pipelines.binlog_sync.reading.database import SourceTable
from metaq.pipelines.binlog_sync.sequence import ChangeCounter
from metaq.pipelines.binlog_sync.snapshot import Snapshot
from metaq.pipelines.binlog_sync.tables import SyncedTable, SyncedTables, TableSelection
from metaq.pipelines.binlog_sync.values.columns import Definition
from metaq.pipelines.binlog_sync.writing.change_writer import ChangeWriter
from metaq.pipelines.binlog_sync.writing.state import TableState
from metaq.pipelines.remarks import REMARK

_log = logging.getLogger(__name__)

NAMES_MAX: Final = 10
"""How many tables a warning names."""
_STOP_HINT: Final = (
    'set source.unknown_statements = "reread", and the next run reads these tables again and goes on'
)

TableLookup = Callable[[str, str], SourceTable | None]
"""Returns a table as it is now at the source, or None; raises Unsuitable, CommandError."""
TableList = Callable[[], tuple[list[SourceTable], dict[str, str]]]
"""Returns all selected tables, and the reasons why others are unsuitable; raises CommandError."""


class SchemaChanges:
    """Announces statements in every queue, and reads tables again whose rows the binlog does not have."""

    def __init__(
        self,
        selection: TableSelection,
        tables: SyncedTables,
        snapshot: Snapshot,
        writer: ChangeWriter,
        counter: ChangeCounter,
        source_table: TableLookup,
        source_tables: TableList,
        *,
        may_read_tables: bool,
        unknown_statements: str,
    ) -> None:
        """`may_read_tables` says whether snapshots are enabled, `unknown_statements` what to do about
        statements that are not understood."""
        self._selection = selection
        self._tables = tables
        self._snapshot = snapshot
        self._writer = writer
        self._counter = counter
        self._source_table = source_table
        self._source_tables = source_tables
        self._may_read_tables = may_read_tables
        self._unknown_statements = unknown_statements

    def apply(self, query: Query, statement: ddl.Statement) -> None:
        """Handles a statement that may change a selected table; raises Stopped, MetaqError."""
        if statement.kind is ddl.Kind.UNKNOWN:
            self._distrust(query, statement)
            return
        found = self._looked_up(query, statement)
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
            statement.empties,
            tuple(name for name in statement.gone if name in names),
        )
        self._writer.send_barrier(barrier, Kind.DDL)
        if statement.kind is not ddl.Kind.TRUNCATE and statement.empties:
            self._tables.note_dropped(names, statement.database)
        for one in found:
            self._announce(one, statement, query)
        if not self._may_read_tables:
            return
        text = ddl.shortened(query.text, query.dialect)
        # Their rows were sent under another name, or never.
        others = dict.fromkeys((*(new for _, new in statement.renamed), *statement.exchanged))
        for name in names:
            if name not in others and (table := self._tables.get(".".join(name))) is not None:
                self._apply_effects(table, statement.effects, text)
        # A view may be renamed, too.
        there = {(one.database, one.name) for one in found}
        for name in others:
            if name in names and name in there:
                self._snapshot.restart(self._put(*name), text)

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
            self._snapshot.restart(table, text)
        elif dropped:
            self._tables.set_dropped(table, dropped | set(table.dropped))

    def _put(self, database: str, name: str) -> SyncedTable:
        """Returns a table; adds it, without a definition, if it is new."""
        known = self._tables.get(f"{database}.{name}")
        return known or self._tables.put(database, name, TableState(0, Definition((), ())))

    # Tables that are new, unsuitable, or suitable again

    def _looked_up(self, query: Query, statement: ddl.Statement) -> list[SourceTable]:
        """Asks the source for the tables that a statement may have created, or made suitable or not; returns
        those that are suitable."""
        if statement.drops:
            for name in statement.tables:
                self._selection.take_back(*name)
            if statement.database:
                self._selection.forget(statement.database)
            return []
        if statement.kind is not ddl.Kind.TABLE:
            return []
        found = []
        for name in dict.fromkeys(statement.tables):
            if not self._selection.names(*name):
                continue
            try:
                table = self._source_table(*name)
            except Unsuitable as reason:
                self._leave_out(*name, str(reason))
                continue
            is_back = self._selection.take_back(*name)
            if table is None:
                continue
            found.append(table)
            if is_back and self._may_read_tables:
                self._snapshot.restart(self._put(*name), ddl.shortened(query.text, query.dialect))
        return found

    def _leave_out(self, database: str, name: str, reason: str) -> None:
        self._selection.refuse(database, name, reason)
        if (known := self._tables.get(f"{database}.{name}")) is not None:
            self._snapshot.leave_out(known)

    def _announce(self, table: SourceTable, statement: ddl.Statement, query: Query) -> None:
        """Announces a table that a statement has created, although it may have no rows."""
        name = (table.database, table.name)
        if self._may_read_tables and statement.is_filled and name in statement.created:
            # Its first rows are not in the binlog if the statement was not logged by row.
            self._snapshot.restart(self._put(*name), ddl.shortened(query.text, query.dialect))
        elif name in statement.created or str(table) not in self._tables:
            self._tables.with_definition(*name, table.definition)

    # Statements that are not understood

    def _distrust(self, query: Query, statement: ddl.Statement) -> None:
        """Reads every table again that a statement may have changed or created, or stops."""

        def may_change(database: str, name: str) -> bool:
            return statement.may_change(database, name, query.database)

        touched = [
            table
            for table in self._tables
            if self._selection.selects(table.database, table.name) and may_change(table.database, table.name)
        ]
        left_out = self._selection.left_out
        known, faults = self._source_tables()
        new = [
            one
            for one in known
            if (str(one) not in self._tables or str(one) in left_out) and may_change(one.database, one.name)
        ]
        unsuitable = {
            name: reason
            for name, reason in faults.items()
            if name not in left_out and may_change(*_parts(name))
        }
        if statement.is_confined and not touched and not new and not unsuitable:
            return
        names = [table.full_name for table in touched] + [*map(str, new), *unsuitable]
        named = ", ".join(names[:NAMES_MAX]) or "tables that are not known yet"
        if len(names) > NAMES_MAX:
            named += f" and {counted(len(names) - NAMES_MAX, 'more table')}"
        text = ddl.shortened(query.text, query.dialect)
        warning = f"a statement was not understood ({statement.fault}); it may have changed {named}: {text}"
        if self._unknown_statements == STOP:
            raise BinlogError(warning, hint=_STOP_HINT)
        _log.warning("%s", warning, extra=REMARK)
        for name, reason in unsuitable.items():
            self._leave_out(*_parts(name), reason)
        for table in touched:
            if table.full_name not in unsuitable:
                self._snapshot.discard_inexact([(table.database, table.name)], "")
                self._tables.set_dropped(table, set())
                self._snapshot.mark_stale(table, text)
        for one in new:
            self._selection.take_back(one.database, one.name)
            added = self._tables.with_definition(one.database, one.name, one.definition)
            if self._may_read_tables:
                self._snapshot.restart(added, text)

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
            "XA transaction %s was prepared before the first position; reading all tables again",
            xid,
            extra=REMARK,
        )
        for table in self._tables:
            self._snapshot.restart(table, f"XA transaction {xid}")


def _parts(name: str) -> tuple[str, str]:
    database, _, table = name.partition(".")
    return database, table
