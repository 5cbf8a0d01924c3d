"""Bodies that their senders compressed."""

from __future__ import annotations

import zlib

from metaq._core import Record

COMPRESSED = 1
COMPRESSION_SHIFT = 8
ZLIB = (0, 3)
BODY_BYTES_MAX = 64 * 1024 * 1024
"""What a compressed body may grow to."""


def body_of(record: Record) -> bytes | None:
    """The body as it was sent; None where it is compressed in a way that cannot be undone here."""
    if not record.system_flag & COMPRESSED:
        return record.body
    if (record.system_flag >> COMPRESSION_SHIFT) & 7 not in ZLIB:
        return None
    inflate = zlib.decompressobj()
    try:
        body = inflate.decompress(record.body, BODY_BYTES_MAX)
    except zlib.error:
        return None
    return body if inflate.eof else None
