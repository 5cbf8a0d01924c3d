"""The binlog as a stream of what matters here, read through mysql-replication as a replica reads it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import (
    HeartbeatLogEvent,
    MariadbGtidEvent,
    NotImplementedEvent,
    QueryEvent,
    RotateEvent,
    XAPrepareEvent,
    XidEvent,
)
from pymysqlreplication.row_event import DeleteRowsEvent, TableMapEvent, UpdateRowsEvent, WriteRowsEvent

from metaq.pipelines.binlog.columns import Unsuitable
from metaq.pipelines.binlog.messages import DELETE, INSERT, UPDATE
from metaq.pipelines.binlog.rows import TableReader
from metaq.pipelines.binlog.sequence import BinlogError, Place
from metaq.pipelines.binlog.source import Source

HEARTBEAT_S: Final = 0.5
SILENCE_MAX_S: Final = 30
"""A server that says nothing for so long, not even that it is there, is lost."""
_STANDALONE: Final = 1
"""Of the flags of a GTID event: one statement that no commit follows."""
_IGNORABLE: Final = 0x80
"""Of the flags of an event's header: who does not know it may pass over it."""
_HARMLESS: Final = frozenset((5, 13, 14, 28, 29, 160, 161, 163))
"""Types of events that say nothing of rows: variables of statements, annotations, checkpoints."""
_PURGED: Final = 1236
_SEQUENCE: Final = "next_not_cached_value"
"""A column of sequences, which the server keeps as tables of their own kind."""

_OPERATIONS: Final = {WriteRowsEvent: INSERT, UpdateRowsEvent: UPDATE, DeleteRowsEvent: DELETE}


class StreamLost(Exception):
    """The connection is gone; the binlog can be read on from the last place."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction, or a statement of its own, begins."""

    place: Place
    gtid: str
    stands_alone: bool


@dataclass(frozen=True, slots=True)
class Rows:
    """Changes of rows of one table."""

    reader: TableReader
    operation: str
    event: Any
    committed: int


@dataclass(frozen=True, slots=True)
class Query:
    """A statement."""

    database: str
    text: str


@dataclass(frozen=True, slots=True)
class Commit:
    """The transaction is over."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing more is there now."""


Item = Begin | Rows | Query | Commit | Idle


