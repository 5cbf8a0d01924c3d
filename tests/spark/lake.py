"""log-lake in tests: its file, runs in this process, and the content of the lake."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from metaq.pipelines import Plan, Progress, Report
from metaq.pipelines.log_lake.pipeline import LogLake
from tests.spark.patience import patiently
from tests.spark.running import forget_last_commit
from tests.spark.support import JVM_OPTIONS, QUICK_TO_KILL
from tests.support.metaq import Metaq
from tests.support.spark_jars import delta_jars


class Lake:
    """A lake of one topic. A run ends when it has read everything."""

    def __init__(
        self, spark: SparkSession, served: Metaq, home: Path, topic: str, lake: str = "", records: str = ""
    ) -> None:
        self._spark = spark
        self._nameserver = served.nameserver
        self.topic = topic
        self.path = home / "lake"
        self.config = home / "lake.toml"
        self.write(lake, records)

    def write(self, lake: str = "", records: str = "", *, once: bool = True) -> None:
        jars = json.dumps(delta_jars())
        settings = (
            "spark.ui.enabled=false",
            "spark.driver.memory=1g",
            f"spark.driver.extraJavaOptions={JVM_OPTIONS}",
            *(f"{name}={value}" for name, value in QUICK_TO_KILL.items()),
        )
        self.config.write_text(
            f'[topic]\nnamesrv = "{self._nameserver}"\nname = "{self.topic}"\n[records]\n{records}\n'
            f'[lake]\npath = "lake"\nonce = {str(once).lower()}\n{lake}\n'
            f'[spark]\nmaster = "local[2]"\njars = {jars}\nconfig = {json.dumps(settings)}\n',
            encoding="utf-8",
        )

    def run(self, report: Report = lambda progress: None) -> Progress:
        lake = LogLake.from_file(self.config)
        return patiently(lambda: lake.run(report, threading.Event()))

    def plan(self) -> Plan:
        return LogLake.from_file(self.config).plan()

    def replay(self) -> Progress:
        """Repeats the last batch."""
        forget_last_commit(self.path / "_checkpoint")
        return self.run()

    def frame(self, table: str = "records", kind: str = "delta") -> DataFrame:
        return self._spark.read.format(kind).load(str(self.path / table))

    def reasons(self, kind: str = "delta") -> dict[bytes, str]:
        return {bytes(row.body): row.reason for row in self.frame("quarantine", kind).collect()}

    def forget_checkpoint(self) -> None:
        shutil.rmtree(self.path / "_checkpoint")
