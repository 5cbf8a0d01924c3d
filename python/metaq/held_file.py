"""Lock files, with which one of several processes claims a file for itself."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

from metaq.private_files import make_private_directory, open_private

COMMAND_LENGTH_MAX = 100


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


def holder(lock: Path) -> int | None:
    """Returns the id of the process that holds a lock file; None if nobody does or the system does not say,
    as for a process of another container."""
    try:
        status = lock.stat()
        table = Path("/proc/locks").read_text()
    except OSError:
        return None
    # 1: FLOCK  ADVISORY  WRITE 7110 fe:00:5548380 0 EOF
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    found = re.search(rf"^\d+: \w+\s+\w+\s+\w+ (\d+) {place} ", table, re.MULTILINE)
    return int(found[1]) or None if found else None


def named_process(pid: int) -> str:
    """Returns a process as people know it: its id and, if it can be read, its command."""
    try:
        command = (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        )
    except OSError:
        command = ""
    return f"process {pid} ({command[:COMMAND_LENGTH_MAX]})" if command else f"process {pid}"


def lock_beside(path: Path) -> Path:
    """Returns the path of the lock file for a file."""
    return path.with_name(path.name + ".lock")
