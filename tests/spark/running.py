"""`metaq pipeline run` as a process, which can be killed together with its JVM."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.spark.cluster import MASTER, Cluster
from tests.spark.patience import TOO_SLOW
from tests.support.metaq import COMMAND

TIMEOUT_S = 600.0
"""On a busy machine Spark takes long to start."""


class RunningPipeline:
    """On the master that its file says, or on a cluster."""

    def __init__(self, name: str, config: Path, cluster: Cluster | None = None) -> None:
        self._environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
        master: tuple[str, ...] = ()
        if cluster is not None:
            config = cluster.file_for(config)
            self._environment |= cluster.environment
            master = ("--master", MASTER)
        self._command = [*COMMAND, "pipeline", "run", name, "--config", str(config), *master, "-o", "json"]
        self.log = config.with_suffix(".log")
        self._start()

    def _start(self) -> None:
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                self._command,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,
            )

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Waits for the condition; restarts the pipeline if Spark gave up on its own process."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            said = self.log.read_text(errors="replace")
            assert time.monotonic() < deadline, said[-5_000:]
            if self.process.poll() is not None:
                assert TOO_SLOW in said, said[-5_000:]
                self._start()
            time.sleep(0.005)

    def kill(self) -> None:
        """With all that it has started, in whatever they are doing."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever has failed, nothing runs on."""
        self.kill()


def batches_done(checkpoint: Path) -> int:
    """How many Spark has noted as done."""
    commits = checkpoint / "commits"
    numbers = [int(file.name) for file in commits.glob("*") if file.name.isdigit()]
    return max(numbers, default=-1) + 1
