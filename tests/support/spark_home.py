"""Spark for the tests: a directory that is its home, and an archive of its classes.

Spark's workers write into its home, so the tests have a home of their own, made of links. It lacks the zip
files with pyspark and py4j, so that Spark's Python processes import the installed packages: from a zip file
each of them would compile all modules again, two thirds of its start. With the archive a JVM starts in half
the time. `make test` writes the archive once (`python -m tests.support.spark_home`); the tests also pass
without it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from tests.support.maven import REPOSITORY_ROOT, java

COLLECTOR, NO_OPTIMISER = "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"
ROOM = "-XX:ReservedCodeCacheSize=256m -XX:MetaspaceSize=256m"
"""Without the optimiser a JVM has 48 MB for compiled code. A session of many tests fills them, throws methods
away and compiles them again: a third of its work."""
WRITE_TIMEOUT_S = 600


def spark_home() -> Path:
    """Returns the directory for SPARK_HOME; an archive fits only to class paths that begin with it."""
    home = REPOSITORY_ROOT / "build" / "spark" / f"home-{_version()}"
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".home-", dir=home.parent))
        package = Path(pyspark.__file__).parent
        (fresh / "python").mkdir()
        for entry in (*package.iterdir(), *package.glob("python/*")):
            if entry not in (package / "python", package / "python" / "lib"):
                (fresh / entry.relative_to(package)).symlink_to(entry)
        try:
            fresh.rename(home)
        except OSError:
            # Another run of the tests was faster.
            shutil.rmtree(fresh)
    return home


def archive() -> Path:
    return spark_home() / "classes.jsa"


def jvm_options() -> str:
    """Returns options for the JVMs of tests; they name the archive if there is one.

    Optimised code pays off for none of them, not even for the session that many tests share.
    """
    options = f"{COLLECTOR} {NO_OPTIMISER} {ROOM}"
    return f"{options} -XX:SharedArchiveFile={archive()}" if archive().exists() else options


def write_archive() -> None:
    """Writes the archive unless it is there."""
    if archive().exists():
        return
    fresh = archive().with_name(f".classes-{os.getpid()}.jsa")
    written = subprocess.run(
        [sys.executable, "-m", "tests.support.spark_home", str(fresh)],
        cwd=REPOSITORY_ROOT,
        env={
            **os.environ,
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WRITE_TIMEOUT_S,
    )
    if written.returncode != 0 or not fresh.exists():
        raise RuntimeError(f"no archive of Spark's classes was written:\n{written.stdout[-4000:]}")
    fresh.replace(archive())


def _version() -> str:
    program = Path(java()).resolve()
    parts = (
        "without zip files",
        str(program),
        str(program.stat().st_mtime_ns),
        pyspark.__version__,
        pyspark.__file__,
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _load_classes(into: str) -> None:
    """Uses what most tests use; the JVM writes the archive when it ends."""
    from pyspark.sql import SparkSession

    dump = f"-XX:ArchiveClassesAtExit={into}"
    with tempfile.TemporaryDirectory() as home:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.local.dir", home)
            .config("spark.sql.warehouse.dir", f"{home}/warehouse")
            .config("spark.sql.shuffle.partitions", "2")
            .config(
                "spark.driver.extraJavaOptions",
                f"{COLLECTOR} {NO_OPTIMISER} {dump}",
            )
            .getOrCreate()
        )
        spark.range(100).selectExpr("CAST(id AS string) AS value").write.text(f"{home}/source")
        spark.read.text(f"{home}/source").groupBy("value").count().collect()
        query = (
            spark.readStream.text(f"{home}/source")
            .mapInArrow(lambda batches: batches, "value string")
            .writeStream.format("parquet")
            .option("path", f"{home}/sink")
            .option("checkpointLocation", f"{home}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        spark.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _load_classes(sys.argv[1])
    else:
        write_archive()
