"""The binlog as a stream of what matters here, read through mysql-replication as a replica reads it."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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

from metaq.pipelines.binlog_sync import mysql_events as mysql
from metaq.pipelines.binlog_sync.columns import Unsuitable
from metaq.pipelines.binlog_sync.database import Source
from metaq.pipelines.binlog_sync.gtids import MYSQL, MysqlGtids
from metaq.pipelines.binlog_sync.messages import DELETE, INSERT, UPDATE
from metaq.pipelines.binlog_sync.progress import Position
from metaq.pipelines.binlog_sync.rows import Images, TableReader
from metaq.pipelines.binlog_sync.sequence import BinlogError, Place, xid_text

HEARTBEAT_S: Final = 0.5
SILENCE_MAX_S: Final = 30
"""A server that says nothing for so long, not even that it is there, is lost."""
_STANDALONE: Final = 1
"""Of the flags of a GTID event: one statement that no commit follows."""
_PREPARES: Final = 0x40
"""Of the same: an XA transaction up to its preparation."""
_XA_START: Final = "XA START"
_IGNORABLE: Final = 0x80
"""Of the flags of an event's header: who does not know it may pass over it."""
_HARMLESS: Final = frozenset((5, 13, 14, 28, 29, 36, 37, 160, 161, 163))
"""Types of events that say nothing of rows: variables of statements, annotations, checkpoints, and who is in
a group of servers."""
_NOT_SENT: Final = 1236
_SAME_NUMBER: Final = re.compile(r"same server_(?:uu)?id", re.IGNORECASE)
_SEQUENCE: Final = "next_not_cached_value"
"""A column of sequences, which the server keeps as tables of their own kind."""

_OPERATIONS: Final = {WriteRowsEvent: INSERT, UpdateRowsEvent: UPDATE, DeleteRowsEvent: DELETE}


_HEADER: Final = struct.Struct("<IBIIIH")
_HEADER_BYTES: Final = _HEADER.size
_GTID_FIELDS: Final = struct.Struct("<QIB")
_XID, _LOAD, _TABLE_MAP, _GTID = 16, 18, 19, 162
_ROWS: Final = {23: INSERT, 24: UPDATE, 25: DELETE, 30: INSERT, 31: UPDATE, 32: DELETE}
_ROWS_V2: Final = frozenset((30, 31, 32))
_COLUMNS_QUICK_MAX: Final = 251


_REFUSED: Final = {
    mysql.ANONYMOUS_GTID: (
        "the binlog has a transaction without a GTID",
        "gtid_mode was not ON; move the state file away, and the next run begins with a new snapshot",
    ),
    mysql.PARTIAL_UPDATE: (
        "the binlog has only parts of JSON documents",
        "SET GLOBAL binlog_row_value_options = '', and end sessions that set it otherwise",
    ),
    mysql.PAYLOAD: (
        "the binlog has a compressed transaction",
        "SET GLOBAL binlog_transaction_compression = OFF, and end sessions that set it otherwise",
    ),
}
"""What it says, and what helps, of types of events that MySQL alone has."""


class _Unknown:
    """An event that is left to the library."""


_UNKNOWN: Final = _Unknown()


class _PassedOver(Exception):
    """The library has no use for the packet that it was given, and wants the next one."""


class _Connection(pymysql.connections.Connection):  # type: ignore[misc]
    """Gives the library what was looked at and is left to it, and nothing else."""

    pushed: Any = None
    is_looked_at: bool = False
    """From when on every packet is."""
    dump: bytes | None = None
    """What a MySQL is asked instead of what the library would ask."""

    def _write_bytes(self, data: bytes) -> None:
        is_dump = self.dump is not None and data[4] == mysql.DUMP_BY_GTID
        super()._write_bytes(self.dump if is_dump else data)

    def _read_packet(self, *arguments: Any) -> Any:
        packet, self.pushed = self.pushed, None
        if packet is not None:
            return packet
        if self.is_looked_at:
            raise _PassedOver
        return super()._read_packet(*arguments)

    def next_packet(self) -> Any:
        return super()._read_packet()


class StreamLost(Exception):
    """The connection is gone; the binlog can be read on from the last place."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction, or a statement of its own, begins."""

    place: Place
    gtid: str
    stands_alone: bool
    is_xa: bool = False
    """It may end with its preparation, and others decide later whether it is committed."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Changes of rows of one table."""

    reader: TableReader
    operation: str
    images: Images
    committed: int