class Stream:
    """Reads from a GTID position on. `place` is behind what was read last."""

    def __init__(
        self,
        source: Source,
        server_id: int,
        gtid: str,
        place: Place,
        *,
        selects: Callable[[str, str], bool],
        refuse: Callable[[str, str, str], None],
    ) -> None:
        """`refuse` gets database, table and reason where a selected one is not suitable; it may raise."""
        self._source = source
        self._selects = selects
        self._refuse = refuse
        self.place = place
        self.committed = 0
        """When the newest event was written, in seconds."""
        self._readers: dict[int, TableReader | None] = {}
        """By the id of the table; None where it is not selected."""
        self._maps: dict[int, Any] = {}
        settings = source.settings()
        settings["read_timeout"] = SILENCE_MAX_S
        self._opened = 0
        self._reader = BinLogStreamReader(
            connection_settings=settings,
            ctl_connection_settings=source.settings(),
            server_id=server_id,
            blocking=True,
            auto_position=gtid,
            is_mariadb=True,
            # A table map that was seen is not read again: ids change with definitions. See `_rotate`.
            freeze_schema=True,
            slave_heartbeat=HEARTBEAT_S,
            filter_non_implemented_events=False,
            enable_logging=False,
            pymysql_wrapper=self._connect,
            only_events=[
                MariadbGtidEvent,
                TableMapEvent,
                WriteRowsEvent,
                UpdateRowsEvent,
                DeleteRowsEvent,
                QueryEvent,
                XidEvent,
                XAPrepareEvent,
                RotateEvent,
                HeartbeatLogEvent,
                NotImplementedEvent,
            ],
        )

    def close(self) -> None:
        # Not the reader's own, which would wait for a server that may be gone.
        for name in ("_stream_connection", "_ctl_connection"):
            connection = getattr(self._reader, name, None)
            if connection is not None:
                connection._force_close()

    def items(self) -> Iterator[Item]:
        """Never ends by itself; raises StreamLost, BinlogError, CommandError."""
        while True:
            try:
                event = self._reader.fetchone()
            except pymysql.MySQLError as error:
                raise self._told(error) from None
            except OSError as error:
                raise StreamLost(str(error)) from None
            except (AssertionError, LookupError, ValueError, TypeError, struct.error) as error:
                raise BinlogError(f"the binlog cannot be read behind {self.place}: {error}") from error
            if event is None:
                raise StreamLost("the server has ended the stream")
            item = self._item(event)
            if item is not None:
                yield item

    # Inside

    def _connect(self, **settings: Any) -> Any:
        # The library would connect again by itself, and begin where it began at first.
        if self._opened == 2:
            raise StreamLost("the connection to the server was lost")
        connection = pymysql.connect(**settings)
        self._opened += 1
        return connection

    def _told(self, error: pymysql.MySQLError) -> Exception:
        failure = self._source.told(error)
        if failure.retriable:
            return StreamLost(str(failure))
        if error.args and error.args[0] == _PURGED:
            failure.hint = (
                "the binlog that is needed is not there any more;"
                " move the state file away, and the next run begins with a new snapshot"
            )
        return failure

    def _item(self, event: Any) -> Item | None:
        kind = type(event)
        packet = event.packet
        if kind is RotateEvent:
            self._rotate(event)
            return None
        if packet.log_pos:
            self.place = Place(self.place.file, packet.log_pos)
        if kind is HeartbeatLogEvent:
            return Idle()
        if packet.timestamp:
            self.committed = packet.timestamp
        if kind in _OPERATIONS:
            reader = self._table_reader(event.table_id)
            return None if reader is None else Rows(reader, _OPERATIONS[kind], event, packet.timestamp)
        if kind is MariadbGtidEvent:
            begin = Place(self.place.file, packet.log_pos - packet.event_size)
            return Begin(begin, event.gtid, bool(event.flags & _STANDALONE))
        if kind is XidEvent:
            return Commit()
        if kind is TableMapEvent:
            self._maps[event.table_id] = event
            return None
        if kind is QueryEvent:
            return Query(event.schema.decode("utf-8", "replace"), event.query)
        if kind is XAPrepareEvent:
            raise BinlogError("the binlog has an XA transaction, which is not synchronised")
        self._require_harmless(packet)
        return None

    def _rotate(self, event: Any) -> None:
        """Another file: its server may have been started anew, and then ids of tables mean others."""
        if event.next_binlog != self.place.file:
            self._reader.table_map.clear()
            self._maps.clear()
            self._readers.clear()
        self.place = Place(event.next_binlog, event.position)

    def _table_reader(self, table_id: int) -> TableReader | None:
        if table_id not in self._readers:
            table_map = self._maps.pop(table_id, None)
            if table_map is None:
                raise BinlogError("the binlog has rows of a table that it does not describe")
            self._readers[table_id] = self._make_reader(table_map)
        return self._readers[table_id]

    def _make_reader(self, table_map: Any) -> TableReader | None:
        database, table = table_map.schema, table_map.table
        if not self._selects(database, table) or _SEQUENCE in table_map.optional_metadata.column_name_list:
            return None
        try:
            return TableReader(table_map)
        except Unsuitable as reason:
            self._refuse(database, table, str(reason))
            return None

    def _require_harmless(self, packet: Any) -> None:
        if packet.event_type in _HARMLESS or packet.flags & _IGNORABLE:
            return
        raise BinlogError(
            f"the binlog has an event of the type {packet.event_type} before {self.place},"
            " which cannot be read",
            hint="log_bin_compress and incidents make such events",
        )
