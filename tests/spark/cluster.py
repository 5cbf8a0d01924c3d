"""A cluster of two workers on this machine, whose Python has no MetaQ but what is sent there."""

from __future__ import annotations

import json
import os
import site
import sys
from pathlib import Path

import pyspark

import metaq
from tests.spark.support import SHORT_LIVED

MASTER = "local-cluster[2,1,1024]"
OURS = ("metaq", "pymetaq", "msgspec", "opentelemetry", "typing_extensions")


class Cluster:
    """Settings and environment of a driver, whose workers are started with it."""

    def __init__(self, home: Path) -> None:
        # Workers leave what they did in Spark's own directory.
        self._spark_home = home / "spark"
        self._spark_home.mkdir()
        for entry in Path(pyspark.__file__).parent.iterdir():
            (self._spark_home / entry.name).symlink_to(entry)
        self.settings = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
            "spark.databricks.delta.snapshotPartitions": "2",
            "spark.driver.extraJavaOptions": SHORT_LIVED,
            "spark.executor.extraJavaOptions": SHORT_LIVED,
            "spark.local.dir": str(home),
            "spark.pyspark.python": str(_bare_python(home)),
            "spark.executorEnv.PYTHONPATH": str(_packages_of_others(home)),
        }
        paths = (str(Path(metaq.__file__).parents[1]), site.getsitepackages()[0])
        self.environment = {
            "SPARK_HOME": str(self._spark_home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": os.pathsep.join(paths),
        }

    def file_for(self, file: Path) -> Path:
        """One beside a pipeline's, with these settings before those that it has."""
        more = json.dumps([f"{name}={value}" for name, value in self.settings.items()])
        text = file.read_text(encoding="utf-8")
        assert "config = [" in text
        made = file.with_name(f"cluster-{file.name}")
        made.write_text(text.replace("config = [", f"config = [{more[1:-1]}, "), encoding="utf-8")
        return made

    @property
    def executors(self) -> list[Path]:
        """The directories of those that have run."""
        return list((self._spark_home / "work").glob("app-*/*"))


def _bare_python(home: Path) -> Path:
    """A Python that looks into no site-packages."""
    program = home / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    program.chmod(0o755)
    return program


def _packages_of_others(home: Path) -> Path:
    """Makes the workers' Python: pyarrow and so on, and nothing of ours."""
    packages = home / "packages"
    packages.mkdir()
    for entry in Path(site.getsitepackages()[0]).iterdir():
        if not entry.name.startswith(OURS) and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    return packages
