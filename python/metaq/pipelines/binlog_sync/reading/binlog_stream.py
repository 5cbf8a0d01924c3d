"""Reads the binlog as a replica does, through mysql-replication, and yields its items."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
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

from metaq.pipelines.binlog_sync.coordinates import Coordinates, Position
from metaq.pipelines.binlog_sync.envelope import DELETE, INSERT, UPDATE
from metaq.pipelines.binlog_sync.errors import BinlogError, StreamLost, Unsuitable
from metaq.pipelines.binlog_sync.reading import mysql_events as mysql
from metaq.pipelines.binlog_sync.reading.binlog_items import (
    Begin,
    Commit,
    Idle,
    Item,
    Prepared,
    Query,
    Rows,
    xid_text,
)
from metaq.pipelines.binlog_sync.reading.database import SourceDatabase
from metaq.pipelines.binlog_sync.reading.event_decoder import (
    HEADER_BYTES,
    PREPARES,
    STANDALONE,
    EventDecoder,
    Undecoded,
)
from metaq.pipelines.binlog_sync.reading.gtids import MYSQL, MysqlGtids
from metaq.pipelines.binlog_sync.reading.query_events import query_of
from metaq.pipelines.binlog_sync.values.columns import REFINED
from metaq.pipelines.binlog_sync.values.rows import Images, TableReader

HEARTBEAT_S: Final = 0.5
SILENCE_MAX_S: Final = 30
"""A server that sends nothing for this long, not even a heartbeat, is considered lost."""
_XA_START: Final = "XA START"
_IGNORABLE: Final = 0x80
"""A flag of an event's header: a reader that does not know the event may skip it."""
_HARMLESS: Final = frozenset((5, 13, 14, 28, 29, 36, 37, 160, 161, 163))
"""Types of events that do not affect rows: variables, annotations, checkpoints, group membership."""
_NOT_SENT: Final = 1236
_SAME_SERVER_ID: Final = re.compile(r"same server_(?:uu)?id", re.IGNORECASE)
_SEQUENCE_COLUMN: Final = "next_not_cached_value"
"""A column of SEQUENCE objects, which MariaDB stores as tables."""

_OPERATIONS: Final = {WriteRowsEvent: INSERT, UpdateRowsEvent: UPDATE, DeleteRowsEvent: DELETE}


class _NextPacket(Exception):
    """The library skipped the packet that it was given and asks for the next one."""


class _Connection(pymysql.connections.Connection):  # type: ignore[misc]
    """Gives the library only the packets that `EventDecoder` has left to it."""

    pushed: Any = None
    is_intercepted: bool = False
    """Whether every packet goes to the decoder first."""
    dump: bytes | None = None
    """The command that MySQL gets in place of the library's own."""

    def _write_bytes(self, data: bytes) -> None:
        is_dump = self.dump is not None and data[4] == mysql.DUMP_BY_GTID
        super()._write_bytes(self.dump if is_dump else data)

    def _read_packet(self, *arguments: Any) -> Any:
        packet, self.pushed = self.pushed, None
        if packet is not None:
            return packet
        if self.is_intercepted:
            raise _NextPacket
        return super()._read_packet(*arguments)

    def next_packet(self) -> Any:
        return super()._read_packet()


