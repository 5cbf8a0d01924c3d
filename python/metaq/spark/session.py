"""A Spark session that is set up for MetaQ and Delta Lake."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from metaq.spark.environment import with_environment
from metaq.spark.interpreters import executors_python, look_up_here, planned_here
from metaq.spark.launch import start_jvm
from metaq.spark.shipping import is_shipped, shipped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA_PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""The release that fits the pyspark of the extra `spark`."""

_DELTA: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_OURS: Final = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Without this Spark does not push filters of batch queries to the source.
    "spark.sql.python.filterPushdown.enabled": "true",
}


def session(
    app_name: str = "metaq",
    *,
    master: str | None = None,
    delta: bool = True,
    jars: Iterable[str | Path] | None = None,
    config: Mapping[str, str] | None = None,
    environment: str | Path | None = None,
    ship: bool | None = None,
    quiet: bool = True,
) -> SparkSession:
    """Returns the session of this process, or a new one, with `format("metaq")` registered.

    Spark fetches Delta Lake's jars from Maven Central and caches them, unless `jars` names files or `delta`
    is False. Without `master` it uses the one of spark-submit, or all cores of this machine. `config` is
    applied last and wins. While Spark starts, `quiet` hides the lines in which it reports how it resolves
    packages. Raises SparkError, for example if there is no Java.

    Executors run the Python of this process, unless `config` or PYSPARK_PYTHON names another. On a cluster
    whose workers do not have it, `environment` is an archive of `metaq spark pack`: executors get it and run
    the Python inside. Without it they get MetaQ alone (see `metaq.spark.archive`), unless `ship` is False.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    is_first = SparkContext._active_spark_context is None
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    settings = {**_OURS, **(_DELTA if delta else {})}
    if is_first and is_here(master):
        settings |= few_tasks(master)
    named = None if jars is None else ",".join(str(jar) for jar in jars)
    if named:
        settings["spark.jars"] = named
    elif delta and named is None:
        settings["spark.jars.packages"] = DELTA_PACKAGE
    settings |= config or {}
    if is_first and environment is not None and not is_here(master):
        settings, ship = with_environment(settings, str(environment)), False
    if ship is None:
        ship = master is not None and not is_here(master)
    if is_first and ship and not is_shipped(settings):
        directory = Path(tempfile.mkdtemp(prefix="metaq-ship-"))
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        settings = shipped(settings, directory)
    if is_first:
        named_master = {} if master is None else {"spark.master": master}
        with look_up_here():
            settings = start_jvm({"spark.app.name": app_name, **named_master, **settings}, quiet=quiet)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if is_first and not is_submitted():
        spark.sparkContext.pythonExec = executors_python(settings)
    register(spark)
    return spark


def few_tasks(master: str | None) -> dict[str, str]:
    """Returns settings for one machine: as many tasks as cores, where Spark has 200 and Delta 50."""
    cores = str(_cores(master))
    return {"spark.sql.shuffle.partitions": cores, "spark.databricks.delta.snapshotPartitions": cores}


def _cores(master: str | None) -> int:
    named = re.match(r"local\[(\d+)\W?", master or "")
    if named:
        return max(int(named[1]), 1)
    return 1 if master == "local" else os.cpu_count() or 2


def is_here(master: str | None) -> bool:
    """Returns whether executors run on this machine. Under spark-submit only it knows the master."""
    if master is None:
        return not is_submitted()
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def is_submitted() -> bool:
    """Returns whether spark-submit has started this process. Then it has chosen the Python of executors."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def register(spark: SparkSession) -> None:
    """Adds `format("metaq")` to a session. Safe to call twice."""
    from metaq.spark.datasource import MetaqDataSource

    with planned_here(spark):
        spark.dataSource.register(MetaqDataSource)
