"""Decodes the frequent binlog events straight from their packets, without I/O.

mysql-replication can decode most of them too, but much more slowly, and it gets some events of MySQL wrong.
Events that are not decoded here are left to the library (`binlog_stream.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from metaq.pipelines.binlog_sync.coordinates import Coordinates
from metaq.pipelines.binlog_sync.envelope import DELETE, INSERT, UPDATE
from metaq.pipelines.binlog_sync.errors import BinlogError
from metaq.pipelines.binlog_sync.reading import mysql_events as mysql
from metaq.pipelines.binlog_sync.reading.binlog_items import Begin, Commit, Item, Query, Rows
from metaq.pipelines.binlog_sync.reading.query_events import query_of
from metaq.pipelines.binlog_sync.values.rows import Images, TableReader

HEADER_BYTES: Final = 19
STANDALONE: Final = 1
"""A flag of a MariaDB GTID event: one statement, which no commit follows."""
PREPARES: Final = 0x40
"""A flag of a MariaDB GTID event: an XA transaction up to its preparation."""

_HEADER: Final = struct.Struct("<IBIIIH")
_MARIADB_GTID: Final = struct.Struct("<QIB")
_XID, _LOAD, _TABLE_MAP, _GTID = 16, 18, 19, 162
_ROWS: Final = {23: INSERT, 24: UPDATE, 25: DELETE, 30: INSERT, 31: UPDATE, 32: DELETE}
_ROWS_V2: Final = frozenset((30, 31, 32))
_ONE_BYTE_MAX: Final = 250
"""A number up to this takes one byte; larger ones have a prefix."""
_COMMIT: Final = Commit()

_REFUSED: Final = {
    mysql.ANONYMOUS_GTID: (
        "the binlog has a transaction without a GTID",
        "gtid_mode was not ON; move the state file away, and the next run begins with a new snapshot",
    ),
    mysql.PARTIAL_UPDATE: (
        "the binlog has only parts of JSON documents",
        "SET GLOBAL binlog_row_value_options = '', and end sessions that have another value",
    ),
    mysql.PAYLOAD: (
        "the binlog has a compressed transaction",
        "SET GLOBAL binlog_transaction_compression = OFF, and end sessions that have another value",
    ),
}
"""The error and its hint for event types of MySQL that cannot be synchronised."""


class Undecoded:
    """The result for an event that is left to the library."""


UNDECODED: Final = Undecoded()


class EventDecoder:
    """Decodes events in the order of the binlog, and keeps track of the coordinates."""

    def __init__(
        self, coordinates: Coordinates, selects: Callable[[str, str], bool], *, is_mariadb: bool = True
    ) -> None:
        self._selects = selects
        self.is_mariadb = is_mariadb
        self.coordinates = coordinates
        """The coordinates after the last event."""
        self.committed_s = 0
        """The time of the newest event."""
        self.checksum_bytes = 0
        """The size of the checksum at the end of each event."""
        self.readers: dict[int, TableReader | None] = {}
        """Readers by table id; None for tables that are not selected."""
        self.held: Begin | None = None
        """A begin of MySQL whose kind only the next event reveals: a transaction or a single statement."""

    def decode(self, data: bytes) -> Item | Undecoded | None:
        """Decodes a packet; returns None for an event that says nothing, raises BinlogError.

        | 0: i8 | time: u32 | type: u8 | server: u32 | size: u32 | next position: u32 | flags: u16 | … |
        """
        if len(data) < HEADER_BYTES + 1 or data[0]:
            return UNDECODED
        time_s, kind, server, size, position, _ = _HEADER.unpack_from(data, 1)
        item: Item | None
        if kind in _ROWS:
            rows = self._rows(data, kind, time_s)
            if isinstance(rows, Undecoded):
                return rows
            item = rows
        elif kind == _TABLE_MAP:
            if self._is_new_table(data):
                return UNDECODED
            item = None
        elif kind == _GTID:
            number, domain, flags = _MARIADB_GTID.unpack_from(data, 20)
            begin = Coordinates(self.coordinates.file, position - size)
            gtid = f"{domain}-{server}-{number}"
            item = Begin(begin, gtid, bool(flags & STANDALONE), bool(flags & PREPARES))
        elif kind == _XID:
            item = _COMMIT
        elif kind in (mysql.GTID, mysql.GTID_TAGGED):
            gtid = (mysql.gtid_of if kind == mysql.GTID else mysql.tagged_gtid_of)(data, 20)
            self.held = Begin(Coordinates(self.coordinates.file, position - size), gtid, False)
            item = None
        elif kind == mysql.QUERY:
            end = len(data) - self.checksum_bytes
            if self.held is not None and mysql.is_begin(data, 20, end):
                item = self.held
            else:
                item = query_of(data, 20, end, is_mariadb=self.is_mariadb)
        elif kind == _LOAD:
            # The library would skip it.
            item = Query("", "LOAD DATA")
        elif kind == mysql.PREVIOUS_GTIDS:
            # The library cannot parse GTIDs with tags.
            item = None
        elif kind in _REFUSED:
            text, hint = _REFUSED[kind]
            raise BinlogError(f"{text} after {self.coordinates}", hint=hint)
        else:
            return UNDECODED
        self.coordinates = Coordinates(self.coordinates.file, position)
        self.committed_s = time_s
        return item

    def _rows(self, data: bytes, kind: int, time_s: int) -> Rows | Undecoded | None:
        """
        | table: u48 | flags: u16 | columns: u8 up to 250 | present: bitmap, two for an update | images |

        Version 2 has a u16 before the columns: its own size plus the size of the data after it.
        """
        table_id = int.from_bytes(data[20:26], "little")
        if table_id not in self.readers:
            return UNDECODED
        reader = self.readers[table_id]
        if reader is None:
            return None
        at = 28
        if kind in _ROWS_V2:
            at += int.from_bytes(data[28:30], "little")
        columns = data[at]
        if columns > _ONE_BYTE_MAX:
            return UNDECODED
        size = (columns + 7) // 8
        operation = _ROWS[kind]
        begin = at + 1 + size
        bitmaps: tuple[bytes, ...] = (data[at + 1 : begin],)
        if operation == UPDATE:
            bitmaps = (bitmaps[0], data[begin : begin + size])
            begin += size
        return Rows(reader, operation, Images(data, begin, len(data) - self.checksum_bytes, bitmaps), time_s)

    def _is_new_table(self, data: bytes) -> bool:
        """Returns whether a table map describes a selected table that has no reader yet.

        | table: u48 | flags: u16 | length: u8 | database | 0 | length: u8 | table | 0 | …
        """
        table_id = int.from_bytes(data[20:26], "little")
        if table_id in self.readers:
            return False
        database_end = 29 + data[28]
        table_begin = database_end + 2
        table = data[table_begin : table_begin + data[database_end + 1]].decode()
        if self._selects(data[29:database_end].decode(), table):
            return True
        # The library never sees this table: it may have column types that the library does not know.
        self.readers[table_id] = None
        return False
