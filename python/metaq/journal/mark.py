"""The mark of a journal: the point up to which it was written, in a small file beside it.

    journal/        the journal
    journal.mark    magic (4) · epoch (8) · version (8) · CRC32 of these (4); numbers are big-endian

A journal that is lost, cut or replaced by an older copy looks whole. The mark shows what it must at least
hold. It is written after each sync of the journal and never before, so a crash leaves it behind the journal
and not ahead of it. It is not synced each time: it outlives a kill at once, and a power failure within the
time in which the kernel writes its pages.

Until `accept`, the file stays as it was found, so that a second kill does not hide a loss.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metaq.durable import replace_file
from metaq.journal.files import START, Point
from metaq.private_files import open_private

_log = logging.getLogger(__name__)

_MAGIC: Final = b"\xf1MQP"
_BODY: Final = struct.Struct(">4sQQ")
_CHECKSUM: Final = struct.Struct(">I")
_LOST: Final = Point(2**63 - 1, 2**63 - 1)
"""A point that no journal reaches."""


@dataclass(frozen=True, slots=True)
class Found:
    """The newest entry of a journal when it was opened, and the entry that its mark names."""

    point: Point
    """The newest entry; START in a new journal."""
    mark: Point | None
    """None if there is no mark that can be read."""

    @property
    def is_behind(self) -> bool:
        """Whether entries that were written once are gone."""
        return self.mark is not None and self.point < self.mark


class Mark:
    """The file of one journal. One thread at a time uses it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._point: Point | None = None
        """The content of the file, once it is kept up to date."""
        self._descriptor = -1

    def read(self) -> Point | None:
        """The point in the file; None if there is none that can be read. Raises OSError."""
        try:
            with os.fdopen(open_private(self.path, os.O_RDONLY), "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return None
        if len(content) != _BODY.size + _CHECKSUM.size:
            return None
        magic, epoch, version = _BODY.unpack_from(content)
        (checksum,) = _CHECKSUM.unpack_from(content, _BODY.size)
        if magic != _MAGIC or zlib.crc32(content[: _BODY.size]) != checksum:
            return None
        return Point(epoch, version)

    def accept(self, point: Point) -> None:
        """Begins anew at this point, durably, and follows the journal from now on. Raises OSError."""
        self.close()
        if self.read() is None:
            replace_file(self.path, _content(point))
        # In place: a broker with a full disk must be able to start.
        self._descriptor = open_private(self.path, os.O_WRONLY)
        self._write(point)
        os.fdatasync(self._descriptor)
        self._point = point

    def advance(self, point: Point) -> None:
        """Notes a point that the journal has synced."""
        if self._point is not None:
            self._write(point)

    def fall_back(self, point: Point) -> None:
        """The journal is about to be replaced and may end at a lower point then. Raises OSError."""
        if self._point is not None and point < self._point:
            self._write(point)
            os.fdatasync(self._descriptor)

    def note_loss(self) -> None:
        """Notes durably that the journal is about to be moved away, unless the file shows that anyway.
        Raises OSError."""
        if self.read() in (None, START):
            replace_file(self.path, _content(_LOST))

    def close(self) -> None:
        """Safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor, self._point = -1, None

    def _write(self, point: Point) -> None:
        try:
            os.pwrite(self._descriptor, _content(point), 0)
            self._point = point
        except OSError as error:
            # The journal itself is whole. The mark only stays behind it.
            _log.warning("%s cannot be written: %s", self.path, error.strerror)


def _content(point: Point) -> bytes:
    body = _BODY.pack(_MAGIC, *point)
    return body + _CHECKSUM.pack(zlib.crc32(body))


def mark_beside(directory: Path) -> Path:
    """The path of the mark of the journal in this directory."""
    return directory.with_name(directory.name + ".mark")
