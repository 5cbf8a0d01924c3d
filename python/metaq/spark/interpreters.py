"""Which Python runs the processes that Spark starts.

Spark starts three kinds. It plans a query on the driver, it runs tasks on executors, and it looks for
sources once when a session begins. For the first two it takes one program, PYSPARK_PYTHON or the first
`python3` of the PATH, although executors may have another environment than the driver. So we name both:

- planners run the Python of this process, because it has MetaQ;
- executors run the program that the settings name, or the same one if nothing is named.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYTHON: Final = "spark.pyspark.python"
"""Spark's own setting for the Python of executors. Only spark-submit reads it."""
TASK_PYTHON: Final = "spark.sql.execution.pyspark.python"
"""The setting of a session that wins over the program that a function was registered with."""
LOOK_UP: Final = "PYSPARK_DRIVER_PYTHON"
"""The variable of the JVM that names the Python which looks for installed sources."""


def driver_python() -> str:
    """Returns the program of this process."""
    return sys.executable or "python3"


def executors_python(config: Mapping[str, str]) -> str:
    """Returns the program that executors run: the one that is named, or that of this process."""
    return config.get(PYTHON) or os.environ.get("PYSPARK_PYTHON") or driver_python()


def running_executors_python() -> str:
    """Returns the program that executors of the running session use."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context, session = SparkContext._active_spark_context, SparkSession._instantiatedSession
    if context is None or session is None:
        return driver_python()
    return session.conf.get(TASK_PYTHON, None) or context.pythonExec


@contextmanager
def look_up_here() -> Iterator[None]:
    """Lets a JVM that is started meanwhile look for sources with the Python of this process."""
    before = os.environ.get(LOOK_UP)
    os.environ[LOOK_UP] = driver_python()
    try:
        yield
    finally:
        if before is None:
            del os.environ[LOOK_UP]
        else:
            os.environ[LOOK_UP] = before


@contextmanager
def planned_here(spark: SparkSession) -> Iterator[None]:
    """Registers functions meanwhile that Spark plans with the Python of this process, and runs in tasks with
    the Python of the executors."""
    # A session of Spark Connect has no context: its server plans.
    context = getattr(spark, "sparkContext", None)
    if context is None:
        yield
        return
    executors = context.pythonExec
    if spark.conf.get(TASK_PYTHON, None) is None and executors != driver_python():
        spark.conf.set(TASK_PYTHON, executors)
    context.pythonExec = driver_python()
    try:
        yield
    finally:
        context.pythonExec = executors
