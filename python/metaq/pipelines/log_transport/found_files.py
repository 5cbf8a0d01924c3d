"""Finds log files by pattern, inode or name."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metaq.pipelines.log_transport.followed import Stamp

COMPRESSED: Final = frozenset((".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip"))
"""Suffixes of files that a rotation has compressed."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that a pattern matches."""

    key: tuple[int, int]
    path: Path
    stamp: Stamp

    @property
    def size_bytes(self) -> int:
        return self.stamp[0]


def find_files(patterns: Iterable[str]) -> dict[tuple[int, int], FoundFile]:
    """Returns regular files by device and inode, so a file with two names is listed once.

    Compressed files are left out: their lines cannot be read, and were sent before they were compressed.
    """
    found: dict[tuple[int, int], FoundFile] = {}
    for pattern in patterns:
        # A pattern may be absolute, which Path.glob refuses.
        for name in sorted(glob.iglob(pattern, recursive=True)):  # noqa: PTH207
            file = None if Path(name).suffix in COMPRESSED else found_at(Path(name))
            if file is not None:
                found.setdefault(file.key, file)
    return found


def find_inode(directory: Path, key: tuple[int, int]) -> FoundFile | None:
    """Returns a file by its inode, whatever its name is now."""
    try:
        entries = [entry.name for entry in os.scandir(directory) if entry.inode() == key[1]]
    except OSError:
        return None
    files = (found_at(directory / name) for name in entries)
    return next((file for file in files if file is not None and file.key == key), None)


def found_at(path: Path) -> FoundFile | None:
    """Returns the regular file of this name, if there is one."""
    try:
        status = path.stat()
    except OSError:
        return None  # Renamed just now; the next scan finds it.
    if not stat.S_ISREG(status.st_mode):
        return None
    return FoundFile((status.st_dev, status.st_ino), path, (status.st_size, status.st_mtime_ns))
