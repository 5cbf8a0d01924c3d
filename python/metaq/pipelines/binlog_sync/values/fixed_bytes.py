"""Values of MariaDB's UUID, INET4 and INET6: bytes in the binlog, the server's text in messages."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Final

from metaq.pipelines.binlog_sync.values.value_readers import Value, ValueReader


def refined_reader(kind: str, read_bytes: ValueReader) -> ValueReader:
    """Returns a reader of text for a column whose bytes another reader reads."""
    text_of = _TEXTS[kind]

    def read(image: bytes, at: int) -> tuple[Value, int]:
        value, end = read_bytes(image, at)
        assert isinstance(value, bytes)
        return text_of(value), end

    return read


def _uuid(value: bytes) -> str:
    return str(uuid.UUID(bytes=value))


def _inet4(value: bytes) -> str:
    return ".".join(map(str, value))


def _inet6(value: bytes) -> str:
    """Formats an address as MariaDB does: `::` stands for the first of the longest runs of zero words, even
    for a single one, and addresses of version 4 are written with dots."""
    words = [int.from_bytes(value[at : at + 2], "big") for at in range(0, 16, 2)]
    gap, gap_words = -1, 0
    at = 0
    while at < len(words):
        run = at
        while run < len(words) and words[run] == 0:
            run += 1
        if run - at > gap_words:
            gap, gap_words = at, run - at
        at = max(run, at + 1)
    if gap == 0 and (gap_words == 6 or (gap_words == 5 and words[5] == 0xFFFF)):
        return ("::ffff:" if gap_words == 5 else "::") + _inet4(value[12:])
    if gap < 0:
        return ":".join(f"{word:x}" for word in words)
    before = ":".join(f"{word:x}" for word in words[:gap])
    after = ":".join(f"{word:x}" for word in words[gap + gap_words :])
    return f"{before}::{after}"


_TEXTS: Final[dict[str, Callable[[bytes], str]]] = {"uuid": _uuid, "inet4": _inet4, "inet6": _inet6}
