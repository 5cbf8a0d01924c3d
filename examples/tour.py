"""Two minutes with MetaQ and Spark: produce, stream, window, Delta Lake, query.

    python examples/tour.py                           # with a broker of its own, in this process
    python examples/tour.py --namesrv 127.0.0.1:9876  # with yours (`metaq serve`)

Needs `pip install 'pymetaq[spark]'` and a Java 17. What it writes stays in the directory `tour`.
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
    """Twenty orders for each minute. `send_soon` does not wait for each of them; `flush` does for all."""
    chance = random.Random(7)
    with metaq.Client(namesrv) as client, client.producer("tour") as producer:
        for number in range(minutes * 20):
            shop = chance.choice(SHOPS)
            order = {
                "shop": shop,
                "price": chance.randrange(100, 10_000) / 100,
                "at": (begins + timedelta(seconds=3 * number)).isoformat(),
            }
            # Orders of one shop go to one queue, and stay in their order.
            producer.send_soon(TOPIC, json.dumps(order).encode(), tag="order", key=shop)
        producer.flush()
    print(f"sent {minutes * 20:,} orders from {begins:%H:%M} on")


def orders(spark: SparkSession, namesrv: str) -> DataFrame:
    """The topic as a stream of rows."""
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
    """Revenue by shop and ten minutes into a Delta table, as far as the topic goes now.

    A window is written when no order counts for it any more: when the newest one is five minutes behind its
    end. The checkpoint holds offsets and open windows, so the next call goes on with them.
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
        "--namesrv", help="name server of a broker that runs; without it, one is started here"
    )
    parser.add_argument("--home", type=Path, default=Path("tour"), help="where tables and checkpoint are")
    arguments = parser.parse_args()
    if arguments.home.exists():
        parser.error(f"{arguments.home} is there already: name another --home, or remove it")
    with ExitStack() as stack:
        namesrv = arguments.namesrv
        if namesrv is None:
            namesrv = stack.enter_context(LocalMetaq(directory=arguments.home / "broker")).nameserver
        spark = metaq.spark.session("tour")
        produce(namesrv, BEGINS, minutes=30)
        write_windows(spark, namesrv, arguments.home)
        show(spark, arguments.home)
        # The windows that were open are still known, and get the rest of their orders.
        produce(namesrv, BEGINS + timedelta(minutes=30), minutes=30)
        write_windows(spark, namesrv, arguments.home)
        show(spark, arguments.home)


if __name__ == "__main__":
    main()
