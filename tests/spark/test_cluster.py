"""The source and the sink on a cluster of two workers, whose Python has no MetaQ but what is sent there."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

import metaq.spark
from tests.spark.lake import Lake
from tests.spark.support import BROKER, SHORT_LIVED, Topics, send_raw
from tests.support.metaq import Metaq

PROGRAM = Path(__file__).with_name("cluster_program.py")
OURS = ("metaq", "pymetaq", "msgspec", "opentelemetry", "typing_extensions")
PATIENCE_S = 380
MASTER = "local-cluster[2,1,1024]"


def test_executors_need_nothing_but_the_archive(
    tmp_path: Path, served: Metaq, topics: Topics, make_topic: Callable[..., str]
) -> None:
    topic, copy, streamed = make_topic(2), make_topic(2), make_topic(1)
    bodies = [f"row {number:03}" for number in range(200)]
    topics.fill(topic, bodies[::2])
    topics.fill(topic, bodies[1::2], queue=1)
    send_raw(served.broker, topic, b"no zlib at all", system_flag=1)
    config = json.dumps(settings(tmp_path))
    checkpoint = str(tmp_path / "checkpoint")
    printed = run(
        tmp_path, str(PROGRAM), MASTER, served.nameserver, topic, copy, streamed, checkpoint, config
    )
    assert json.loads(printed.splitlines()[-1]) == {
        "modules": ["metaq-package/metaq/__init__.py"],
        "bodies": bodies,
    }
    told = [file.read_text(errors="replace") for file in (tmp_path / "spark" / "work").glob("app-*/*/stderr")]
    line = f"going on without a body that cannot be decompressed: {topic}/{BROKER}/0 [100, 101)"
    assert any(line in text for text in told)


def test_a_pipeline_on_another_master_than_its_file_says(
    tmp_path: Path, spark: SparkSession, served: Metaq, topics: Topics, make_topic: Callable[..., str]
) -> None:
    lake = Lake(spark, served, tmp_path, make_topic(2))
    lines = [f"line {number:03}" for number in range(100)]
    topics.fill(lake.topic, lines[::2])
    topics.fill(lake.topic, lines[1::2], queue=1)
    more = [f"{name}={value}" for name, value in settings(tmp_path).items()]
    written = lake.config.read_text()
    lake.config.write_text(written.replace("config = [", f"config = [{json.dumps(more)[1:-1]}, "))
    run(
        tmp_path,
        *("-m", "metaq", "pipeline", "run", "log-lake", "--config", str(lake.config)),
        *("--master", MASTER),
    )
    assert sorted(row.line for row in lake.frame().collect()) == lines
    assert "local-cluster" not in written
    assert len(list((tmp_path / "spark" / "work").glob("app-*/*"))) == 2, "each worker ran an executor"


def test_the_archive_holds_the_package_and_what_it_needs(tmp_path: Path) -> None:
    made = metaq.spark.archive(tmp_path / "metaq.zip")
    with zipfile.ZipFile(made) as packed:
        names = set(packed.namelist())
    assert {"metaq/__init__.py", "metaq/spark/read.py", "msgspec/__init__.py"} <= names
    assert any(name.startswith("metaq/_core") and name.endswith(".so") for name in names)
    assert not [name for name in names if "__pycache__" in name or name.startswith((".", "/"))]
    assert list(tmp_path.iterdir()) == [made]


def settings(home: Path) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.executor.extraJavaOptions": SHORT_LIVED,
        "spark.local.dir": str(home),
        "spark.pyspark.python": str(bare_python(home)),
        "spark.executorEnv.PYTHONPATH": str(packages_of_others(home)),
    }


def run(home: Path, *arguments: str) -> str:
    """What the program prints."""
    outcome = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **driver_environment(home)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert outcome.returncode == 0, outcome.stderr[-4000:]
    return outcome.stdout


def bare_python(home: Path) -> Path:
    """A Python that looks into no site-packages."""
    program = home / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    program.chmod(0o755)
    return program


def packages_of_others(home: Path) -> Path:
    """What the workers have: pyarrow and so on, and nothing of ours."""
    packages = home / "packages"
    packages.mkdir()
    for entry in Path(site.getsitepackages()[0]).iterdir():
        if not entry.name.startswith(OURS) and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    return packages


def driver_environment(home: Path) -> dict[str, str]:
    # Workers leave what they did in Spark's own directory.
    spark_home = home / "spark"
    spark_home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (spark_home / entry.name).symlink_to(entry)
    paths = (str(Path(metaq.__file__).parents[1]), site.getsitepackages()[0])
    return {
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(paths),
    }
