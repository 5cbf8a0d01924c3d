"""Records as the commit log and pulls have them, with every byte; uses no code of the product."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MAGICS = (0xDAA320A7, 0xDAA320AB)
_HEADER_BYTES = 40
_BLOCK = 4096
_BORN_V6, _STORE_V6 = 1 << 4, 1 << 5


class Raw(NamedTuple):
    """One record. `parts` holds the place of each of its parts, as (start, end) in `data`."""

    data: bytes
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    born_ms: int
    stored_ms: int
    body: bytes
    properties: dict[str, str]
    parts: dict[str, tuple[int, int]]


def raw_records(data: bytes) -> Iterator[Raw]:
    """Yields the records up to the end, or up to the first bytes that do not begin one.

    totalSize 4 | magic 4 | bodyCRC 4 | queueId 4 | flag 4 | queueOffset 8 | physicalOffset 8 | sysFlag 4 |
    bornTimestamp 8 | bornHost 8 or 20 | storeTimestamp 8 | storeHost 8 or 20 | reconsumeTimes 4 |
    preparedTransactionOffset 8 | bodyLength 4, body | topicLength 1 or 2, topic | propertiesLength 2,
    properties
    """
    at = 0
    while at + _HEADER_BYTES < len(data):
        size, magic = struct.unpack_from(">II", data, at)
        if magic not in _MAGICS or not _HEADER_BYTES < size <= len(data) - at:
            return
        try:
            yield _raw(data[at : at + size], magic)
        except (struct.error, UnicodeDecodeError, IndexError):
            return
        at += size


def _raw(data: bytes, magic: int) -> Raw:
    queue_id, _, queue_offset, physical_offset, system_flag = struct.unpack_from(">iiqqi", data, 12)
    stored_at = _HEADER_BYTES + 8 + (20 if system_flag & _BORN_V6 else 8)
    body_at = stored_at + 8 + (20 if system_flag & _STORE_V6 else 8) + 4 + 8
    body_end = body_at + 4 + struct.unpack_from(">I", data, body_at)[0]
    topic_at = body_end + (1 if magic == _MAGICS[0] else 2)
    topic_size = data[body_end] if magic == _MAGICS[0] else struct.unpack_from(">H", data, body_end)[0]
    topic_end = topic_at + topic_size
    properties_at = topic_end + 2
    pairs = data[properties_at:].decode().split("\x02")
    return Raw(
        data=data,
        topic=data[topic_at:topic_end].decode(),
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        born_ms=struct.unpack_from(">q", data, _HEADER_BYTES)[0],
        stored_ms=struct.unpack_from(">q", data, stored_at)[0],
        body=data[body_at + 4 : body_end],
        properties={name: value for name, _, value in (pair.partition("\x01") for pair in pairs) if name},
        parts={
            "length": (0, 4),
            "header": (12, body_at + 4),
            "topic": (topic_at, topic_end),
            "properties": (properties_at, len(data)),
            "body": (body_at + 4, body_end),
            "checksum": (8, 12),
        },
    )


def log_records(directory: Path) -> list[Raw]:
    """Returns the records of all files of a commit log whose beginning can be read."""
    return [raw for file in sorted(directory.iterdir()) for raw in raw_records(file.read_bytes())]


def first_difference(data: bytes, other: bytes) -> int:
    """Returns the first byte in which both differ, or where the shorter one ends."""
    shorter = min(len(data), len(other))
    for start in range(0, shorter, _BLOCK):
        end = min(start + _BLOCK, shorter)
        if data[start:end] != other[start:end]:
            return next(at for at in range(start, end) if data[at] != other[at])
    return shorter
