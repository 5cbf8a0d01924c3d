"""Spark, `local[2]`: a whole topic read as a table, six columns of it used; a table written to a topic."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession

import metaq.spark
from bench.clients.task import BODY, Result, Task
from bench.process_figures import cpu_s
from tests.support.maven import REPOSITORY_ROOT, classpath

WRITTEN_WARM, WRITTEN = 300_000, 3_000_000
POM = Path(__file__).parent / "spark-pom.xml"
_CONNECTOR = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
"""Jars that Kafka's source needs in addition to those in pyspark."""


def connector_jars() -> tuple[str, ...]:
    """Fetched by Maven the first time."""
    resolved = classpath(POM, REPOSITORY_ROOT / "build" / "spark-kafka").split(os.pathsep)
    return tuple(jar for jar in resolved if Path(jar).name.startswith(_CONNECTOR))


def read_metaq(task: Task) -> Result:
    spark = _session(())
    reader = (
        spark.read.format("metaq")
        .option("nameservers", task.server)
        .option("subscribe", task.topic)
        .option("columns", "topic,queueId,queueOffset,tags,body,storeTimestamp")
    )
    return _timed(lambda: reader.load().toDF("topic", "partition", "offset", "key", "value", "timestamp"))


def read_kafka(task: Task) -> Result:
    spark = _session(connector_jars())
    reader = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", task.server)
        .option("subscribe", task.topic)
    )
    return _timed(lambda: reader.load().select("topic", "partition", "offset", "key", "value", "timestamp"))


def write_metaq(task: Task) -> Result:
    return _write_metaq(task, "at_least_once")


def write_metaq_exactly_once(task: Task) -> Result:
    return _write_metaq(task, "exactly_once")


def _write_metaq(task: Task, guarantee: str) -> Result:
    options = {"nameservers": task.server, "topic": task.topic, "deliveryGuarantee": guarantee}
    return _timed_write(_session(()), "metaq", "body", options)


def write_kafka(task: Task) -> Result:
    options = {"kafka.bootstrap.servers": task.server, "topic": task.topic}
    return _timed_write(_session(connector_jars()), "kafka", "value", options)


def _timed_write(spark: SparkSession, sink: str, column: str, options: Mapping[str, str]) -> Result:
    """The second writing: the first one starts workers and has the virtual machine compile."""

    def write(rows: int) -> None:
        body = f"cast('{BODY.decode()}' as binary) as {column}"
        frame = spark.range(0, rows, 1, 2).selectExpr(body)
        frame.write.format(sink).options(**options).mode("append").save()

    write(WRITTEN_WARM)
    cpu_before, begin = _cpu_of_family_s(), time.monotonic()
    write(WRITTEN)
    end, cpu_after = time.monotonic(), _cpu_of_family_s()
    return Result(WRITTEN, begin, end, cpu_after - cpu_before, WRITTEN_WARM + WRITTEN)


def _session(jars: Sequence[str]) -> SparkSession:
    os.environ.update(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.local.dir": tempfile.mkdtemp(),
    }
    spark = metaq.spark.session("bench", master="local[2]", delta=False, jars=jars, config=settings)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _timed(load: Callable[[], DataFrame]) -> Result:
    """The second reading: the first one starts workers and has the virtual machine compile."""
    _read(load())
    cpu_before, begin = _cpu_of_family_s(), time.monotonic()
    # A new frame, because a collected frame keeps the results of its stages.
    row = _read(load())
    end, cpu_after = time.monotonic(), _cpu_of_family_s()
    if row.bytes != row.rows * len(BODY):
        raise RuntimeError(f"{row.rows} bodies have {row.bytes} bytes")
    return Result(count=row.rows, begin=begin, end=end, client_cpu_s=cpu_after - cpu_before, total=row.rows)


def _read(frame: DataFrame) -> Row:
    """Uses every column."""
    (row,) = frame.selectExpr(
        "count(*) as rows",
        "sum(length(value)) as bytes",
        "sum(offset) as offsets",
        "sum(partition) as partitions",
        "max(topic) as topic",
        "max(timestamp) as latest",
        "count(key) as keys",
    ).collect()
    return row


def _cpu_of_family_s() -> float:
    """Returns the CPU seconds of this process, of Spark's JVM and of its workers."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        parents.setdefault(parent, []).append(int(entry.name))
    family, waiting = [], [os.getpid()]
    while waiting:
        family.append(waiting.pop())
        waiting += parents.get(family[-1], [])
    spent_s = 0.0
    for pid in family:
        try:
            spent_s += cpu_s(pid)
        except OSError:  # The process has ended meanwhile.
            continue
    return spent_s
