"""`python -m bench.binlog`: changes of rows per second that binlog-sync brings from a database into a topic.

A real MariaDB gets a backlog of inserts and then of updates, in transactions of a thousand rows of six
columns. The rate of each is that of the pipeline from its first report of rows in the topic to its last.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.binlog import Running, write_config
from tests.support.mariadb import PASSWORD, MariaDb
from tests.support.metaq import Metaq

DATABASE = "bench"
BATCH = 1000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.binlog", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000, help="changes of each kind (default: 200000)")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    chosen = parser.parse_args(arguments)
    os.environ["TEST_DATABASE_PASSWORD"] = PASSWORD
    home = Path(tempfile.mkdtemp(prefix="binlog-"))
    try:
        rates = measure(home, chosen.rows)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    if chosen.output == "json":
        print(json.dumps(rates))
    else:
        for name, rate in rates.items():
            print(f"{name:<8} {rate:>10,.0f} rows/s")
    return 0


def measure(home: Path, rows: int) -> dict[str, float]:
    """Rows per second of inserts and of updates."""
    mariadb = MariaDb(home)
    try:
        metaq = Metaq.serve(home)
        try:
            return _measure(home, mariadb, metaq, rows)
        finally:
            metaq.stop()
    finally:
        mariadb.stop()


def _measure(home: Path, mariadb: MariaDb, metaq: Metaq, rows: int) -> dict[str, float]:
    mariadb.execute(
        f"CREATE DATABASE {DATABASE}",
        f"CREATE TABLE {DATABASE}.t (id INT PRIMARY KEY, customer BIGINT, price DECIMAL(10,2),"
        " note VARCHAR(100), changed DATETIME(3), state ENUM('new','paid','sent'))",
    )
    config = write_config(home / "sync.toml", mariadb, metaq.nameserver, DATABASE, snapshot="enabled = false")
    first = Running(config)
    first.wait_for_phase("following")
    first.stop()
    rates = {}
    with mariadb.root(database=DATABASE) as connection, connection.cursor() as cursor:
        for begin in range(0, rows, BATCH):
            cursor.executemany(
                "INSERT INTO t VALUES (%s, %s, 12.5, %s, '2026-01-31 12:00:00.123', 'paid')",
                [(n, n * 7, f"note number {n} of some length") for n in range(begin, begin + BATCH)],
            )
        rates["inserts"] = _drain(config, rows)
        for begin in range(0, rows, BATCH):
            cursor.execute(
                "UPDATE t SET price = price + 1 WHERE id BETWEEN %s AND %s", (begin, begin + BATCH - 1)
            )
        rates["updates"] = _drain(config, rows)
    return rates


def _drain(config: Path, rows: int) -> float:
    running = Running(config)
    began, before = 0.0, 0
    try:
        while True:
            reports = running.reports()
            done = reports[-1]["rows"] if reports else 0
            if done and not began:
                began, before = time.monotonic(), done
            if done >= rows:
                # The last report comes up to a second after the last row, which counts against the rate.
                return (done - before) / max(time.monotonic() - began, 0.001)
            time.sleep(0.01)
    finally:
        running.stop()


if __name__ == "__main__":
    raise SystemExit(main())
