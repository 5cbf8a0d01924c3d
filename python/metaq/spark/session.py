"""A Spark session that is set up for MetaQ and Delta Lake."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from metaq.spark.shipping import is_shipped, shipped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA_PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""Goes with the pyspark that the extra `spark` installs."""

_DELTA: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_OURS: Final = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Without it the source is never told which rows a batch query wants.
    "spark.sql.python.filterPushdown.enabled": "true",
}


def session(
    app_name: str = "metaq",
    *,
    master: str | None = None,
    delta: bool = True,
    jars: Iterable[str | Path] | None = None,
    config: Mapping[str, str] | None = None,
    ship: bool | None = None,
) -> SparkSession:
    """The session of this process, or a new one, with `format("metaq")` registered.

    Delta Lake's jars are resolved from Maven Central and kept by Spark, unless `jars` names files that hold
    them, or `delta` is False. Without `master` it is what spark-submit says, or all cores of this machine.
    `config` goes last and overrules what is set here.

    Executors of a cluster get MetaQ from here (see `metaq.spark.archive`), unless `ship` is False; on this
    machine they are run by this Python, unless PYSPARK_PYTHON names another.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    is_first = SparkContext._active_spark_context is None
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    settings = {**_OURS, **(_DELTA if delta else {})}
    named = None if jars is None else ",".join(str(jar) for jar in jars)
    if named:
        settings["spark.jars"] = named
    elif delta and named is None:
        settings["spark.jars.packages"] = DELTA_PACKAGE
    settings |= config or {}
    if is_first and is_here(master):
        # Spark would take the first python3 of the PATH, which need not be the one that has this package.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if ship is None:
        ship = master is not None and not is_here(master)
    if is_first and ship and not is_shipped(settings):
        directory = Path(tempfile.mkdtemp(prefix="metaq-ship-"))
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        settings = shipped(settings, directory)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def is_here(master: str | None) -> bool:
    """Whether executors are on this machine; under spark-submit only it knows which master there is."""
    if master is None:
        return "PYSPARK_GATEWAY_PORT" not in os.environ
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def register(spark: SparkSession) -> None:
    """Makes `format("metaq")` known to a session. Safe to call twice."""
    from metaq.spark.datasource import MetaqDataSource

    spark.dataSource.register(MetaqDataSource)
