"""The billing service: writes an invoice for each order, once, however often the message comes.

Delivery is at least once: after a crash or a lost answer, a message comes again. So the order's id is the
primary key of the invoices, and a second insert does nothing.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
from pathlib import Path

import metaq

TOPIC = "Orders"
GROUP = "billing-service"


class BillingService:
    """Bills orders. Several processes share the work if they use the same group and database."""

    def __init__(self, client: metaq.Client, database: Path) -> None:
        self._path = database
        with self._connect() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS invoices (id TEXT PRIMARY KEY, cents INTEGER)")
        client.consumer(TOPIC, group=GROUP, start="earliest", concurrency=4)(self._bill)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30)

    def _bill(self, message: metaq.Message) -> None:
        """Returning acknowledges the message. An exception brings it again later."""
        try:
            order = json.loads(message.body)
            name, cents = str(order["order"]), int(order["cents"])
        except (ValueError, KeyError, TypeError) as error:
            raise metaq.Reject(f"not an order: {error}") from error  # No retry can repair it.
        with self._connect() as connection:
            is_new = (
                connection.execute("INSERT OR IGNORE INTO invoices VALUES (?, ?)", (name, cents)).rowcount
                == 1
            )
        print(
            f"billing: {name}: {'invoice over' if is_new else 'billed before,'} {cents / 100:.2f}", flush=True
        )

    def invoices(self) -> dict[str, int]:
        with self._connect() as connection:
            return dict(connection.execute("SELECT id, cents FROM invoices ORDER BY id").fetchall())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", default="127.0.0.1:9876")
    parser.add_argument("--database", type=Path, default=Path("billing.db"))
    given = parser.parse_args()
    client = metaq.Client(given.namesrv)
    BillingService(client, given.database)
    client.run()  # Until Ctrl-C or SIGTERM.


if __name__ == "__main__":
    main()
