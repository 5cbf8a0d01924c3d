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
from tests.spark.support import QUICK, Topics
from tests.support.metaq import Metaq
from tests.support.spark_home import jvm_options, spark_home
from tests.support.spark_jars import delta_jars, driver_jars

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def spark_stderr(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with stderr of the session's driver and of its Python processes."""
    return tmp_path_factory.mktemp("stderr") / "spark.log"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_stderr: Path) -> Iterator[SparkSession]:
    home = tmp_path_factory.mktemp("spark")
    # Use the loopback interface, whatever the machine's name is.
    os.environ.update(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable, SPARK_HOME=str(spark_home()))
    # Workers unpickle functions of the tests.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    config = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        # By default Delta reads the log of a table in 50 tasks.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.default.parallelism": "2",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.local.dir": str(home),
        "spark.driver.extraJavaOptions": f"{jvm_options()} -Dderby.system.home={home}",
        **QUICK,
        "spark.driver.memory": "1g",
        # Otherwise an idle query looks for messages all the time.
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
    """Redirects stderr of this process and of the processes that it starts meanwhile."""
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
    """The `metaq serve` of all tests that do not need their own."""
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
    """Creates a topic that no other test uses."""

    def make(queues: int = 1) -> str:
        topic = f"topic-{next(_numbers)}"
        topics.create(topic, queues)
        return topic

    return make