@dataclass(frozen=True, slots=True)
class Query:
    """A statement."""

    database: str
    text: str


@dataclass(frozen=True, slots=True)
class Commit:
    """The transaction is over."""


_COMMIT: Final = Commit()


@dataclass(frozen=True, slots=True)
class Prepared:
    """An XA transaction is over, for now."""

    xid: str
    is_committed: bool
    """At once, in one phase."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing more is there now."""


Item = Begin | Rows | Query | Commit | Prepared | Idle


class Stream:
    """Reads from a GTID position on. `place` is behind what was read last."""

    def __init__(
        self,
        source: Source,
        server_id: int,
        position: Position,
        *,
        flavour: str,
        selects: Callable[[str, str], bool],
        refuse: Callable[[str, str, str], None],
    ) -> None:
        """`refuse` gets database, table and reason where a selected one is not suitable; it may raise."""
        self._source = source
        self._selects = selects
        self._refuse = refuse
        self.place = position.place
        self._dump: bytes | None = None
        if is_mysql := flavour == MYSQL:
            self._dump = mysql.dump_command(server_id, MysqlGtids(position.gtid))
        self._held: Begin | None = None
        """The beginning of what the next event says whether it is a transaction or a statement of its own."""
        self.committed = 0
        """When the newest event was written, in seconds."""
        self._readers: dict[int, TableReader | None] = {}
        """By the id of the table; None where it is not selected."""
        self._maps: dict[int, Any] = {}
        settings = source.settings()
        settings["read_timeout"] = SILENCE_MAX_S
        self._opened = 0
        self._connection: Any = None
        """That of the stream, once the library has opened it."""
        self._checksum_bytes = 0
        self._reader = BinLogStreamReader(
            connection_settings=settings,
            ctl_connection_settings=source.settings(),
            server_id=server_id,
            blocking=True,
            auto_position=mysql.ANY_GTID if is_mysql else position.gtid,
            is_mariadb=not is_mysql,
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
                item = self._next()
            except pymysql.MySQLError as error:
                raise self._told(error) from None
            except OSError as error:
                raise StreamLost(str(error)) from None
            except (AssertionError, LookupError, ValueError, TypeError, struct.error) as error:
                raise BinlogError(f"the binlog cannot be read behind {self.place}: {error}") from error
            if item is None:
                continue
            if (held := self._held) is not None and not isinstance(item, Idle):
                self._held = None
                if isinstance(item, Query) and item.text[:8].upper() == _XA_START:
                    item = replace(held, is_xa=True)
                elif item is not held:
                    yield replace(held, stands_alone=isinstance(item, Query))
            yield item

    # Inside

    def _next(self) -> Item | None:
        """What comes with every transaction is understood here, much faster; all else by the library."""
        connection = self._connection
        if connection is not None:
            packet = connection.next_packet()
            found = self._quick(packet.get_all_data())
            if not isinstance(found, _Unknown):
                return found
            connection.pushed = packet
        try:
            event = self._reader.fetchone()
        except _PassedOver:
            return None
        if event is None:
            raise StreamLost("the server has ended the stream")
        # The library knows by now whether events end with a checksum.
        self._checksum_bytes = event.packet.event_size - _HEADER_BYTES - event.event_size
        self._connection = self._reader._stream_connection
        self._connection.is_looked_at = True
        return self._item(event)

    def _quick(self, data: bytes) -> Item | _Unknown | None:
        """An event of one of the usual kinds.

        | 0: i8 | time: u32 | type: u8 | server: u32 | size: u32 | next position: u32 | flags: u16 | … |
        """
        if len(data) < _HEADER_BYTES + 1 or data[0]:
            return _UNKNOWN
        time, kind, server, size, position, _ = _HEADER.unpack_from(data, 1)
        item: Item | None
        if kind in _ROWS:
            rows = self._quick_rows(data, kind, time)
            if isinstance(rows, _Unknown):
                return rows
            item = rows
        elif kind == _TABLE_MAP:
            if self._is_new(data):
                return _UNKNOWN
            item = None
        elif kind == _GTID:
            number, domain, flags = _GTID_FIELDS.unpack_from(data, 20)
            begin = Place(self.place.file, position - size)
            gtid = f"{domain}-{server}-{number}"
            item = Begin(begin, gtid, bool(flags & _STANDALONE), bool(flags & _PREPARES))
        elif kind == _XID:
            item = _COMMIT
        elif kind in (mysql.GTID, mysql.GTID_TAGGED):
            gtid = (mysql.gtid_of if kind == mysql.GTID else mysql.tagged_gtid_of)(data, 20)
            self._held = Begin(Place(self.place.file, position - size), gtid, False)
            item = None
        elif kind == mysql.QUERY and self._held is not None:
            if not mysql.is_begin(data, 20, len(data) - self._checksum_bytes):
                return _UNKNOWN
            item = self._held
        elif kind == _LOAD:
            # The library would pass over it.
            item = Query("", "LOAD DATA")
        elif kind == mysql.PREVIOUS_GTIDS:
            # The library may not know how they are written.
            item = None
        elif kind in _REFUSED:
            raise BinlogError(f"{_REFUSED[kind][0]} behind {self.place}", hint=_REFUSED[kind][1])
        else:
            return _UNKNOWN
        self.place = Place(self.place.file, position)
        self.committed = time
        return item

    def _quick_rows(self, data: bytes, kind: int, time: int) -> Rows | _Unknown | None:
        """
        | table: u48 | flags: u16 | columns: u8 below 251 | present: bitmap, of an update two | images |

        In the second version a u16 stands before the columns: how long it is with what follows it.
        """
        table_id = int.from_bytes(data[20:26], "little")
        if table_id not in self._readers:
            return _UNKNOWN
        reader = self._readers[table_id]
        if reader is None:
            return None
        at = 28
        if kind in _ROWS_V2:
            at += int.from_bytes(data[28:30], "little")
        columns = data[at]
        if columns >= _COLUMNS_QUICK_MAX:
            return _UNKNOWN
        size = (columns + 7) // 8
        operation = _ROWS[kind]
        begin = at + 1 + size
        bitmaps: tuple[bytes, ...] = (data[at + 1 : begin],)
        if operation == UPDATE:
            bitmaps = (bitmaps[0], data[begin : begin + size])
            begin += size
        return Rows(reader, operation, Images(data, begin, len(data) - self._checksum_bytes, bitmaps), time)

    def _is_new(self, data: bytes) -> bool:
        """Whether a table map describes a table that is wanted and not known yet.

        | table: u48 | flags: u16 | length: u8 | database | 0 | length: u8 | table | 0 | …
        """
        table_id = int.from_bytes(data[20:26], "little")
        if table_id in self._readers:
            return False
        database_end = 29 + data[28]
        table_begin = database_end + 2
        table = data[table_begin : table_begin + data[database_end + 1]].decode()
        if self._selects(data[29:database_end].decode(), table):
            return True
        # Whatever types its columns have, which the library may not know.
        self._readers[table_id] = None
        return False

    def _connect(self, **settings: Any) -> Any:
        # The library would connect again by itself, and begin where it began at first.
        if self._opened == 2:
            raise StreamLost("the connection to the server was lost")
        connection = _Connection(**settings)
        if not self._source.is_expected(connection):
            connection._force_close()
            raise StreamLost("another server answers")
        connection.dump = self._dump
        self._opened += 1
        return connection

    def _told(self, error: pymysql.MySQLError) -> Exception:
        failure = self._source.told(error)
        if failure.retriable:
            return StreamLost(str(failure))
        if error.args and error.args[0] == _NOT_SENT:
            failure.hint = (
                "another reader has the same number: give each its own source.server_id"
                if _SAME_NUMBER.search(str(failure))
                else "where the binlog that is needed is not there any more,"
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
            if reader is None:
                return None
            begin = packet.packet._position
            bitmaps = [event.columns_present_bitmap]
            if kind is UpdateRowsEvent:
                bitmaps.append(event.columns_present_bitmap2)
            images = Images(
                packet.packet.get_all_data(),
                begin,
                begin + event.event_size - packet.read_bytes,
                tuple(bitmaps),
            )
            return Rows(reader, _OPERATIONS[kind], images, packet.timestamp)
        if kind is MariadbGtidEvent:
            begin = Place(self.place.file, packet.log_pos - packet.event_size)
            flags = event.flags
            return Begin(begin, event.gtid, bool(flags & _STANDALONE), bool(flags & _PREPARES))
        if kind is XidEvent:
            return Commit()
        if kind is TableMapEvent:
            self._maps[event.table_id] = event
            return None
        if kind is QueryEvent:
            return Query(event.schema.decode("utf-8", "replace"), event.query)
        if kind is XAPrepareEvent:
            xid = xid_text(event.xid_gtrid, event.xid_bqual, event.xid_format_id)
            return Prepared(xid, event.one_phase)
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
