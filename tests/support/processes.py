"""Child processes whose whole output is kept, so that a failing test can show what its server said."""

from __future__ import annotations

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
    """A program the tests cannot do without is not installed; the message says how to get it."""


def find_tool(name: str, package: str) -> str:
    """The path of a program, or an error that names the package to install: never a silent skip."""
    found = shutil.which(name)
    if found is None:
        raise ToolMissing(f"`{name}` is needed by these tests and is not on PATH; install {package}")
    return found


class Child:
    """A subprocess with its output in a file, ended by its own id and never by name."""

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
            env={**os.environ, **(environment or {})},
        )

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def wait_for(self, find: Callable[[str], str | None], timeout_s: float, what: str) -> str:
        """Returns what `find` makes of the output, as soon as that is not None."""
        deadline = time.monotonic() + timeout_s
        while True:
            # Asked before the log is read: a line printed just before the end must not be missed.
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
        """Asks it to stop and returns its exit code; one that does not listen is killed and reported."""
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


def free_port(*, neighbours: Sequence[int] = ()) -> int:
    """A free loopback port whose neighbours at the given distances are free as well.

    For servers that cannot bind port 0, or that are killed and started again. Taken below the ephemeral
    range, so that no outgoing connection and nobody who binds port 0 grabs it while the server does not hold
    it. Suites that run beside each other mostly choose from different ranges.
    """
    first = 15_000 + os.getpid() % 17 * 1_000
    for _ in range(200):
        port = random.randrange(first, first + 1_000)
        if all(_is_free(port + distance) for distance in (0, *neighbours)):
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
