"""Packets of binlog events of MySQL, for tests without a server."""

from __future__ import annotations

import struct

SERVER = "34d5a371-e1bb-11f1-ae18-02fc00000001"
GTID = bytes.fromhex("00" + SERVER.replace("-", "")) + (6).to_bytes(8, "little") + bytes(20)
BEGIN = 4 * b"\0" + 4 * b"\0" + b"\0" + b"\0\0" + b"\0\0" + b"\0" + b"BEGIN"


def event(kind: int, body: bytes, position: int = 500) -> bytes:
    """Returns an event as a packet holds it."""
    return b"\0" + struct.pack("<IBIIIH", 1_790_000_000, kind, 7, 19 + len(body), position, 0) + body


def table_map(table_id: int, database: bytes, table: bytes) -> bytes:
    names = b"".join(bytes((len(name),)) + name + b"\0" for name in (database, table))
    return event(19, table_id.to_bytes(6, "little") + b"\1\0" + names)
