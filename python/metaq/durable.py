"""Files that are replaced as a whole and survive a power failure."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from metaq.private_files import create_private, make_private_directory


def replace_file(path: Path, content: bytes, before: Callable[[], None] = lambda: None) -> None:
    """Replaces a file durably: a power failure leaves either the old content or the new one. Only its owner
    may read it.

    `before` is called when the new content is on disk and the file still has the old one.
    """
    make_private_directory(path.parent)
    fresh = path.with_name(path.name + ".tmp")
    with create_private(fresh) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    before()
    fresh.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Makes renamed and new files in a directory durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
