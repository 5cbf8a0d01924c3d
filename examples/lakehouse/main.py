"""From MariaDB to a dashboard: a shop sells, its tables are copied into a lakehouse, and SQL queries them.

    export METAQ_SOURCE_PASSWORD=…   # of the user metaq, which reads the binlog
    export SHOP_PASSWORD=…           # of the user shop, which may create tables in the database shop
    python examples/lakehouse/main.py

It needs a MariaDB with a binlog, a broker (`metaq serve`), the extras `binlog` and `spark`, and Java 17;
README.md shows how to set them up. shop.toml has the addresses. The files stay in the directory `lakehouse`
beside it.
"""

from __future__ import annotations

import argparse
import os
import random
import threading
import time
import tomllib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pymysql
from pyspark.sql import SparkSession

import metaq.spark
from metaq import pipelines

HERE = Path(__file__).parent
CITIES = ("Berlin", "Lyon", "Oslo")
TABLES = ("shops", "orders")


class Shop:
    """The application: it knows MariaDB, and nothing else."""

    def __init__(self, **server: Any) -> None:
        self._connection = pymysql.connect(autocommit=True, **server)
        self._chance = random.Random(7)

    def open(self) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS shops (id INT PRIMARY KEY, city VARCHAR(40))")
            cursor.execute(
                "CREATE TABLE IF NOT EXISTS orders"
                " (id BIGINT PRIMARY KEY AUTO_INCREMENT, shop INT, price DECIMAL(10,2))"
            )
            cursor.executemany("REPLACE INTO shops VALUES (%s, %s)", list(enumerate(CITIES)))

    def sell(self, count: int, stop: threading.Event) -> None:
        """Sells. Now and then somebody changes an order or cancels it."""
        for number in range(count):
            if stop.wait(0.02):
                return
            with self._connection.cursor() as cursor:
                price = self._chance.randrange(100, 10_000) / 100
                cursor.execute(
                    "INSERT INTO orders (shop, price) VALUES (%s, %s)", (number % len(CITIES), price)
                )
                if number % 10 == 3:
                    cursor.execute("UPDATE orders SET price = price / 2 WHERE id = %s", (cursor.lastrowid,))
                if number % 10 == 7:
                    cursor.execute("DELETE FROM orders WHERE id = %s", (cursor.lastrowid,))

    def revenue(self) -> dict[str, tuple[int, Any]]:
        """Returns what the dashboard must show in the end."""
        with self._connection.cursor() as cursor:
            cursor.execute(
                "SELECT city, COUNT(*), SUM(price) FROM orders JOIN shops ON shop = shops.id GROUP BY city"
            )
            return {city: (count, total) for city, count, total in cursor.fetchall()}


class Dashboard:
    """Queries the mirrored tables."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._query = (HERE / "dashboard.sql").read_text(encoding="utf-8")

    def refresh(self) -> dict[str, tuple[int, Any]]:
        """Shows the tables as they are now; nothing while the mirror has not written all of them yet."""
        if not all((self._folder / table / "_delta_log").exists() for table in TABLES):
            return {}
        for table in TABLES:
            rows = self._spark.read.format("delta").load(str(self._folder / table))
            # Deleted rows stay for a while, marked, so that a change that comes twice cannot bring them back.
            rows.where("NOT metaq_deleted").createOrReplaceTempView(table)
        found = self._spark.sql(self._query).collect()
        for row in found:
            print(f"  {row.city:<10} {row.orders:>6} orders {row.revenue:>12}   newest {row.newest}")
        return {row.city: (row.orders, row.revenue) for row in found}


def main() -> None:
    parser = argparse.ArgumentParser(description="MariaDB, binlog, Delta Lake, SQL.")
    parser.add_argument("--config", type=Path, default=HERE / "shop.toml")
    parser.add_argument("--database", default="shop")
    parser.add_argument("--user", default="shop", help="the user of the application")
    parser.add_argument("--socket", help="socket of the server, instead of its host and port")
    parser.add_argument("--orders", type=int, default=500)
    given = parser.parse_args()
    config = tomllib.loads(given.config.read_text(encoding="utf-8"))
    source = {"host": config["source"]["host"], "port": config["source"]["port"]}
    shop = Shop(
        **({"unix_socket": given.socket} if given.socket else source),
        user=given.user,
        password=os.environ.get("SHOP_PASSWORD", ""),
        database=given.database,
    )
    shop.open()
    spark = metaq.spark.session("lakehouse")
    dashboard = Dashboard(spark, given.config.parent / config["mirror"]["path"] / given.database)
    follows, stop = threading.Event(), threading.Event()

    def run(name: str) -> None:
        """Does what `metaq pipeline run NAME --config FILE` does."""
        pipelines.load(name).from_file(given.config).run(lambda progress: follows.set(), stop)

    with ThreadPoolExecutor() as threads:
        jobs: list[Future[None]] = [threads.submit(run, "binlog-sync")]
        sales = threads.submit(shop.sell, given.orders, stop)
        try:
            while True:
                if follows.is_set() and len(jobs) == 1:
                    jobs.append(threads.submit(run, "binlog-mirror"))  # The topic exists now.
                shown = dashboard.refresh()
                print(f"{sum(count for count, _ in shown.values())} orders in the lakehouse", flush=True)
                if sales.done() and shown == shop.revenue():
                    break
                for job in jobs:
                    if job.done():
                        job.result()  # Raises what ended it.
                time.sleep(1)
        finally:
            stop.set()
    sales.result()
    print("the dashboard shows what MariaDB has")


if __name__ == "__main__":
    main()
