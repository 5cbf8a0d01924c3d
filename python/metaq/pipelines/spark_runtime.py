"""Common parts of the pipelines on Spark: the session, and a query that reports and can be stopped."""

from __future__ import annotations

import logging
import math
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from metaq.config.kinds import Flag, Text
from metaq.errors import CommandError, ConfigError
from metaq.pipelines import Progress, Report
from metaq.pipelines.remarks import REMARK
from metaq.pipelines.report_timer import ReportTimer
from metaq.pipelines.settings import Key, Texts
from metaq.retry import Backoff, Retry
from metaq.spark.errors import OptionError, error_summary
from metaq.spark.interpreters import driver_python, running_executors_python
from metaq.spark.session import register, session
from metaq.spark.source.cluster import Cluster
from metaq.spark.source.listener import GroupOffsets
from metaq.spark.source.options import Subscribed
from metaq.spark.worker_failures import WorkerFailure, is_late, worker_failure

_log = logging.getLogger(__name__)

STARTS_MAX: Final = 10
"""How often a step is tried in a row if a Python process of Spark starts too slowly."""
START_BACKOFF: Final = Backoff(first_s=1.0, max_s=30.0)
Result = TypeVar("Result")
POLL_S: Final = 0.1
LOOK_TIMEOUT_S: Final = 60.0

SPARK: Final[Mapping[str, Key]] = {
    "master": Key(Text(says="a master such as local[4], spark://host:7077, yarn or k8s://…"), None),
    "jars": Key(Texts("a list of files that hold Delta Lake"), None),
    # These may include the keys of an object store.
    "config": Key(Texts('a list of NAME=VALUE, such as ["spark.executor.memory=2g"]'), (), is_secret=True),
    "environment": Key(Text(says="an archive that metaq spark pack wrote: a file or a URI"), None),
    "quiet": Key(Flag(), True),
}
"""The section [spark] of a TOML file."""


def quoted(name: str) -> str:
    """Quotes a name for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True, slots=True)
class SparkConfig:
    """Settings of the Spark session."""

    master: str | None
    jars: tuple[str, ...] | None
    config: Mapping[str, str]
    quiet: bool = True
    """Whether to hide the lines in which Spark reports how it resolves packages."""
    environment: str | None = None
    """An archive of `metaq spark pack` for the executors of a cluster."""
    packages: str | None = None
    """A package of Maven Central that is loaded instead of Delta Lake."""

    def on(self, master: str | None, environment: str | None) -> SparkConfig:
        """Returns the same settings with another master or environment, unless they are None."""
        return replace(
            self,
            master=self.master if master is None else master,
            environment=self.environment if environment is None else environment,
        )


def spark_config(path: Path, values: Mapping[str, Any]) -> SparkConfig:
    """Checks the section [spark]; raises ConfigError."""
    for number, line in enumerate(values["config"], 1):
        if "=" not in line:
            raise ConfigError(f"{path}: entry {number} of spark.config is not NAME=VALUE")
    jars = values["jars"]
    return SparkConfig(
        master=values["master"],
        jars=None if jars is None else tuple(located(path, jar) for jar in jars),
        config=dict(line.split("=", 1) for line in values["config"]),
        environment=None if values["environment"] is None else located(path, values["environment"]),
        quiet=values["quiet"],
    )


def located(path: Path, name: str) -> str:
    """Returns a URI as it is, and a path relative to the TOML file."""
    return name.rstrip("/") if "://" in name else str((path.parent / name).absolute())


@contextmanager
def spark_session(name: str, config: SparkConfig) -> Iterator[SparkSession]:
    """Starts a session and stops it at the end. If Spark runs already, yields its session unchanged."""
    # `getActiveSession` would not do: it is specific to a thread.
    if SparkContext._active_spark_context is not None:
        running = SparkSession.builder.getOrCreate()
        register(running)
        yield running
        return
    # A folder of its own: in one with a known name, another account could wait with files of its own.
    with tempfile.TemporaryDirectory(prefix="metaq-warehouse-", ignore_cleanup_errors=True) as warehouse:
        yield from _started_session(name, config, warehouse)


def _started_session(name: str, config: SparkConfig, warehouse: str) -> Iterator[SparkSession]:
    settings = {
        "spark.ui.showConsoleProgress": "false",
        # A number that does not fit is an error, not NULL.
        "spark.sql.ansi.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": warehouse,
        **({} if config.packages is None else {"spark.jars.packages": config.packages}),
        **config.config,
    }
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    with spark_errors():
        spark = session(
            f"metaq {name}",
            master=config.master,
            delta=config.packages is None,
            jars=config.jars,
            config=settings,
            environment=config.environment,
            quiet=config.quiet,
        )
    if is_main:
        # Spark has installed its own handler for Ctrl-C, which would raise in the middle of a batch.
        signal.signal(signal.SIGINT, before)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def spark_ui() -> str | None:
    """Returns the address of Spark's own pages; None if Spark does not run or serves none."""
    context = SparkContext._active_spark_context
    return None if context is None else context.uiWebUrl


