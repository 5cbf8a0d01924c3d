"""Two minutes with MetaQ and Spark: produce, stream, window, Delta Lake, query.

    python examples/tour.py                           # starts a broker in this process
    python examples/tour.py --namesrv 127.0.0.1:9876  # uses a running broker (`metaq serve`)

Needs the extra `spark` (docs/install.md) and Java 17. Its files stay in the directory `tour`.
"""

from __future__ import annotations

import argparse
import json
import random
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import metaq
import metaq.spark
from metaq.testing import LocalMetaq

TOPIC = f"Tour-{datetime.now(UTC):%Y%m%d-%H%M%S}"
BEGINS = datetime(2026, 1, 31, 8, tzinfo=UTC)
SHOPS = ("Berlin", "Lyon", "Oslo")


def produce(namesrv: str, begins: datetime, minutes: int) -> None:
    """Sends twenty orders per minute. `send_soon` waits for none of them; `flush` waits for all."""
    chance = random.Random(7)
    with metaq.Client(namesrv) as client, client.producer("tour") as producer:
        for number in range(minutes * 20):
            shop = chance.choice(SHOPS)
            order = {
                "shop": shop,
                "price": chance.randrange(100, 10_000) / 100,
                "at": (begins + timedelta(seconds=3 * number)).isoformat(),
            }
            # Orders of one shop go to one queue and stay in order.
            producer.send_soon(TOPIC, json.dumps(order).encode(), tag="order", key=shop)
        producer.flush()
    print(f"sent {minutes * 20:,} orders from {begins:%H:%M} on")


def orders(spark: SparkSession, namesrv: str) -> DataFrame:
    """Returns the topic as a stream of rows."""
    messages = (
        spark.readStream.format("metaq")
        .option("nameservers", namesrv)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
    )
    parsed = f.from_json(messages.body.cast("string"), "shop STRING, price DOUBLE, at TIMESTAMP")
    return messages.select(parsed.alias("order")).select("order.*")


def write_windows(spark: SparkSession, namesrv: str, home: Path) -> None:
    """Writes revenue per shop and ten minutes into a Delta table, up to the current end of the topic.

    A window is written when it is closed: when the newest order is five minutes later than its end. The
    checkpoint holds offsets and open windows, so the next call continues with them.
    """
    windows = (
        orders(spark, namesrv)
        .withWatermark("at", "5 minutes")
        .groupBy(f.window("at", "10 minutes"), "shop")
        .agg(f.count("*").alias("orders"), f.round(f.sum("price"), 2).alias("revenue"))
        .select(f.col("window.start").alias("begins"), "shop", "orders", "revenue")
    )
    query = (
        windows.writeStream.format("delta")
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(home / "revenue"))
    )
    query.awaitTermination()
    read = sum(progress.numInputRows for progress in query.recentProgress)
    print(f"read {read:,} orders")


def show(spark: SparkSession, home: Path) -> None:
    revenue = spark.read.format("delta").load(str(home / "revenue"))
    revenue.orderBy("begins", "shop").show(truncate=False)
    best = revenue.groupBy("shop").agg(f.round(f.sum("revenue"), 2).alias("total")).orderBy(f.desc("total"))
    best.show()


def main() -> None:
    parser = argparse.ArgumentParser(description="Produce, stream, window, Delta Lake, query.")
    parser.add_argument(
        "--namesrv", help="name server of a running broker; by default a broker is started here"
    )
    parser.add_argument("--home", type=Path, default=Path("tour"), help="directory for tables and checkpoint")
    arguments = parser.parse_args()
    if arguments.home.exists():
        parser.error(f"{arguments.home} exists already: choose another --home, or remove it")
    with ExitStack() as stack:
        namesrv = arguments.namesrv
        if namesrv is None:
            namesrv = stack.enter_context(LocalMetaq(directory=arguments.home / "broker")).nameserver
        spark = metaq.spark.session("tour")
        produce(namesrv, BEGINS, minutes=30)
        write_windows(spark, namesrv, arguments.home)
        show(spark, arguments.home)
        # Windows that were still open get the rest of their orders.
        produce(namesrv, BEGINS + timedelta(minutes=30), minutes=30)
        write_windows(spark, namesrv, arguments.home)
        show(spark, arguments.home)


if __name__ == "__main__":
    main()
