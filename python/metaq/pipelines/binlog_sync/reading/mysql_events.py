"""Encodings that only MySQL has and mysql-replication does not handle fully: GTIDs with tags, the command
that starts a dump by GTID, and the begin of a transaction."""

from __future__ import annotations

import struct
import uuid
from typing import Final

from metaq.pipelines.binlog_sync.reading.gtids import MysqlGtids

GTID, ANONYMOUS_GTID, PREVIOUS_GTIDS, GTID_TAGGED = 33, 34, 35, 42
QUERY, PARTIAL_UPDATE, PAYLOAD = 2, 39, 40
DUMP_BY_GTID: Final = 0x1E
_THROUGH_GTID: Final = 4
ANY_GTID: Final = "00000000-0000-0000-0000-000000000000:1"
"""Any GTID makes the library ask for a dump by GTID; `dump_command` then replaces its command."""

_NUMBER: Final = struct.Struct("<q")
_QUERY_LENGTHS: Final = struct.Struct("<BHH")
_BEGIN: Final = b"BEGIN"


def dump_command(server_id: int, gtids: MysqlGtids) -> bytes:
    """Encodes COM_BINLOG_DUMP_GTID, which asks for all transactions that are not in the set.

    | size: u32 | 0x1e | flags: u16 | server: u32 | length of a file's name: u32 = 0 | position: u64 = 4
    | length: u32 | set of GTIDs |
    """
    encoded = gtids.encode()
    body = struct.pack("<BHIIQI", DUMP_BY_GTID, _THROUGH_GTID, server_id, 0, 4, len(encoded)) + encoded
    return struct.pack("<I", len(body)) + body


def gtid_of(data: bytes, at: int) -> str:
    """Decodes the GTID of a GTID event.

    | flags: u8 | server: 16 bytes | number: i64 | …
    """
    (number,) = _NUMBER.unpack_from(data, at + 17)
    return f"{uuid.UUID(bytes=data[at + 1 : at + 17])}:{number}"


def tagged_gtid_of(data: bytes, at: int) -> str:
    """Decodes the GTID of a tagged GTID event; raises ValueError, IndexError.

    All numbers have a variable length. Each field follows its number: 0 is the flags, 1 the server byte by
    byte, 2 the transaction's number with its sign in the lowest bit, 3 the tag.

    | version | size | last field that must be known | 0 | flags | 1 | 16 bytes | 2 | number | 3 | length
    | tag | …
    """
    values: list[int] = []
    # Version, size, last field, field 0 and its flags, field 1.
    for _ in range(6):
        value, at = _variable(data, at)
        values.append(value)
    server = bytearray()
    for _ in range(16):
        value, at = _variable(data, at)
        server.append(value)
    number_field, at = _variable(data, at)
    number, at = _variable(data, at)
    tag_field, at = _variable(data, at)
    length, at = _variable(data, at)
    fields = (values[0], values[3], values[5], number_field, tag_field)
    if fields != (1, 0, 1, 2, 3) or number & 1 or len(data) < at + length:
        raise ValueError("a GTID with a tag has an unknown form")
    tag = data[at : at + length].decode("ascii")
    return f"{uuid.UUID(bytes=bytes(server))}:{tag + ':' if tag else ''}{number >> 1}"


def _variable(data: bytes, at: int) -> tuple[int, int]:
    """Decodes a number and returns it with the index after it.

    The first byte ends in as many ones as there are more bytes. The bits above the first zero are the number.
    """
    extra = 0
    while extra < 8 and data[at] >> extra & 1:
        extra += 1
    end = at + 1 + extra
    if end > len(data):
        raise IndexError("an event ends too early")
    return int.from_bytes(data[at:end], "little") >> min(extra + 1, 8), end


def is_begin(data: bytes, at: int, end: int) -> bool:
    """Returns whether a query event is a plain BEGIN.

    | thread: u32 | seconds: u32 | length of the database: u8 | error: u16 | length of variables: u16
    | variables | database | 0 | query |
    """
    database_bytes, _, variables_bytes = _QUERY_LENGTHS.unpack_from(data, at + 8)
    return data[at + 13 + variables_bytes + database_bytes + 1 : end] == _BEGIN
