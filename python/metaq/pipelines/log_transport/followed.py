"""One log file that is followed by its inode: it may be renamed, truncated or replaced meanwhile."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

HEAD_BYTES_MAX: Final = 256
"""The size of a file's head, which tells it from another file with the same inode."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first bytes of a file, as far as they had been written."""

    size_bytes: int = 0
    digest: str = hashlib.sha256().hexdigest()

    @classmethod
    def of(cls, beginning: bytes) -> Head:
        return cls(len(beginning), hashlib.sha256(beginning).hexdigest())

    def begins(self, beginning: bytes) -> bool:
        """Returns whether a file with this beginning is the one that the head was taken from."""
        known = beginning[: self.size_bytes]
        return len(known) == self.size_bytes and Head.of(known) == self


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its line feed, or a part of a line that is too long for a message."""

    at: int
    """The position of its first byte."""
    end: int
    """The position after its line feed."""
    body: bytes
    is_cut: bool = False
    """More of the same line follows."""


Change = Literal["truncated", "replaced"]
Stamp = tuple[int, int]
"""The size and the time of the last change; the content has changed if these have."""


class FollowedFile:
    """An open file and the position up to which it was read.

    A line counts once its line feed is written. `rest` returns the text after the last line feed, for a file
    that nobody writes to any more.
    """

    def __init__(self, path: Path, *, read_bytes_max: int, line_bytes_max: int) -> None:
        self.path = path
        self._read_bytes_max = max(read_bytes_max, line_bytes_max + 1)
        self._line_bytes_max = line_bytes_max
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self._handle)
        self.key = (status.st_dev, status.st_ino)
        self.head = Head.of(self._beginning())
        self.position = 0

    def close(self) -> None:
        os.close(self._handle)

    @property
    def size_bytes(self) -> int:
        return os.fstat(self._handle).st_size

    @property
    def stamp(self) -> Stamp:
        status = os.fstat(self._handle)
        return status.st_size, status.st_mtime_ns

    def change(self) -> Change | None:
        """Returns how the content was replaced since the last call, if it was.

        A truncated file may have grown beyond its old end again; only its head reveals that.
        """
        beginning = self._beginning()
        if not self.head.begins(beginning):
            return "replaced" if len(beginning) >= self.head.size_bytes else "truncated"
        if self.size_bytes < self.position:
            return "truncated"
        if len(beginning) > self.head.size_bytes:
            self.head = Head.of(beginning)
        return None

    def begin_again(self) -> None:
        self.position = 0
        self.head = Head.of(self._beginning())

    def lines(self) -> list[Line]:
        """Reads whole lines, as many as one read returns, and moves the position after them."""
        data = os.pread(self._handle, self._read_bytes_max, self.position)
        lines: list[Line] = []
        at = 0
        while (end := data.find(b"\n", at)) >= 0:
            lines += self._line(data, at, end, end + 1)
            at = end + 1
        # A line longer than a message is sent in parts, because its end may never come.
        while len(data) - at > self._line_bytes_max:
            lines.append(self._part(data, at, at + self._line_bytes_max))
            at += self._line_bytes_max
        self.position += at
        return lines

    def rest(self) -> list[Line]:
        """Returns the text after the last line feed as a line."""
        data = os.pread(self._handle, self._line_bytes_max, self.position)
        lines = self._line(data, 0, len(data), len(data)) if data else []
        self.position += len(data)
        return lines

    def _line(self, data: bytes, at: int, end: int, after: int) -> list[Line]:
        parts: list[Line] = []
        while end - at > self._line_bytes_max:
            parts.append(self._part(data, at, at + self._line_bytes_max))
            at += self._line_bytes_max
        return [*parts, Line(self.position + at, self.position + after, data[at:end])]

    def _part(self, data: bytes, at: int, end: int) -> Line:
        return Line(self.position + at, self.position + end, data[at:end], is_cut=True)

    def _beginning(self) -> bytes:
        return os.pread(self._handle, HEAD_BYTES_MAX, 0)
