"""What lies where, on whatever file system it is."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


def exists(spark: SparkSession, path: str) -> bool:
    place, system = _at(spark, path)
    return bool(system.exists(place))


def names(spark: SparkSession, pattern: str) -> list[str]:
    """Of all that matches, without the directories above."""
    place, system = _at(spark, pattern)
    return [found.getPath().getName() for found in system.globStatus(place) or ()]


def text(spark: SparkSession, path: str) -> str:
    """Of a small file."""
    return "\n".join(row[0] for row in spark.read.text(path).collect())


def _at(spark: SparkSession, path: str) -> tuple[Any, Any]:
    context: Any = spark.sparkContext
    place = context._jvm.org.apache.hadoop.fs.Path(path)
    return place, place.getFileSystem(context._jsc.hadoopConfiguration())
