"""The metaq command as a process: started with free ports, awaited by its ready line, stopped by its id."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.moved import MovedClock
from tests.support.processes import Child

COMMAND = (sys.executable, "-m", "metaq")
MOVED_COMMAND = (sys.executable, "-m", "tests.support.moved")
ROOT = Path(__file__).parents[2]
READY = "METAQ_READY "
READY_TIMEOUT_S = 120


class Metaq:
    """One running role. `ready` is what its ready line told."""

    def __init__(self, *arguments: str, home: Path, clock: MovedClock | None = None) -> None:
        # A restarted role must not be taken for ready because of what the one before it said.
        log = home / f"{arguments[0]}-{len(list(home.glob('*.log')))}.log"
        if clock is None:
            self.child = Child([*COMMAND, *arguments], log, directory=home)
        else:
            environment = {"PYTHONPATH": str(ROOT), **clock.environment}
            self.child = Child([*MOVED_COMMAND, *arguments], log, environment, directory=home)
        try:
            line = self.child.wait_for(_ready_line, READY_TIMEOUT_S, "ready line")
        except BaseException:
            self.child.kill()
            raise
        self.ready: dict[str, str] = json.loads(line)

    @classmethod
    def serve(cls, home: Path, *arguments: str) -> Metaq:
        """Name server and broker on free ports, with a small store under `home`."""
        ports = ("--namesrv-port", "0", "--broker-port", "0")
        return cls("serve", *ports, "--data", str(home / "data"), *arguments, home=home)

    @property
    def nameserver(self) -> str:
        return self.ready["nameserver"]

    @property
    def broker(self) -> str:
        return self.ready["broker"]

    def stop(self) -> int:
        """The exit code."""
        return self.child.stop()

    def run(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Another metaq command, told of this name server."""
        return run(*arguments, text=text, METAQ_NAMESRV=self.nameserver)


def run(*arguments: str, text: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """A metaq command that ends by itself."""
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


def _ready_line(log: str) -> str | None:
    for line in log.splitlines(keepends=True):
        if line.startswith(READY) and line.endswith("\n"):
            return line.removeprefix(READY)
    return None
