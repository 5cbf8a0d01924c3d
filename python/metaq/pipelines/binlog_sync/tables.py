"""The tables that a run synchronises: which ones, and the version of each one's definition."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from metaq.pipelines.binlog_sync.config import ERROR, BinlogConfig
from metaq.pipelines.binlog_sync.envelope import SchemaBarrier
from metaq.pipelines.binlog_sync.errors import BinlogError
from metaq.pipelines.binlog_sync.reading.database import EXCLUDE
from metaq.pipelines.binlog_sync.sequence import ChangeCounter
from metaq.pipelines.binlog_sync.values.columns import Definition
from metaq.pipelines.binlog_sync.values.rows import TableReader
from metaq.pipelines.binlog_sync.writing.change_writer import ChangeWriter, TableLanes
from metaq.pipelines.binlog_sync.writing.checkpoint import Checkpoint
from metaq.pipelines.binlog_sync.writing.state import Cursor, TableState
from metaq.pipelines.remarks import REMARK

_log = logging.getLogger(__name__)

READERS_MAX: Final = 10_000
"""The size of the cache of readers. Each file of the binlog brings new ones."""


class TableSelection:
    """Decides which tables are synchronised."""

    def __init__(self, config: BinlogConfig, left_out: Mapping[str, str]) -> None:
        """`left_out` has the reasons why selected tables are unsuitable."""
        self._config = config
        self._left_out = dict(left_out)

    @property
    def left_out(self) -> Mapping[str, str]:
        """The selected tables that are left out because they are unsuitable, and why."""
        return self._left_out

    def selects(self, database: str, table: str) -> bool:
        """Returns whether changes of a table are wanted."""
        return f"{database}.{table}" not in self._left_out and self._config.selects(database, table)

    def names(self, database: str, table: str) -> bool:
        """Returns whether the settings select a table, suitable or not."""
        return self._config.selects(database, table)

    def may_select_from(self, database: str) -> bool:
        """Returns whether any table of a database may be wanted."""
        return self._config.may_select_from(database)

    def refuse(self, database: str, table: str, reason: str) -> None:
        """Leaves out a table that is unsuitable; raises BinlogError if source.unsuitable is "error"."""
        if self._config.unsuitable == ERROR:
            raise BinlogError(f"{database}.{table} cannot be synchronised: {reason}", hint=EXCLUDE)
        name = f"{database}.{table}"
        if self._left_out.get(name) != reason:
            _log.warning("%s is left out: %s", name, reason, extra=REMARK)
        self._left_out[name] = reason

    def take_back(self, database: str, table: str) -> bool:
        """Ends the leaving out of a table; returns whether it was left out."""
        return self._left_out.pop(f"{database}.{table}", None) is not None

    def forget(self, database: str) -> None:
        """Ends the leaving out of the tables of a database that is gone."""
        for name in [name for name in self._left_out if name.startswith(f"{database}.")]:
            del self._left_out[name]


@dataclass(slots=True)
class SyncedTable:
    """A table, the version of its definition, and the lanes that its rows go into."""

    database: str
    name: str
    schema: int
    definition: Definition
    lanes: TableLanes
    cursor: Cursor | None
    dropped: tuple[str, ...] = ()
    """Columns that were dropped, in lower case."""

    @property
    def full_name(self) -> str:
        return f"{self.database}.{self.name}"

    def state(self) -> TableState:
        return TableState(self.schema, self.definition, self.cursor, self.dropped)


class SyncedTables:
    """All tables by full name. Every queue gets a new definition before the rows that have it."""

    def __init__(self, writer: ChangeWriter, checkpoint: Checkpoint, counter: ChangeCounter) -> None:
        self._writer = writer
        self._checkpoint = checkpoint
        self._counter = counter
        self._tables: dict[str, SyncedTable] = {}
        self._by_reader: dict[TableReader, SyncedTable] = {}
        self._dropped: set[str] = set()
        """Tables that were dropped, whose definitions readers may have forgotten."""

    def __len__(self) -> int:
        return len(self._tables)

    def __iter__(self) -> Iterator[SyncedTable]:
        return iter(self._tables.values())

    def __contains__(self, name: str) -> bool:
        return name in self._tables

    def __getitem__(self, name: str) -> SyncedTable:
        return self._tables[name]

    def get(self, name: str) -> SyncedTable | None:
        return self._tables.get(name)

    def put(self, database: str, name: str, state: TableState) -> SyncedTable:
        """Adds a table, or replaces it by another version."""
        lanes = self._writer.open_lanes(database, name, state.schema, state.definition.key)
        table = SyncedTable(
            database, name, state.schema, state.definition, lanes, state.cursor, state.dropped
        )
        if table.full_name in self._tables:
            # Changes in the new lanes must not overtake those in the old ones.
            self._writer.wait_all()
        self._tables[table.full_name] = table
        self._by_reader.clear()
        self._checkpoint.table_changed(table.full_name, table.state())
        return table

    def with_definition(self, database: str, name: str, definition: Definition) -> SyncedTable:
        """Returns the table with this definition; announces it if it is new."""
        table = self._tables.get(f"{database}.{name}")
        if table is not None and table.definition == definition:
            if table.full_name in self._dropped:
                self._dropped.discard(table.full_name)
                self.announce(table)
            return table
        version = 1 if table is None else table.schema + 1
        state = TableState(version, definition)
        if table is not None:
            state.cursor, state.dropped = table.cursor, table.dropped
        table = self.put(database, name, state)
        self.announce(table)
        return table

    def of_reader(self, reader: TableReader) -> SyncedTable:
        """Returns the table with the definition that the binlog has for it."""
        if reader in self._by_reader:
            return self._by_reader[reader]
        if len(self._by_reader) >= READERS_MAX:
            self._by_reader.clear()
        table = self.with_definition(reader.database, reader.table, reader.definition)
        self._by_reader[reader] = table
        return table

    def note_dropped(self, names: Collection[tuple[str, str]], database: str = "") -> None:
        """Lets the definitions of tables, or of a whole database, be sent again before their next rows."""
        self._dropped |= {
            table.full_name
            for table in self
            if (table.database, table.name) in names or table.database == database
        }
        self._by_reader.clear()

    def forget_readers(self) -> None:
        """Drops the readers of a stream that has ended."""
        self._by_reader.clear()

    def announce(self, table: SyncedTable) -> None:
        """Sends the definition of a table to every queue."""
        barrier = SchemaBarrier(
            self._counter.current, table.database, table.name, table.schema, table.definition
        )
        self._writer.send_barrier(barrier, table.full_name)

    def set_dropped(self, table: SyncedTable, columns: set[str]) -> None:
        """Records columns that readers may have old values for."""
        table.dropped = tuple(sorted(columns))
        self._checkpoint.table_changed(table.full_name, table.state())

    def set_cursor(self, table: SyncedTable, cursor: Cursor) -> None:
        """Records the progress of a table's snapshot."""
        table.cursor = cursor
        self._checkpoint.table_changed(table.full_name, table.state())
