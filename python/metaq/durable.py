"""Files that are whole at any moment, and stay what was said to be written, whatever happens to the power."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def replace_file(path: Path, content: bytes, before: Callable[[], None] = lambda: None) -> None:
    """Returns once the new content would survive a power failure; until then the old one would.

    `before` is called when the new content is safe and the old one still has the name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    before()
    fresh.replace(path)
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    """Makes renames and new names in a directory durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
