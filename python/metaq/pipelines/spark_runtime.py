"""What pipelines on Spark have in common: their session, and a query that reports and can be stopped."""

from __future__ import annotations

import logging
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from metaq.config.kinds import Text
from metaq.errors import CommandError, ConfigError
from metaq.pipelines import Progress, Report
from metaq.pipelines.settings import Key, Texts
from metaq.spark.session import is_here, register, session
from metaq.spark.source.lag import lags
from metaq.spark.source.listener import GroupOffsets

log = logging.getLogger(__name__)

_RAISED: Final = re.compile(r"[\w.]+(?:Error|Exception): ")
"""The last line of a traceback of Python."""

STARTS_MAX: Final = 10
WORKER_LATE: Final = "Python worker failed to connect back"
REPORT_INTERVAL_S: Final = 1.0
POLL_S: Final = 0.1

SPARK: Final[Mapping[str, Key]] = {
    "master": Key(Text(says="a master such as local[4], spark://host:7077, yarn or k8s://…"), None),
    "jars": Key(Texts("a list of files that hold Delta Lake"), None),
    # Keys of a store of objects are among them.
    "config": Key(Texts('a list of NAME=VALUE, such as ["spark.executor.memory=2g"]'), (), is_secret=True),
}
"""The section [spark] of a TOML file."""


@dataclass(frozen=True, slots=True)
class SparkConfig:
    """How the session is made."""

    master: str | None
    jars: tuple[str, ...] | None
    config: Mapping[str, str]
    packages: str | None = None
    """Of Maven Central, instead of Delta Lake."""


def spark_config(path: Path, values: Mapping[str, Any]) -> SparkConfig:
    """Raises ConfigError."""
    for number, line in enumerate(values["config"], 1):
        if "=" not in line:
            raise ConfigError(f"{path}: entry {number} of spark.config is not NAME=VALUE")
    jars = values["jars"]
    return SparkConfig(
        master=values["master"],
        jars=None if jars is None else tuple(located(path, jar) for jar in jars),
        config=dict(line.split("=", 1) for line in values["config"]),
    )


def located(path: Path, name: str) -> str:
    """Relative to the TOML file, unless it is a URI."""
    return name.rstrip("/") if "://" in name else str((path.parent / name).absolute())


@contextmanager
def spark_session(name: str, config: SparkConfig) -> Iterator[SparkSession]:
    """Ended afterwards; where Spark runs already, its session as it is."""
    settings = {
        "spark.ui.showConsoleProgress": "false",
        # Numbers that do not fit are an error and no NULL.
        "spark.sql.ansi.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "metaq-warehouse"),
        **(_few_tasks() if is_here(config.master) else {}),
        **({} if config.packages is None else {"spark.jars.packages": config.packages}),
        **config.config,
    }
    # Not the active session, of which each thread has its own, or none.
    if SparkContext._active_spark_context is not None:
        running = SparkSession.builder.getOrCreate()
        register(running)
        yield running
        return
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    spark = session(
        f"metaq {name}",
        master=config.master,
        delta=config.packages is None,
        jars=config.jars,
        config=settings,
    )
    if is_main:
        # Spark has taken Ctrl-C for itself, where it would raise in the middle of a batch.
        signal.signal(signal.SIGINT, before)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def _few_tasks() -> dict[str, str]:
    """Spark's 200 tasks and Delta's 50, for each look at a table's log, are too many for one machine."""
    cores = str(os.cpu_count() or 2)
    return {"spark.sql.shuffle.partitions": cores, "spark.databricks.delta.snapshotPartitions": cores}


@contextmanager
def spark_errors() -> Iterator[None]:
    """What Spark says, without its stack of Java calls."""
    try:
        yield
    except PySparkException as error:
        raise CommandError(_first_lines(str(error))) from error


def _first_lines(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    # Our own errors come back through Java with their traceback: the last line of it says what it is.
    ours = [line for line in lines if line.startswith("metaq.")]
    if ours:
        return ours[-1].partition(": ")[2]
    raised = [line for line in lines[1:] if _RAISED.match(line)]
    return "; ".join(line.strip() for line in (raised[-1:] or lines[:3]))


def run_query(
    start: Callable[[], StreamingQuery],
    tell: Callable[[Progress], None],
    report: Report,
    stop: threading.Event,
) -> Progress:
    """Starts a query, which may be done again from its checkpoint, and follows it; raises CommandError."""
    for left in reversed(range(STARTS_MAX)):
        try:
            return _follow(start(), tell, report, stop)
        except CommandError as error:
            # Spark gives the worker of a source ten seconds to start, which is little on a busy machine.
            if WORKER_LATE not in str(error) or not left or stop.is_set():
                raise
            log.warning("a worker of Spark was late; the query is started again")
    raise AssertionError


def _follow(
    query: StreamingQuery, tell: Callable[[Progress], None], report: Report, stop: threading.Event
) -> Progress:
    """Until the query is done or `stop` is set; `tell` fills in what has been done. Raises CommandError."""
    progress = Progress(phase="running")
    reported, rows_before = time.monotonic(), 0
    while query.isActive and not stop.is_set():
        stop.wait(POLL_S)
        now = time.monotonic()
        if now - reported < REPORT_INTERVAL_S:
            continue
        tell(progress)
        progress.rows_per_second = (progress.rows - rows_before) / (now - reported)
        reported, rows_before = now, progress.rows
        _lag(query, progress)
        report(replace(progress))
    with spark_errors():
        if query.isActive:
            query.stop()
        else:
            query.awaitTermination()
    tell(progress)
    _lag(query, progress)
    progress.phase = "stopped"
    report(replace(progress))
    return progress


@contextmanager
def group_offsets(
    spark: SparkSession, listeners: Sequence[GroupOffsets]
) -> Iterator[Callable[[StreamingQuery], None]]:
    """Has them commit as soon as a batch is done; gives what does that for the last one.

    The source itself tells the brokers of a batch when the next one is planned.
    """

    def remove() -> None:
        for listener in listeners:
            spark.streams.removeListener(listener)

    def commit(query: StreamingQuery) -> None:
        # Listeners are told later, when there may be no session any more. And of a batch before the last one
        # perhaps after this, which would take the group back.
        remove()
        for listener in listeners:
            if query.lastProgress is not None:
                listener.commit(query.lastProgress)

    for listener in listeners:
        spark.streams.addListener(listener)
    try:
        yield commit
    finally:
        remove()


def _lag(query: StreamingQuery, progress: Progress) -> None:
    last = query.lastProgress
    found = lags(last) if last is not None else []
    if found:
        seconds = [lag.seconds for lag in found if lag.seconds is not None]
        progress.lag_s = max(seconds) if len(seconds) == len(found) else None
        progress.details["messages_left"] = sum(lag.messages for lag in found)
