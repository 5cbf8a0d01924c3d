"""The metaq command as a child process: started, ready when it prints its ready line, stopped by its id."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.moved import MovedClock
from tests.support.processes import Child

COMMAND = (sys.executable, "-m", "metaq")
MOVED_COMMAND = (sys.executable, "-m", "tests.support.moved")
ROOT = Path(__file__).parents[2]
READY = "METAQ_READY "
READY_TIMEOUT_S = 120


class Metaq:
    """One running role. `ready` holds the fields of its ready line."""

    def __init__(
        self,
        *arguments: str,
        home: Path,
        clock: MovedClock | None = None,
        prefix: Sequence[str] = (),
        wait: bool = True,
    ) -> None:
        """Starts the role and waits until it is ready; `prefix` is a command that starts ours in turn."""
        # Every process has a log of its own: the ready line of an earlier one does not count.
        log = home / f"{arguments[0]}-{len(list(home.glob('*.log'))):03}.log"
        if clock is None:
            self.child = Child([*prefix, *COMMAND, *arguments], log, directory=home)
        else:
            paths = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
            environment = {"PYTHONPATH": os.pathsep.join(paths), **clock.environment}
            self.child = Child([*prefix, *MOVED_COMMAND, *arguments], log, environment, directory=home)
        self.ready: dict[str, str] = self._wait_ready() if wait else {}

    def _wait_ready(self) -> dict[str, str]:
        try:
            line = self.child.wait_for(_ready_line, READY_TIMEOUT_S, "ready line")
        except BaseException:
            self.child.kill()
            raise
        ready: dict[str, str] = json.loads(line)
        return ready

    @classmethod
    def serve(cls, home: Path, *arguments: str) -> Metaq:
        """Starts name server and broker on free ports, with a store under `home`."""
        ports = ("--namesrv-port", "0", "--broker-port", "0")
        return cls("serve", *ports, "--data", str(home / "data"), *arguments, home=home)

    @classmethod
    def console(cls, home: Path, nameservers: str, *arguments: str, listen: str = "127.0.0.1:0") -> Metaq:
        """Starts the console of a cluster, which it polls every second. Its state is under `home`."""
        home.mkdir(parents=True, exist_ok=True)
        flags = ("--namesrv", nameservers, "--listen", listen, "--poll-interval", "1")
        return cls("console", *flags, "--state", str(home / "state"), *arguments, home=home)

    @property
    def nameserver(self) -> str:
        return self.ready["nameserver"]

    @property
    def broker(self) -> str:
        return self.ready["broker"]

    @property
    def pid(self) -> int:
        return self.child.process.pid

    def stop(self) -> int:
        """Stops it and returns its exit code."""
        return self.child.stop()

    def kill(self) -> None:
        self.child.kill()

    def run(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs another metaq command against this name server."""
        return run(*arguments, text=text, METAQ_NAMESRV=self.nameserver)


def run(*arguments: str, text: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a metaq command that ends by itself."""
    return subprocess.run(
        [*COMMAND, *arguments],
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **variables},
    )


def fields_of_ready_line(log: str) -> dict[str, str]:
    """Returns the fields of a whole ready line; none if there is no such line yet."""
    line = _ready_line(log)
    return {} if line is None else json.loads(line)


def _ready_line(log: str) -> str | None:
    for line in log.splitlines(keepends=True):
        if line.startswith(READY) and line.endswith("\n"):
            return line.removeprefix(READY)
    return None
