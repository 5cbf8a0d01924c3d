"""Runs a command, and waits for every process that it leaves behind.

    scripts/reaping.py COMMAND [ARGUMENTS]

The kernel counts the CPU time of a process for its parent only if the parent waits for it. Nobody waits for
Spark's JVM or for the children of a killed process: the kernel gives them to this script, which does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
LINGER_S = 20.0
"""A JVM needs seconds to notice that its driver has ended."""


def main(command: list[str]) -> int:
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        print("reaping.py: processes that are left behind will be missing in the CPU time", file=sys.stderr)
    try:
        process = subprocess.Popen(command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error}", flush=True)
        return 127
    # A terminal sends SIGINT to the command as well.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
    while True:
        pid, status = os.wait()
        if pid == process.pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            break
    reap_others()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def reap_others() -> None:
    """Waits for the orphans; the kernel gives those that live longer to somebody else."""
    deadline = time.monotonic() + LINGER_S
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.05)
        except ChildProcessError:
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
