"""Lock files, with which one of several processes claims a file for itself."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from metaq.private_files import make_private_directory, open_private


class HeldFile:
    """A lock that is held until `close` or the end of the process.

    It locks a file of its own, because the file that it protects may be replaced.
    """

    def __init__(self, lock: Path) -> None:
        """Raises BlockingIOError if another process holds the lock, and OSError if it cannot be created."""
        make_private_directory(lock.parent)
        self._descriptor = open_private(lock)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def lock_beside(path: Path) -> Path:
    """Returns the path of the lock file for a file."""
    return path.with_name(path.name + ".lock")
