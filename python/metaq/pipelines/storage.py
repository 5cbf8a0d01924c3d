"""Looks at files, and deletes them, through Hadoop, on any file system that Spark can reach."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


def exists(spark: SparkSession, path: str) -> bool:
    hadoop_path, system = _open(spark, path)
    return bool(system.exists(hadoop_path))


def names(spark: SparkSession, pattern: str) -> list[str]:
    """Returns the last part of every path that matches a glob pattern."""
    hadoop_path, system = _open(spark, pattern)
    return [status.getPath().getName() for status in system.globStatus(hadoop_path) or ()]


def directories(spark: SparkSession, path: str) -> list[str]:
    """Returns the names of the directories in a directory, which need not exist."""
    hadoop_path, system = _open(spark, path)
    if not system.exists(hadoop_path):
        return []
    return [status.getPath().getName() for status in system.listStatus(hadoop_path) if status.isDirectory()]


def delete(spark: SparkSession, path: str, aside: str) -> None:
    """Moves a directory, which need not exist, to another place, and deletes it there."""
    hadoop_path, system = _open(spark, path)
    moved, _ = _open(spark, aside)
    if system.exists(hadoop_path):
        system.mkdirs(moved.getParent())
        system.rename(hadoop_path, moved)
        system.delete(moved, True)


def text(spark: SparkSession, path: str) -> str:
    """Returns the content of a small file."""
    return "\n".join(row[0] for row in spark.read.text(path).collect())


def _open(spark: SparkSession, path: str) -> tuple[Any, Any]:
    context: Any = spark.sparkContext
    hadoop_path = context._jvm.org.apache.hadoop.fs.Path(path)
    return hadoop_path, hadoop_path.getFileSystem(context._jsc.hadoopConfiguration())
