"""One Spark session and one broker for all tests here: a session takes seconds to start."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import metaq.spark
from tests.spark.support import Topics
from tests.support.metaq import Metaq
from tests.support.spark_jars import delta_jars, driver_jars

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def spark_stderr(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file for stderr of the session's driver and of every Python process that Spark starts for it."""
    return tmp_path_factory.mktemp("stderr") / "spark.log"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_stderr: Path) -> Iterator[SparkSession]:
    home = tmp_path_factory.mktemp("spark")
    # Whatever the machine is called, everything here talks to itself.
    os.environ.update(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable)
    # Workers unpickle what tests define.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    config = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        # Delta reads the log of a table in 50 tasks otherwise.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.default.parallelism": "2",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.local.dir": str(home),
        # It is used for many minutes, unlike those that tests start.
        "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC -Dderby.system.home={home}",
        # To compile a query takes longer than to run it on a few rows. Where a test has a Spark of its own,
        # that is as users have it.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.memory": "1g",
        # An idle query looks for messages all the time otherwise.
        "spark.sql.streaming.pollingDelay": "50ms",
    }
    with stderr_to(spark_stderr):
        session = metaq.spark.session(
            "tests", master="local[2]", jars=(*delta_jars(), *driver_jars()), config=config
        )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
    print(spark_stderr.read_text(errors="replace"), file=sys.stderr)


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Redirects stderr of this process; processes that it starts meanwhile keep the redirection."""
    before = os.dup(2)
    sys.stderr.flush()
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metaq]:
    """`metaq serve` for all tests that do not need one of their own."""
    started = Metaq.serve(tmp_path_factory.mktemp("served"), "--flush", "async")
    yield started
    started.stop()


_numbers = count(1)


@pytest.fixture(scope="session")
def topics(served: Metaq) -> Iterator[Topics]:
    found = Topics(served)
    yield found
    found.close()


@pytest.fixture
def make_topic(topics: Topics) -> Callable[..., str]:
    """Creates a topic that no other test knows."""

    def make(queues: int = 1) -> str:
        topic = f"topic-{next(_numbers)}"
        topics.create(topic, queues)
        return topic

    return make
