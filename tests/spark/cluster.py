"""A cluster of one or two workers on this machine, whose Python has only the MetaQ that the driver sends."""

from __future__ import annotations

import contextlib
import json
import shutil
import site
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.spark.support import JVM_OPTIONS, QUICK_TO_KILL
from tests.support.spark_home import spark_home

KEEP_S = 3_600
OURS = ("metaq", "pymetaq", "msgspec", "opentelemetry", "typing_extensions")


class Cluster:
    """Settings and environment of a driver that starts its workers with it."""

    def __init__(self, home: Path, *, workers: int = 2, more: Mapping[str, str] = QUICK_TO_KILL) -> None:
        self.workers = workers
        self.master = f"local-cluster[{workers},{2 // workers},1024]"
        # Workers write into Spark's home, where other clusters have written before.
        self._work = spark_home() / "work"
        self._others = set(self._work.glob("app-*"))
        _remove_old(self._others)
        self.settings = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
            "spark.databricks.delta.snapshotPartitions": "2",
            "spark.driver.extraJavaOptions": JVM_OPTIONS,
            "spark.executor.extraJavaOptions": JVM_OPTIONS,
            "spark.local.dir": str(home),
            "spark.pyspark.python": str(_bare_python(home)),
            "spark.executorEnv.PYTHONPATH": str(_packages_of_others(home)),
            **more,
        }
        self.environment = {"SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": "127.0.0.1"}

    def file_for(self, file: Path) -> Path:
        """Writes a copy of a pipeline's file that has these settings as well."""
        more = json.dumps([f"{name}={value}" for name, value in self.settings.items()])
        text = file.read_text(encoding="utf-8")
        assert "config = [" in text
        made = file.with_name(f"cluster-{file.name}")
        made.write_text(text.replace("config = [", f"config = [{more[1:-1]}, "), encoding="utf-8")
        return made

    @property
    def executors(self) -> list[Path]:
        """Returns the directories of the executors that ran."""
        ours = [work for work in self._work.glob("app-*") if work not in self._others]
        return [executor for work in ours for executor in work.iterdir()]


def _remove_old(work: Iterable[Path]) -> None:
    """Removes what runs of the tests left more than an hour ago: each directory holds many jars."""
    for directory in work:
        with contextlib.suppress(FileNotFoundError):
            if time.time() - directory.stat().st_mtime > KEEP_S:
                shutil.rmtree(directory)


def _bare_python(home: Path) -> Path:
    """Returns a Python that ignores site-packages."""
    program = home / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    program.chmod(0o755)
    return program


def _packages_of_others(home: Path) -> Path:
    """Returns a directory with pyarrow and so on for the workers, without our packages."""
    packages = home / "packages"
    packages.mkdir()
    for entry in Path(site.getsitepackages()[0]).iterdir():
        if not entry.name.startswith(OURS) and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    return packages
