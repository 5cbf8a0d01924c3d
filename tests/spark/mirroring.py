"""binlog-mirror in tests: its file, runs in this process, and the content of the mirror."""

from __future__ import annotations

import json
import random
import threading
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from typer.testing import CliRunner

from metaq import Client
from metaq.cli import app
from metaq.pipelines import Progress, Report
from metaq.pipelines.binlog_mirror.delta import table_path
from metaq.pipelines.binlog_mirror.pipeline import BinlogMirror
from tests.integration.pipelines.test_binlog_kills import Writer
from tests.spark.cluster import Cluster
from tests.spark.running import RunningPipeline, batches_done
from tests.spark.support import JVM_OPTIONS, QUICK_TO_KILL
from tests.support.binlog import Running, write_config
from tests.support.database import Database
from tests.support.metaq import Metaq
from tests.support.rounds import rounds, seeded
from tests.support.spark_jars import delta_jars, driver_jars

VERIFY_S = 600
Rows = dict[tuple[Any, ...], dict[str, Any]]


class Mirroring:
    """A database, binlog-sync and the mirror."""

    def __init__(self, home: Path, server: Database, served: Metaq, database: str, mirror: str = "") -> None:
        self.home, self.database, self.server = home, database, server
        self.path = home / "mirror"
        self.config = write_config(home / "sync.toml", server, served.nameserver, database)
        self.set_mirror(mirror)
        self.reader: Running | None = None

    def send(self, *bodies: bytes) -> None:
        """Sends messages to the topic, as a stranger could."""
        topic = tomllib.loads(self.config.read_text(encoding="utf-8"))["topic"]
        with Client(topic["namesrv"]) as client, client.producer("strangers") as producer:
            for body in bodies:
                producer.send(topic["name"], body)

    def set_mirror(self, lines: str) -> None:
        """Writes other lines into the section [mirror]."""
        text = self.config.read_text(encoding="utf-8").partition("[mirror]")[0]
        jars = json.dumps((*delta_jars(), *driver_jars()))
        settings = (
            "spark.ui.enabled=false",
            "spark.driver.memory=1g",
            f"spark.driver.extraJavaOptions={JVM_OPTIONS}",
            *(f"{name}={value}" for name, value in QUICK_TO_KILL.items()),
        )
        self.config.write_text(
            f'{text}[mirror]\npath = "mirror"\n{lines}\n[spark]\nmaster = "local[2]"\njars = {jars}\n'
            f"config = {json.dumps(settings)}\n",
            encoding="utf-8",
        )

    def read(self) -> None:
        """Waits until the topic has everything that is committed by now, and tables that are read again."""
        if self.reader is None:
            self.reader = Running(self.config)
        self.reader.wait_until_read(self.server)

    def apply(self, report: Report = lambda progress: None) -> Progress:
        """Applies everything in the topic, in this process."""
        text = self.config.read_text(encoding="utf-8")
        once = self.home / "once.toml"
        once.write_text(text.replace('path = "mirror"\n', 'path = "mirror"\nonce = true\n'), encoding="utf-8")
        return BinlogMirror.from_file(once).run(report, threading.Event())

    def sync(self) -> Progress:
        self.read()
        return self.apply()

    def close(self) -> None:
        if self.reader is not None and self.reader.child.alive:
            self.reader.kill()

    def rows(self, spark: SparkSession, table: str, *key: str) -> Rows:
        frame = spark.read.format("delta").load(table_path(str(self.path), (self.database, table)))
        own = ("metaq_key", "metaq_seq", "metaq_deleted")
        found = frame.where("NOT metaq_deleted").drop(*own).collect()
        return {tuple(row[name] for name in key): row.asDict() for row in found}

    def tombstones(self, spark: SparkSession, table: str) -> int:
        frame = spark.read.format("delta").load(table_path(str(self.path), (self.database, table)))
        return frame.where("metaq_deleted").count()

    def source(self, table: str, *key: str) -> Rows:
        with self.server.root(database=self.database) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM `{table}`")
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        return {tuple(row[name] for name in key): row for row in rows}


def run_sql(mirroring: Mirroring, *statements: str) -> None:
    with mirroring.server.root(database=mirroring.database) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        for statement in statements:
            cursor.execute(statement)


def run_command(mirroring: Mirroring, *words: str) -> tuple[int, str]:
    """Runs `metaq pipeline …` in this process, which has Spark already; returns exit code and output."""
    arguments = ["pipeline", *words, "--config", str(mirroring.config)]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    return done.exit_code, done.stdout


def planned(mirroring: Mirroring) -> dict[str, Any]:
    code, printed = run_command(mirroring, "run", "binlog-mirror", "--dry-run", "-o", "json")
    assert code == 0, printed
    found: dict[str, Any] = json.loads(printed)
    return found


KEYS = {"numbers": ("id",), "texts": ("name", "part")}
"""The keys of the tables that change while mirrors are killed."""


def kill_while_applying(
    mirroring: Mirroring,
    set_mirror: Callable[[str], None],
    checkpoint: Path,
    clusters: tuple[Cluster | None, ...],
) -> None:
    """Kills a run on each cluster (None: in one process) while tables change; then lets one finish.

    `make soak` repeats it many times.
    """
    chance = seeded()
    run_sql(
        mirroring,
        "CREATE TABLE numbers (id INT PRIMARY KEY, amount DOUBLE, note VARCHAR(200))",
        "CREATE TABLE texts (name VARCHAR(20), part INT, v INT, PRIMARY KEY (name, part))",
        "INSERT INTO numbers SELECT seq, seq / 7, 'before' FROM seq_1_to_300",
    )
    mirroring.read()
    set_mirror('interval_s = 0\nbatch_bytes = "20k"')
    # It writes slowly, so that a busy machine does not leave too much for the last run.
    writer = Writer(
        mirroring.server, mirroring.database, random.Random(chance.randrange(10**9)), pause_s_max=0.2
    )
    writer.start()
    try:
        for cluster in clusters * rounds(1, 5):
            done = batches_done(checkpoint)
            with RunningPipeline("binlog-mirror", mirroring.config, cluster) as running:
                running.wait_for(lambda: batches_done(checkpoint) > done)  # noqa: B023
                time.sleep(chance.random() * 3)
    finally:
        writer.stop()
    run_sql(mirroring, "REPLACE INTO numbers VALUES (1, 0, 'after the last kill')")
    done = batches_done(checkpoint)
    set_mirror("")
    mirroring.sync()
    assert batches_done(checkpoint) > done, "the last run continues the query of the killed ones"
    print(f"{writer.transactions} transactions")


class Verifying:
    """`metaq pipeline verify binlog-mirror` in a thread of this process, which has Spark already."""

    def __init__(self, mirroring: Mirroring, *arguments: str) -> None:
        pool = ThreadPoolExecutor(1)
        self._done = pool.submit(run_command, mirroring, "verify", "binlog-mirror", *arguments)
        pool.shutdown(wait=False)

    @property
    def is_running(self) -> bool:
        return not self._done.done()

    def done(self) -> tuple[int, str]:
        """Waits for its end; returns exit code and output."""
        return self._done.result(VERIFY_S)
