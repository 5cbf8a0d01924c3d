"""Becomes a program that ends with its parent, even if the parent is killed.

    python leash.py PARENT_PID PROGRAM ARGUMENT…

It runs as a program of its own, because code between fork and exec may hang in a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    end_with_parent(parent)
    os.execvp(command[0], command)


def end_with_parent(parent: int) -> None:
    """Has the system kill this process when its parent ends. Exits if that has happened already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        # It ended before it could be watched.
        sys.exit(1)


if __name__ == "__main__":
    main()
