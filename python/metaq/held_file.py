"""Which of several processes may use a file: the one that holds the lock beside it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class HeldFile:
    """Held until it is closed, or the process ends. What is locked is a file of its own, as the one that
    matters may be replaced."""

    def __init__(self, lock: Path) -> None:
        """Raises BlockingIOError where another process holds it, OSError where it cannot be made."""
        lock.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
    return path.with_name(path.name + ".lock")