class BinlogStream:
    """Reads from a GTID position on."""

    def __init__(
        self,
        source: SourceDatabase,
        server_id: int,
        position: Position,
        *,
        flavour: str,
        selects: Callable[[str, str], bool],
        refuse: Callable[[str, str, str], None],
    ) -> None:
        """`refuse` gets the database, the table and the reason if a selected table is unsuitable; it may
        raise."""
        self._source = source
        self._selects = selects
        self._refuse = refuse
        is_mysql = flavour == MYSQL
        self._decoder = EventDecoder(position.coordinates, selects, is_mariadb=not is_mysql)
        self._dump: bytes | None = None
        if is_mysql:
            self._dump = mysql.dump_command(server_id, MysqlGtids(position.gtid))
        self._table_maps: dict[int, Any] = {}
        self._connection_count = 0
        self._connection: Any = None
        """The connection of the stream, once the library has opened it."""
        settings = source.settings()
        settings["read_timeout"] = SILENCE_MAX_S
        self._reader = BinLogStreamReader(
            connection_settings=settings,
            ctl_connection_settings=source.settings(),
            server_id=server_id,
            blocking=True,
            auto_position=mysql.ANY_GTID if is_mysql else position.gtid,
            is_mariadb=not is_mysql,
            # The library parses a table map once: a changed definition has a new id. See `_rotate`.
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

    @property
    def coordinates(self) -> Coordinates:
        """The coordinates after the last event."""
        return self._decoder.coordinates

    @property
    def committed_s(self) -> int:
        """The time of the newest event."""
        return self._decoder.committed_s

    def close(self) -> None:
        # The library's own `close` would wait for a server that may be gone.
        for name in ("_stream_connection", "_ctl_connection"):
            connection = getattr(self._reader, name, None)
            if connection is not None:
                connection._force_close()

    def forget_unwanted(self) -> None:
        """Asks again which tables are selected, when their next change comes."""
        readers = self._decoder.readers
        for table_id in [number for number, reader in readers.items() if reader is None]:
            del readers[table_id]

    def items(self) -> Iterator[Item]:
        """Yields items without end; raises StreamLost, BinlogError, CommandError."""
        while True:
            try:
                item = self._next()
            except pymysql.MySQLError as error:
                raise self._translate(error) from None
            except OSError as error:
                raise StreamLost(str(error)) from None
            except (AssertionError, LookupError, ValueError, TypeError, struct.error) as error:
                raise BinlogError(f"cannot read the binlog after {self.coordinates}: {error}") from error
            if item is None:
                continue
            if (held := self._decoder.held) is not None and not isinstance(item, Idle):
                self._decoder.held = None
                if isinstance(item, Query) and item.text[:8].upper() == _XA_START:
                    item = replace(held, is_xa=True)
                elif item is not held:
                    yield replace(held, stands_alone=isinstance(item, Query))
            yield item

    def _next(self) -> Item | None:
        connection = self._connection
        if connection is not None:
            packet = connection.next_packet()
            found = self._decoder.decode(packet.get_all_data())
            if not isinstance(found, Undecoded):
                return found
            connection.pushed = packet
        try:
            event = self._reader.fetchone()
        except _NextPacket:
            return None
        if event is None:
            raise StreamLost("the server ended the stream")
        # By now the library knows whether events end with a checksum.
        self._decoder.checksum_bytes = event.packet.event_size - HEADER_BYTES - event.event_size
        self._connection = self._reader._stream_connection
        self._connection.is_intercepted = True
        return self._item(event)

    def _connect(self, **settings: Any) -> Any:
        # The library would reconnect by itself and start again at the first position.
        if self._connection_count == 2:
            raise StreamLost("the connection to the server was lost")
        connection = _Connection(**settings)
        if not self._source.is_expected(connection):
            connection._force_close()
            raise StreamLost("another server answers")
        connection.dump = self._dump
        self._connection_count += 1
        return connection

    def _translate(self, error: pymysql.MySQLError) -> Exception:
        failure = self._source.command_error(error)
        if failure.retriable:
            return StreamLost(str(failure))
        if error.args and error.args[0] == _NOT_SENT:
            failure.hint = (
                "another reader uses the same number: give each its own source.server_id"
                if _SAME_SERVER_ID.search(str(failure))
                else "if the server has deleted the binlog that is needed,"
                " move the state file away, and the next run begins with a new snapshot"
            )
        return failure

    # Events that the library has decoded

    def _item(self, event: Any) -> Item | None:
        kind = type(event)
        packet = event.packet
        decoder = self._decoder
        if kind is RotateEvent:
            self._rotate(event)
            return None
        if packet.log_pos:
            decoder.coordinates = Coordinates(self.coordinates.file, packet.log_pos)
        if kind is HeartbeatLogEvent:
            return Idle()
        if packet.timestamp:
            decoder.committed_s = packet.timestamp
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
            begin = Coordinates(self.coordinates.file, packet.log_pos - packet.event_size)
            flags = event.flags
            return Begin(begin, event.gtid, bool(flags & STANDALONE), bool(flags & PREPARES))
        if kind is XidEvent:
            return Commit()
        if kind is TableMapEvent:
            self._table_maps[event.table_id] = event
            return None
        if kind is QueryEvent:
            data = packet.packet.get_all_data()
            return query_of(data, 20, len(data) - decoder.checksum_bytes, is_mariadb=decoder.is_mariadb)
        if kind is XAPrepareEvent:
            xid = xid_text(event.xid_gtrid, event.xid_bqual, event.xid_format_id)
            return Prepared(xid, event.one_phase)
        self._require_harmless(packet)
        return None

    def _rotate(self, event: Any) -> None:
        """Moves on to another file. The server may have restarted, and then it uses table ids again."""
        if event.next_binlog != self.coordinates.file:
            self._reader.table_map.clear()
            self._table_maps.clear()
            self._decoder.readers.clear()
        self._decoder.coordinates = Coordinates(event.next_binlog, event.position)

    def _table_reader(self, table_id: int) -> TableReader | None:
        readers = self._decoder.readers
        if table_id not in readers:
            table_map = self._table_maps.pop(table_id, None)
            if table_map is None:
                raise BinlogError("the binlog has rows of a table that it does not describe")
            readers[table_id] = self._make_reader(table_map)
        return readers[table_id]

    def _make_reader(self, table_map: Any) -> TableReader | None:
        database, table = table_map.schema, table_map.table
        columns = table_map.optional_metadata.column_name_list
        if not self._selects(database, table) or _SEQUENCE_COLUMN in columns:
            return None
        try:
            reader = TableReader(table_map)
            if self._dump is None and any(
                column.type in REFINED.values() for column in reader.definition.columns
            ):
                reader = TableReader(table_map, self._source.refinements(database, table))
            return reader
        except Unsuitable as reason:
            self._refuse(database, table, str(reason))
            return None

    def _require_harmless(self, packet: Any) -> None:
        if packet.event_type in _HARMLESS or packet.flags & _IGNORABLE:
            return
        raise BinlogError(
            f"the binlog has an event of the unknown type {packet.event_type} before {self.coordinates}",
            hint="log_bin_compress and incidents write such events",
        )