@contextmanager
def spark_errors() -> Iterator[None]:
    """Turns errors of Spark into CommandError, without the Java stack trace."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        text = str(error)
        if (failure := explained(text)) is None:
            raise CommandError(error_summary(text)) from error
        raise CommandError(failure.summary, hint=failure.hint) from error


def explained(text: str) -> WorkerFailure | None:
    """Returns why a Python process of the running session failed; None if the error is another one."""
    return worker_failure(text, running_executors_python(), driver_python())


class QueryStart:
    """Starts a query, and gives its id to batches, which may run before `start` has returned."""

    def __init__(self, writer: DataStreamWriter, *, once: bool, interval_s: float) -> None:
        """With `once`, the query ends when it has read everything; otherwise it runs at an interval."""
        if once:
            self._writer = writer.trigger(availableNow=True)
        else:
            self._writer = writer.trigger(processingTime=f"{interval_s:g} seconds")
        self._query: StreamingQuery | None = None
        self._is_started = threading.Event()

    def __call__(self) -> StreamingQuery:
        """Starts the query. A query that is started again continues from its checkpoint."""
        query = self._writer.start()
        self._query = query
        self._is_started.set()
        return query

    @property
    def query(self) -> StreamingQuery:
        """The query that was started last; waits for the first start."""
        self._is_started.wait()
        assert self._query is not None
        return self._query


def count_queues(
    where: str,
    nameservers: str,
    topics: tuple[str, ...],
    pattern: str | None,
    *,
    asks_brokers: bool = False,
) -> int:
    """Counts the queues of topics before Spark is started; raises MetaqError, with `where` in front. If it
    `asks_brokers`, each of them must answer as well."""
    try:
        with Cluster(nameservers, LOOK_TIMEOUT_S) as cluster:
            queues = cluster.queues(Subscribed(topics=topics, pattern=pattern))
            found = len(queues)
            if asks_brokers:
                cluster.ends(queues)
    except OptionError as error:
        raise CommandError(f"{where}: {error}", hint="create a topic with metaq topic create") from None
    if not found:
        raise CommandError(f"{where}: no topic matches {pattern} at {nameservers}")
    return found


def columns_text(schema: StructType) -> str:
    """Returns the columns of a schema for a plan, such as `id:int,name:string`."""
    return schema.simpleString().removeprefix("struct<").removesuffix(">")


LagUpdate = Callable[[StreamingQuery, Progress], None]


def run_query(
    start: Callable[[], StreamingQuery],
    update: Callable[[Progress], None],
    report: Report,
    stop: threading.Event,
    update_lag: LagUpdate,
) -> Progress:
    """Runs a query until it ends or `stop` is set; raises CommandError.

    If a Python process of Spark starts too slowly, it waits and starts the query again, up to STARTS_MAX
    times without a batch in between; the query continues from its checkpoint. `update` fills in the progress,
    `update_lag` its lag.
    """
    tries = Retry(None, START_BACKOFF, tries_max=STARTS_MAX)
    restarts = 0
    while True:
        progress = Progress(phase="running", restarts=restarts)
        try:
            return _follow(start(), progress, update, report, stop, update_lag, tries.reset)
        except CommandError as error:
            if not is_late(str(error)) or stop.is_set():
                raise
            restarts += 1
            report(replace(progress, phase="waiting", restarts=restarts, rows_per_second=0.0))
            if not _waited(tries, stop, error):
                raise


def retried(work: Callable[[], Result], stop: threading.Event | None = None) -> Result:
    """Returns the result of a step that plans with a Python process, and repeats it if the process starts too
    slowly; raises CommandError."""
    tries = Retry(None, START_BACKOFF, tries_max=STARTS_MAX)
    while True:
        try:
            with spark_errors():
                return work()
        except CommandError as error:
            if not is_late(str(error)) or not _waited(tries, stop, error):
                raise


def _waited(tries: Retry, stop: threading.Event | None, error: CommandError) -> bool:
    """Waits before the next try; returns False if none is left or `stop` is set."""
    pause_s = tries.next_pause_s()
    if pause_s is None:
        return False
    _log.warning(
        "%s; try %d of %d begins in %.1f s", error, tries.tries + 1, STARTS_MAX, pause_s, extra=REMARK
    )
    return not (stop or threading.Event()).wait(pause_s)


def _follow(
    query: StreamingQuery,
    progress: Progress,
    update: Callable[[Progress], None],
    report: Report,
    stop: threading.Event,
    update_lag: LagUpdate,
    has_worked: Callable[[], None],
) -> Progress:
    timer = ReportTimer()
    while query.isActive and not stop.is_set():
        stop.wait(POLL_S)
        if not timer.is_due():
            continue
        update(progress)
        progress.rows_per_second = timer.rows_per_second(progress.rows)
        _update_batch(query, progress)
        if progress.batch_s is not None:
            has_worked()
        update_lag(query, progress)
        report(replace(progress))
    with spark_errors():
        if query.isActive:
            query.stop()
        else:
            query.awaitTermination()
    update(progress)
    _update_batch(query, progress)
    update_lag(query, progress)
    progress.phase = "stopped"
    report(replace(progress))
    return progress


@contextmanager
def group_offsets(
    spark: SparkSession, listeners: Sequence[GroupOffsets]
) -> Iterator[Callable[[StreamingQuery], None]]:
    """Lets listeners commit offsets after each batch; yields a function that commits the last batch.

    The source itself commits the offsets of a batch only when the next one is planned.
    """

    def remove() -> None:
        for listener in listeners:
            spark.streams.removeListener(listener)

    def commit(query: StreamingQuery) -> None:
        # Spark calls listeners later, perhaps after the session has ended. It may also call them for an
        # earlier batch after this function, which would move the group back.
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


def _update_batch(query: StreamingQuery, progress: Progress) -> None:
    last = query.lastProgress
    if last is not None:
        rate = last.inputRowsPerSecond
        progress.rows_in_per_second = rate if math.isfinite(rate) else None
    # While nothing arrives, Spark reports a trigger without a batch.
    if last is not None and "addBatch" in last.durationMs:
        progress.batch_s = last.durationMs["triggerExecution"] / 1000
