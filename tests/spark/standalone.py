"""A standalone cluster of Spark on this machine, as its start scripts run it: a master and one worker.

Its workers and the shells of its drivers have a PATH whose `python3` has no packages at all.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import py4j
import pyspark

from tests.spark.support import JVM_OPTIONS
from tests.support.maven import java
from tests.support.processes import Child
from tests.support.spark_home import spark_home

START_TIMEOUT_S: Final = 900
RUN_TIMEOUT_S: Final = 3_000
TOOLS: Final = (
    "bash",
    "sh",
    "env",
    "dirname",
    "ps",
    "ls",
    "cat",
    "rm",
    "tar",
    "gzip",
    "chmod",
    "uname",
    "nice",
)
"""The programs that Spark's own scripts call. A whole /usr/bin would hold a Python as well."""
_MASTER: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER: Final = "Successfully registered with master"


class Standalone:
    """A master and a worker with two cores, whose executors have what `python3` has here: nothing."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.programs = _programs(home / "bin")
        self.work = home / "work"
        self._sparks_own = _sparks_own(home / "sparks-own")
        self._daemons: list[Child] = []
        try:
            self.master = self._started("master.Master", (), _MASTER)
            worker = ("--cores", "2", "--memory", "1g", "--work-dir", str(self.work), self.master)
            self._started("worker.Worker", worker, re.compile(f"({_WORKER})"))
        except BaseException:
            self.close()
            raise

    def _started(self, name: str, arguments: Sequence[str], ready: re.Pattern[str]) -> str:
        log = self._home / f"{name}.log"
        listen = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        # `env -i` inside: a Child would add the environment of the tests, which has a Python with MetaQ.
        command = self.clean_shell(
            str(spark_home() / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{name}",
            *listen,
            *arguments,
            more={
                "SPARK_DAEMON_JAVA_OPTS": f"{JVM_OPTIONS} -Dspark.master.rest.enabled=false",
                "SPARK_DAEMON_MEMORY": "256m",
                "PYTHONPATH": str(self._sparks_own),
            },
        )
        daemon = Child(command, log, directory=self._home)
        self._daemons.append(daemon)

        def found(text: str) -> str | None:
            match = ready.search(text)
            return match.group(1) if match else None

        return daemon.wait_for(found, START_TIMEOUT_S, f"{name} to start")

    def clean_shell(self, *command: str, more: dict[str, str] | None = None) -> list[str]:
        """Returns a command that runs in a shell with nothing but a PATH."""
        variables = {
            "PATH": str(self.programs),
            "HOME": str(self._home),
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            **(more or {}),
        }
        return ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in variables.items()), *command]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in a clean shell."""
        return subprocess.run(
            self.clean_shell(*command), cwd=self._home, capture_output=True, text=True, timeout=RUN_TIMEOUT_S
        )

    def executor_logs(self) -> list[str]:
        return [log.read_text(errors="replace") for log in self.work.glob("app-*/*/stderr")]

    def close(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _sparks_own(directory: Path) -> Path:
    """Returns a folder with Spark's own Python files, which a distribution has as zip files in python/lib.

    Spark's home of the tests lacks them: from a zip file, each process would compile all modules again.
    """
    directory.mkdir(parents=True)
    for package in (pyspark, py4j):
        assert package.__file__ is not None
        (directory / package.__name__).symlink_to(Path(package.__file__).parent)
    return directory


def _programs(directory: Path) -> Path:
    """Fills a PATH: the tools, Java, and a `python3` without any package."""
    directory.mkdir(parents=True)
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None, name
        (directory / name).symlink_to(found)
    (directory / "java").symlink_to(Path(java()).resolve())
    program = directory / "python3"
    program.write_text(f'#!/bin/sh\nexec "{Path(sys.executable).resolve()}" -S "$@"\n')
    program.chmod(0o755)
    return directory
