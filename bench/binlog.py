"""`python -m bench --only binlog`: how fast binlog-sync is, and how far binlog-mirror is behind.

A real MariaDB gets a backlog of inserts and then of updates, in transactions of a thousand rows of six
columns, and last of updates in a transaction each. Each rate is the pipeline's own, from its first
report of rows in the topic to its last. Then rows are updated at a steady rate while both pipelines run, the
mirror into Delta tables; what counts is the most that it was behind the source.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from bench.workloads import Outcome, Plan, say
from tests.support.binlog import Running, write_config
from tests.support.database import PASSWORD
from tests.support.mariadb import MariaDb
from tests.support.metaq import COMMAND, Metaq
from tests.support.processes import Child
from tests.support.spark_jars import delta_jars
from tests.support.waiting import wait_until

DATABASE, MIRRORED = "bench", "mirrored"
BATCH = 1000
MIRRORED_ROWS = 50_000
CHANGES_PER_SECOND = 5_000
PAUSE_S = 0.1
START_TIMEOUT_S = 300


def binlog(plan: Plan) -> Outcome:
    """binlog-sync into the topic, and binlog-mirror from there into a mirror."""
    os.environ["TEST_DATABASE_PASSWORD"] = PASSWORD
    outcome = Outcome("binlog")
    home = plan.home / "binlog"
    home.mkdir()
    mariadb = MariaDb(home)
    try:
        metaq = Metaq.serve(home)
        try:
            figures = _measure(home, mariadb, metaq, plan.binlog_rows)
            figures["mirror_behind_s"] = _measure_mirror(home, mariadb, metaq, plan.mirror_s)
        finally:
            metaq.stop()
    finally:
        mariadb.stop()
    outcome.add("metaq", figures)
    return outcome


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
        rates["inserts_per_second"] = _drain(config, rows, "inserts")
        for begin in range(0, rows, BATCH):
            cursor.execute(
                "UPDATE t SET price = price + 1 WHERE id BETWEEN %s AND %s", (begin, begin + BATCH - 1)
            )
        rates["updates_per_second"] = _drain(config, rows, "updates")
        for number in range(rows // 4):
            cursor.execute("UPDATE t SET price = price + 1 WHERE id = %s", (number,))
        rates["single_per_second"] = _drain(config, rows // 4, "updates of one row each")
    return rates


def _drain(config: Path, rows: int, what: str) -> float:
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
                rate = (done - before) / max(elapsed_s, 0.001)
                busy = (done - before) / max(spent_s, 0.01)
                say(f"binlog   {what}: {rate:,.0f} changes/s, {busy:,.0f} by its own processor time")
                return rate
            time.sleep(0.01)
    finally:
        running.stop()


def _busy_s(running: Running) -> float:
    """The CPU time that the process has used so far."""
    fields = Path(f"/proc/{running.child.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _measure_mirror(home: Path, mariadb: MariaDb, metaq: Metaq, seconds: float) -> float:
    """The longest time between a commit and the end of the batch that contained it, in seconds."""
    mariadb.execute(
        f"CREATE DATABASE {MIRRORED}",
        f"CREATE TABLE {MIRRORED}.t (id INT PRIMARY KEY, price DECIMAL(10,2), note VARCHAR(100))",
    )
    config = write_config(
        home / "mirrored.toml", mariadb, metaq.nameserver, MIRRORED, snapshot="enabled = false"
    )
    jars = json.dumps(delta_jars())
    with config.open("a", encoding="utf-8") as file:
        file.write(f'[mirror]\npath = "mirror"\n[spark]\nmaster = "local[2]"\njars = {jars}\n')
    reading = Running(config)
    reading.wait_for_phase("following")
    mariadb.execute(
        f"USE {MIRRORED}",
        f"INSERT INTO t SELECT seq, 12.5, CONCAT('note number ', seq) FROM seq_1_to_{MIRRORED_ROWS}",
    )
    command = [*COMMAND, "pipeline", "run", "binlog-mirror", "--config", str(config), "-o", "json"]
    mirror = Mirroring(Child(command, home / "mirror.log"))
    try:
        wait_until(lambda: mirror.rows >= MIRRORED_ROWS, START_TIMEOUT_S)
        first = mirror.rows
        last = first + _change_steadily(mariadb, seconds)
        wait_until(lambda: mirror.rows >= last, START_TIMEOUT_S)
        behind = mirror.behind_s_max(first, last)
        say(f"binlog   mirror at {CHANGES_PER_SECOND:,} changes/s: {behind:.1f} s behind at the most")
        return behind
    finally:
        mirror.child.stop(60)
        reading.stop()


def _change_steadily(mariadb: MariaDb, seconds: float) -> int:
    """The number of rows that it has changed."""
    each, times = int(CHANGES_PER_SECOND * PAUSE_S), int(seconds / PAUSE_S)
    begun = time.monotonic()
    with mariadb.root(database=MIRRORED) as connection, connection.cursor() as cursor:
        for number in range(times):
            low = number * each % MIRRORED_ROWS
            cursor.execute("UPDATE t SET price = price + 1 WHERE id > %s AND id <= %s", (low, low + each))
            time.sleep(max(0.0, begun + (number + 1) * PAUSE_S - time.monotonic()))
    return each * times


class Mirroring:
    """The progress that binlog-mirror reports."""

    def __init__(self, child: Child) -> None:
        self.child = child

    def _reports(self) -> list[dict[str, Any]]:
        assert self.child.alive, self.child.tail()
        lines = self.child.log.read_text(errors="replace").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    @property
    def rows(self) -> int:
        return max((report["rows"] for report in self._reports()), default=0)

    def behind_s_max(self, first: int, last: int) -> float:
        """From the first report of more rows than there were, to that of all: later it has nothing to do."""
        told = [report for report in self._reports() if report["rows"] > first]
        until = next(number for number, report in enumerate(told, start=1) if report["rows"] >= last)
        return max(float(report["lag_s"] or 0) for report in told[:until])
