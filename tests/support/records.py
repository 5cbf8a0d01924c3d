"""Stored messages, as brokers send them in the answer to a pull."""

from __future__ import annotations

import struct


def record(
    body: bytes = b"body",
    properties: bytes = b"",
    *,
    topic: bytes = b"orders",
    queue_id: int = 3,
    queue_offset: int = 7,
    flag: int = 0,
    system_flag: int = 0,
    v6: bool = False,
    reconsume_times: int = 0,
) -> bytes:
    """Encodes a stored message; `Record::decode` in crates/wire documents the layout."""
    host = (bytes(15) + b"\x01" if v6 else bytes((127, 0, 0, 1))) + struct.pack(">I", 10911)
    system_flag = system_flag & ~0x30 | (0x30 if v6 else 0)
    rest = (
        struct.pack(
            ">IiiiqqiQ", 0xDAA320A7, 0, queue_id, flag, queue_offset, 1000, system_flag, 1_700_000_000_000
        )
        + host
        + struct.pack(">Q", 1_700_000_000_500)
        + host
        + struct.pack(">iqI", reconsume_times, 0, len(body))
        + body
        + struct.pack(">b", len(topic))
        + topic
        + struct.pack(">h", len(properties))
        + properties
    )
    return struct.pack(">I", len(rest) + 4) + rest
