"""Cache invalidation: every web server drops a price from its memory when somebody changes it.

    python examples/cache/main.py
    python examples/cache/main.py --namesrv 127.0.0.1:9876    # uses a running broker (`metaq serve`)

Each server reads prices from a database and keeps them in memory. Whoever changes a price broadcasts its
article.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import metaq
from metaq.testing import LocalMetaq

TOPIC = "PriceChanges"


class Prices:
    """The prices that one web server keeps in memory."""

    def __init__(self, name: str, namesrv: str, database: Path) -> None:
        self.name = name
        self.reads = 0
        self._database = database
        self._lock = threading.Lock()
        self._kept: dict[str, int] = {}
        self._listens = False
        self._client = metaq.Client(namesrv)
        self._client.consumer(
            TOPIC,
            group="web",
            mode="broadcast",  # Every server gets every message.
            start="latest",  # A new server has nothing in memory, so older changes do not matter.
            offsets="memory",  # A new server need not know what it read before.
            on_rebalance=self._begin,
        )(self._forget)
        self._client.start()

    def get(self, article: str) -> int:
        with self._lock:
            if article in self._kept:
                return self._kept[article]
            self.reads += 1
            cents = read(self._database, article)
            if self._listens:
                self._kept[article] = cents
            return cents

    def _begin(self, gained: frozenset[object], lost: frozenset[object]) -> None:
        """Keeps nothing before changes are heard, or from before they were heard again."""
        with self._lock:
            self._kept.clear()
            self._listens = bool(gained)

    def _forget(self, message: metaq.Message) -> None:
        """Drops a price. The new one comes from the database, so the order of messages does not matter."""
        with self._lock:
            self._kept.pop(message.body.decode(), None)

    def close(self) -> None:
        self._client.close()


def read(database: Path, article: str) -> int:
    with sqlite3.connect(database) as connection:
        (cents,) = connection.execute("SELECT cents FROM prices WHERE article = ?", (article,)).fetchone()
        return int(cents)


def change(producer: metaq.Producer, database: Path, article: str, cents: int) -> None:
    """Changes a price, and sends the message after the commit: who reads again must see the new price."""
    with sqlite3.connect(database) as connection:
        connection.execute("INSERT OR REPLACE INTO prices VALUES (?, ?)", (article, cents))
    producer.send(TOPIC, article.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description="Broadcast of cache invalidation.")
    parser.add_argument(
        "--namesrv", help="name server of a running broker; by default a broker is started here"
    )
    parser.add_argument("--servers", type=int, default=3)
    given = parser.parse_args()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        namesrv = given.namesrv or stack.enter_context(LocalMetaq()).nameserver
        database = home / "prices.db"
        with sqlite3.connect(database) as connection:
            connection.execute("CREATE TABLE prices (article TEXT PRIMARY KEY, cents INTEGER)")
        client = stack.enter_context(metaq.Client(namesrv))
        producer = stack.enter_context(client.producer("prices"))
        change(producer, database, "apple", 50)
        servers = [Prices(f"web-{number + 1}", namesrv, database) for number in range(given.servers)]
        for server in servers:
            stack.callback(server.close)
        for cents in (50, 60, 75):
            change(producer, database, "apple", cents)
            while {server.get("apple") for server in servers} != {cents}:
                time.sleep(0.01)
            print(f"apple costs {cents}: {', '.join(server.name for server in servers)} agree")
        for server in servers:
            before = server.reads
            prices = [server.get("apple") for _ in range(1_000)]
            print(f"{server.name}: {len(prices):,} prices with {server.reads - before} reads of the database")


if __name__ == "__main__":
    main()
