"""The order service: stores an order in its database, and tells the other services about it.

An order and its message belong together. The message is sent in a transaction: consumers see it if the
database has committed the order, and never if it has not.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
from pathlib import Path

import metaq

TOPIC = "Orders"
GROUP = "order-service"


class OrderService:
    """Takes orders. Several processes may share the database; each answers for all of them."""

    def __init__(self, client: metaq.Client, database: Path) -> None:
        self._database = sqlite3.connect(database, check_same_thread=False, timeout=30)
        with self._database as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, cents INTEGER CHECK (cents > 0))"
            )
        self._producer = client.producer(GROUP)
        self._producer.check(self._is_stored)
        self._producer.start()

    def place(self, order: str, cents: int, *, crash: bool = False) -> None:
        """Stores an order and publishes it. Raises sqlite3.Error; then nobody hears of the order."""
        body = json.dumps({"order": order, "cents": cents}).encode()
        with self._producer.transaction(TOPIC, body, keys=[order]), self._database as connection:
            connection.execute("INSERT INTO orders VALUES (?, ?)", (order, cents))
            if crash:
                connection.commit()
                os._exit(1)  # The order is stored, and the broker does not know it.

    def _is_stored(self, message: metaq.Message) -> bool:
        """Tells a broker how a transaction ended, if the process that began it did not.

        The broker asks after some seconds. If a transaction of your database can take longer than that,
        return None while it may still run: the broker asks again.
        """
        found = self._database.execute("SELECT 1 FROM orders WHERE id = ?", (message.keys[0],)).fetchone()
        print(
            f"orders: the broker asks about {message.keys[0]}: {'commit' if found else 'roll back'}",
            flush=True,
        )
        return found is not None


def main() -> None:
    """Takes one order, and can be killed at the worst moment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("order")
    parser.add_argument("cents", type=int)
    parser.add_argument("--namesrv", default="127.0.0.1:9876")
    parser.add_argument("--database", type=Path, default=Path("orders.db"))
    parser.add_argument("--crash", action="store_true", help="die after the database has committed")
    given = parser.parse_args()
    with metaq.Client(given.namesrv) as client:
        OrderService(client, given.database).place(given.order, given.cents, crash=given.crash)


if __name__ == "__main__":
    main()
