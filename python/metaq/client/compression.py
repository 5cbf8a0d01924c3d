"""Compressed bodies, and the bits of a message's system flag that describe them.

Bit 0 is set if the body is compressed; bits 8 to 10 are the format. Clients before 5.0 only know zlib and
leave the format at 0.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from metaq import _core
from metaq._core import CompressionFailure, Record
from metaq.errors import UnreadableBody

Format = Literal["zlib", "lz4", "zstd"]
FORMATS: Final[tuple[str, ...]] = get_args(Format)

COMPRESSED: Final = 1
FORMAT_BITS: Final = 0x700
_FLAGS: Final[dict[str, int]] = {"lz4": 0x100, "zstd": 0x200, "zlib": 0x300}
_NAMES: Final = {0: "zlib"} | {flag: name for name, flag in _FLAGS.items()}

INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024
"""The largest size to which a compressed body may grow when it is read."""
_inflated_bytes_max = INFLATED_BYTES_MAX


def limit_inflation(bytes_max: int) -> None:
    """Lowers the largest size to which a compressed body may grow in this process. The console shows bodies
    of other people's producers to many readers, so it cannot give 64 MiB to each."""
    global _inflated_bytes_max
    _inflated_bytes_max = bytes_max


def compress(body: bytes, system_flag: int, format: str) -> tuple[bytes, int]:
    """Returns the body and its flag, unchanged if it is compressed already or would not become smaller."""
    if system_flag & COMPRESSED:
        return body, system_flag
    smaller = _core.compress(format, body)
    if len(smaller) >= len(body):
        return body, system_flag
    return smaller, system_flag & ~FORMAT_BITS | COMPRESSED | _FLAGS[format]


def decompress(body: bytes, system_flag: int, bytes_max: int | None = None) -> bytes:
    """Returns the body as its producer sent it. Raises UnreadableBody."""
    if not system_flag & COMPRESSED:
        return body
    bits = system_flag & FORMAT_BITS
    try:
        format = _NAMES[bits]
    except KeyError:
        raise UnreadableBody(
            f"the body is compressed in format {bits >> 8}, which this client does not know"
        ) from None
    try:
        return _core.decompress(format, body, _inflated_bytes_max if bytes_max is None else bytes_max)
    except CompressionFailure as error:
        raise UnreadableBody(f"the body cannot be decompressed with {format}: {error}") from None


def body_of(record: Record) -> bytes | None:
    """Returns the body as its producer sent it, or None if it cannot be decompressed."""
    try:
        return decompress(record.body, record.system_flag)
    except UnreadableBody:
        return None
