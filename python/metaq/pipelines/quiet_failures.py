"""Keeps stack traces of a failed batch away from people: the run ends with the error itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import SparkSession

_STREAMING: Final = "org.apache.spark.sql.execution.streaming"
"""The loggers of Spark that print the failure of a query with the stacks of Java and Python."""
_PY4J: Final = "py4j.clientserver"
"""The logger in this process that prints it once more."""


@contextmanager
def quiet_failures(spark: SparkSession) -> Iterator[None]:
    """Silences the log of a query that fails. Whoever runs the query must report its error."""
    context: Any = spark.sparkContext
    log4j = context._jvm.org.apache.logging.log4j
    logger = logging.getLogger(_PY4J)
    before = logger.level
    log4j.core.config.Configurator.setLevel(_STREAMING, log4j.Level.OFF)
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
        log4j.core.config.Configurator.setLevel(_STREAMING, log4j.Level.ERROR)
