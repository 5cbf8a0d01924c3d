"""Child processes whose output goes to a file, so that a failing test can show it."""

from __future__ import annotations

import collections
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

LOG_TAIL_LINES = 60


class ToolMissing(Exception):
    """A program that the tests need is not installed; the message says how to install it."""


def find_tool(name: str, package: str) -> str:
    """Returns the path of a program, or raises an error that names the package to install."""
    found = shutil.which(name)
    if found is None:
        raise ToolMissing(f"`{name}` is needed by these tests and is not on PATH; install {package}")
    return found


class Child:
    """A subprocess with its output in a file. It is ended by its process id, never by name."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._output = log.open("ab")
        self.process = subprocess.Popen(
            list(arguments),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            # Tests look for sentences in the logs of servers. A console costs CPU time: tests ask for it.
            env={"METAQ_LOG_FORMAT": "text", "METAQ_CONSOLE": "false", **os.environ, **(environment or {})},
        )

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def wait_for(self, find: Callable[[str], str | None], timeout_s: float, what: str) -> str:
        """Returns the first result of `find` on the output that is not None."""
        deadline = time.monotonic() + timeout_s
        while True:
            # Check first, then read the log: otherwise a line printed just before the end is missed.
            alive = self.alive
            found = find(self.log.read_text(errors="replace"))
            if found is not None:
                return found
            if not alive:
                raise RuntimeError(f"ended with {self.process.returncode} before {what}\n{self.tail()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {what} within {timeout_s} s\n{self.tail()}")
            time.sleep(0.02)

    def kill(self) -> None:
        """Ends it as a crash does: nothing is flushed, nobody is notified."""
        self._end(signal.SIGKILL, timeout_s=60)

    def stop(self, timeout_s: float = 60) -> int:
        """Asks it to stop and returns its exit code. Raises TimeoutError after it had to kill it."""
        self._end(signal.SIGTERM, timeout_s)
        return self.process.returncode

    def _end(self, how: signal.Signals, timeout_s: float) -> None:
        if self.alive:
            self.process.send_signal(how)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise TimeoutError(f"did not stop within {timeout_s} s of {how.name}\n{self.tail()}") from None
        finally:
            self._output.close()

    def tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return "\n".join([f"--- {self.log} ---", *lines])


_lately_given: collections.deque[int] = collections.deque(maxlen=100)
"""Ports whose servers may not have bound them yet."""


def free_port(*, neighbours: Sequence[int] = ()) -> int:
    """A free loopback port whose neighbours at the given distances are free as well.

    For servers that cannot bind port 0, or that are killed and started again. Taken below the ephemeral
    range, so that no outgoing connection and nobody who binds port 0 grabs it while the server does not hold
    it. Suites that run beside each other mostly choose from different ranges.
    """
    first = 15_000 + os.getpid() % 17 * 1_000
    for _ in range(200):
        port = random.randrange(first, first + 1_000)
        wanted = [port + distance for distance in (0, *neighbours)]
        if all(_is_free(one) and one not in _lately_given for one in wanted):
            _lately_given.extend(wanted)
            return port
    raise RuntimeError("no free loopback port found")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def freeze(pid: int, timeout_s: float = 60.0) -> None:
    """Stops a process, and returns when none of its threads runs any more. On a busy machine that takes a
    while after the signal."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + timeout_s
    while not _stands_still(pid):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} still runs after SIGSTOP")
        time.sleep(0.001)


def _stands_still(pid: int) -> bool:
    """Whether every thread is stopped, or will be when the kernel has finished its system call."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # The state follows the name, which is in brackets.
            if (task / "stat").read_text().rpartition(")")[2].split()[0] not in "TtDZX":
                return False
    return True


def command_lines() -> list[str]:
    """Returns the command line of every process. A bare machine has no `ps`."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        # A process may have ended meanwhile.
        with contextlib.suppress(OSError):
            found.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found
