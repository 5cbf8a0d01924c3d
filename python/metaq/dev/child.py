"""One process of a development cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from metaq.dev.plan import Planned
from metaq.private_files import open_private

_LEASH: Final = Path(__file__).with_name("leash.py")
_TAIL_LINES: Final = 20
_TAIL_BYTES: Final = 64 * 1024


class Child:
    """Runs a planned process, and runs it again after it has ended. Its output is appended to one log."""

    def __init__(self, planned: Planned, logs: Path, environment: Mapping[str, str]) -> None:
        self.planned = planned
        self.log = logs / f"{planned.name}.log"
        # People read these logs.
        self._environment = {"METAQ_LOG_FORMAT": "text", **environment}
        self._process: asyncio.subprocess.Process | None = None

    @property
    def name(self) -> str:
        return self.planned.name

    @property
    def pid(self) -> int:
        """The id of the process, or of the last one; 0 before the first start."""
        return 0 if self._process is None else self._process.pid

    @property
    def ended_with(self) -> int | None:
        """The exit code of a process that has ended; negative for a signal."""
        return None if self._process is None else self._process.returncode

    async def start(self) -> None:
        """Starts the process. It gets no signals from the terminal, and is killed if this process dies."""
        with os.fdopen(open_private(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(_LEASH), str(os.getpid())),
                *self.planned.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    async def wait(self) -> int:
        """Returns the exit code when the process has ended."""
        assert self._process is not None, "it was not started"
        return await self._process.wait()

    async def stop(self, within_s: float) -> bool:
        """Asks the process to stop and waits; kills it when the time is over. Returns whether it stopped."""
        if self._process is None or self._process.returncode is not None:
            return True
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(within_s):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            return False
        return True

    def tail(self) -> str:
        """Returns the last lines of the log."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(self.log.stat().st_size - _TAIL_BYTES, 0))
                lines = deque(log.read().decode(errors="replace").splitlines(), _TAIL_LINES)
        except OSError as error:
            return f"{self.log}: {error.strerror}"
        return "\n".join((f"the last lines of {self.log}:", *(f"  {line}" for line in lines)))


def described_end(code: int) -> str:
    """Returns how a process ended, for people."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with {code}"
