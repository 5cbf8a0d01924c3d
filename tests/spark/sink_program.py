"""A stream that writes exactly once, as a process that a test can kill; its tasks fail or kill themselves."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

import metaq.spark
from metaq.spark.sink.stream import BATCH_ID
from tests.spark.support import JVM_OPTIONS, QUICK

TASKS = 3


def flaky(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stops one task of each batch at its first try, after it has written rows: in even batches it fails,
    in odd ones its process is killed."""
    context = TaskContext.get()
    assert context is not None
    number = int(context.getLocalProperty(BATCH_ID) or 0)
    falls = context.attemptNumber() == 0 and context.partitionId() == number % TASKS
    for batch in batches:
        yield batch.slice(0, batch.num_rows // 2)
        if falls and number % 2:
            print("this task is killed on purpose", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        elif falls:
            raise RuntimeError("this task fails on purpose")
        yield batch.slice(batch.num_rows // 2)


def main(name_servers: str, topic: str, source: str, checkpoint: str) -> None:
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraJavaOptions", JVM_OPTIONS)
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        .config(map=dict(QUICK))
        .getOrCreate()
    )
    metaq.spark.register(spark)
    rows = spark.readStream.option("maxFilesPerTrigger", "1").text(source)
    query = (
        rows.withColumnRenamed("value", "body")
        .repartition(TASKS)
        .mapInArrow(flaky, "body string")
        .writeStream.format("metaq")
        .option("nameservers", name_servers)
        .option("topic", topic)
        .option("deliveryGuarantee", "exactly_once")
        .option("batchBytes", "2048")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
