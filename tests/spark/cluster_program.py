"""Reads and writes topics on a cluster whose executors have only the MetaQ that they get; prints JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession

import metaq.spark


def where(_: Iterator[int]) -> Iterator[tuple[str, int]]:
    import os

    import metaq

    assert metaq.__file__ is not None
    yield os.path.relpath(metaq.__file__), os.getpid()


def read(spark: SparkSession, nameserver: str, topic: str) -> DataFrame:
    table = spark.read.format("metaq").option("nameservers", nameserver)
    table = table.option("subscribe", topic).option("minPartitions", "4").option("failOnDataLoss", "false")
    return table.load().where("body is not null")


def main() -> None:
    master, nameserver, topic, copy, streamed, checkpoint, config = sys.argv[1:]
    spark = metaq.spark.session("cluster", master=master, delta=False, config=json.loads(config))
    spark.sparkContext.setLogLevel("ERROR")
    found = spark.sparkContext.parallelize(range(4), 4).mapPartitions(where).collect()
    rows = read(spark, nameserver, topic).selectExpr(f"'{copy}' as topic", "body", "keys")
    exactly = {"nameservers": nameserver, "deliveryGuarantee": "exactly_once"}
    rows.write.format("metaq").options(**exactly).mode("append").save()
    stream = spark.readStream.format("metaq").option("nameservers", nameserver).option("subscribe", copy)
    query = (
        stream.option("startingOffsets", "earliest")
        .load()
        .selectExpr(f"'{streamed}' as topic", "body")
        .writeStream.format("metaq")
        .options(**exactly)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    bodies = sorted(row.body.decode() for row in read(spark, nameserver, streamed).select("body").collect())
    print(json.dumps({"modules": sorted({path for path, _ in found}), "bodies": bodies}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
