"""Both services at work: a slow start of billing, an order that fails, a duplicate, and a crash.

    python examples/orders/main.py

It starts a broker in this process, and keeps both databases in a temporary directory.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from billing_service import BillingService
from order_service import TOPIC, OrderService

import metaq
from metaq.testing import LocalMetaq

SETTINGS = {"transaction_timeout_ms": 1000, "transaction_check_interval_s": 1}
"""The broker asks about an open transaction after a second, so that you need not wait for a minute."""


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, LocalMetaq(settings=SETTINGS) as cluster:
        home, namesrv = Path(directory), cluster.nameserver
        with metaq.Client(namesrv) as shop:
            orders = OrderService(shop, home / "orders.db")
            orders.place("order-1", 1250)
            orders.place("order-2", 990)
            print("orders: took two orders, and billing is not even running", flush=True)
            try:
                orders.place("order-3", -5)
            except sqlite3.IntegrityError as error:
                print(f"orders: order-3 is refused ({error}), so its message is rolled back", flush=True)
            crash = [
                sys.executable,
                str(Path(__file__).with_name("order_service.py")),
                "order-4",
                "300",
                "--crash",
            ]
            subprocess.run([*crash, "--namesrv", namesrv, "--database", str(home / "orders.db")], check=False)
            print("orders: a process died between the database and the broker", flush=True)
            with shop.producer("somebody") as producer:
                producer.send(TOPIC, b'{"order": "order-1", "cents": 1250}', keys=["order-1"])  # A duplicate.
            with metaq.Client(namesrv) as back_office:
                billing = BillingService(back_office, home / "billing.db")
                while set(billing.invoices()) != {"order-1", "order-2", "order-4"}:
                    time.sleep(0.1)
            print("billing: all invoices:", billing.invoices())


if __name__ == "__main__":
    main()
