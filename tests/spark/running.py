"""`metaq pipeline run` as a process that can be killed together with its JVM."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.spark.cluster import Cluster
from tests.spark.patience import TOO_SLOW
from tests.support.metaq import COMMAND
from tests.support.spark_home import spark_home

TIMEOUT_S = 600.0
"""Spark takes long to start on a busy machine."""


class RunningPipeline:
    """A run on the master of its file, or on a cluster."""

    def __init__(self, name: str, config: Path, cluster: Cluster | None = None) -> None:
        self._environment = {
            **os.environ,
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        master: tuple[str, ...] = ()
        if cluster is not None:
            config = cluster.file_for(config)
            self._environment |= cluster.environment
            master = ("--master", cluster.master)
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
            assert time.monotonic() < deadline, self._output()[-5_000:]
            if self.process.poll() is not None:
                output = self._output()
                assert TOO_SLOW in output, output[-5_000:]
                self._start()
            time.sleep(0.02)

    def _output(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """Kills the process and everything that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kills the run, also after a failure."""
        self.kill()


def batches_done(checkpoint: Path) -> int:
    """Returns the number of batches that Spark has recorded as done."""
    commits = checkpoint / "commits"
    numbers = [int(file.name) for file in commits.glob("*") if file.name.isdigit()]
    return max(numbers, default=-1) + 1


def forget_last_commit(checkpoint: Path) -> int:
    """Makes Spark repeat its last batch, as after a crash before its commit; returns the batch."""
    last = batches_done(checkpoint) - 1
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    return last
