"""`python -m bench.binlog`: changes of rows per second that binlog-sync brings from a database into a topic.

A real MariaDB gets a backlog of inserts and then of updates, in transactions of a thousand rows of six
columns, and last of updates in a transaction each. The rate of each is that of the pipeline from its first
report of rows in the topic to its last.
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
            print(f"{name:<44} {rate:>10,.0f} rows/s")
    return 0


def measure(home: Path, rows: int) -> dict[str, float]:
    """Rows per second of inserts and of updates, by the clock and by the pipeline's own processor time."""
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
                "INSERT INTO t VALUES (%s, %s, %s, %s, %s, %s)",
                [
                    (n, n * 7, "12.5", f"note number {n} of some length", "2026-01-31 12:00:00.123", "paid")
                    for n in range(begin, begin + BATCH)
                ],
            )
        rates["inserts"], rates["inserts by processor time"] = _drain(config, rows)
        for begin in range(0, rows, BATCH):
            cursor.execute(
                "UPDATE t SET price = price + 1 WHERE id BETWEEN %s AND %s", (begin, begin + BATCH - 1)
            )
        rates["updates"], rates["updates by processor time"] = _drain(config, rows)
        for number in range(rows // 4):
            cursor.execute("UPDATE t SET price = price + 1 WHERE id = %s", (number,))
        name = "updates of one row each"
        rates[name], rates[f"{name} by processor time"] = _drain(config, rows // 4)
    return rates


def _drain(config: Path, rows: int) -> tuple[float, float]:
    running = Running(config)
    began, before, busy_s = 0.0, 0, 0.0
    try:
        while True:
            reports = running.reports()
            done = reports[-1]["rows"] if reports else 0
            if done and not began:
                began, before, busy_s = time.monotonic(), done, _busy_s(running)
            if done >= rows:
                # The last report comes up to a second after the last row, which counts against the rate.
                elapsed_s, spent_s = time.monotonic() - began, _busy_s(running) - busy_s
                return (done - before) / max(elapsed_s, 0.001), (done - before) / max(spent_s, 0.01)
            time.sleep(0.01)
    finally:
        running.stop()


def _busy_s(running: Running) -> float:
    """Processor time of the process so far."""
    fields = Path(f"/proc/{running.child.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    raise SystemExit(main())
