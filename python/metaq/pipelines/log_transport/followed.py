"""One log file that is followed, not by its name: it may be renamed, truncated or replaced meanwhile."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

HEAD_BYTES_MAX: Final = 256
"""So much of a file's beginning tells it from another one with the same inode."""


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a file, as far as it had been written when it was looked at."""

    size_bytes: int = 0
    digest: str = hashlib.sha256().hexdigest()

    @classmethod
    def of(cls, beginning: bytes) -> Head:
        return cls(len(beginning), hashlib.sha256(beginning).hexdigest())

    def begins(self, beginning: bytes) -> bool:
        """Whether a file that begins like this is the one this was taken from."""
        known = beginning[: self.size_bytes]
        return len(known) == self.size_bytes and Head.of(known) == self


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its end, or a part of one that is too long for a message."""

    at: int
    """The byte of the file that it begins with."""
    end: int
    """The byte after it and its line end."""
    body: bytes
    is_cut: bool = False
    """More of the same line follows."""


Change = Literal["truncated", "replaced"]
Stamp = tuple[int, int]
"""Size and time of the last change: another one tells of another content."""


class FollowedFile:
    """An open file, its position, and whether it is still what it was.

    A line counts once its end is there. What stands behind the last line end is given by `rest`, for a file
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
        """What became of the content since the last look. It may have grown again beyond the old end, which
        only its beginning tells."""
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
        """Whole lines from the position on, which moves behind them; as many as one read brings."""
        data = os.pread(self._handle, self._read_bytes_max, self.position)
        lines: list[Line] = []
        at = 0
        while (end := data.find(b"\n", at)) >= 0:
            lines += self._line(data, at, end, end + 1)
            at = end + 1
        # A line longer than a message leaves in parts, or it would be waited for without end.
        while len(data) - at > self._line_bytes_max:
            lines.append(self._part(data, at, at + self._line_bytes_max))
            at += self._line_bytes_max
        self.position += at
        return lines

    def rest(self) -> list[Line]:
        """What stands behind the last line end, as a line."""
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
