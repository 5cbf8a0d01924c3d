"""binlog-sync reads features that only MySQL has from a real server."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Set
from pathlib import Path
from typing import Any

import pytest

from metaq.pipelines import Progress
from metaq.pipelines.binlog_sync.coordinates import Position
from metaq.pipelines.binlog_sync.pipeline import BinlogSync
from metaq.pipelines.binlog_sync.reading.flavours import Moment, MySql
from tests.support.binlog import QUEUES, WAIT_S, Running, write_config
from tests.support.database import Database
from tests.support.metaq import Metaq
from tests.support.mirror import Mirror
from tests.support.reading import eventually

pytestmark = pytest.mark.parametrize("server", ["mysql"], indirect=True)


@pytest.fixture
def config(server: Database, served: Metaq, database: str, password: str, tmp_path: Path) -> Path:
    return write_config(tmp_path / "sync.toml", server, served.nameserver, database)


# Type, key, and the key that it is changed to: another spelling, or a neighbour.
KEYS = [
    ("TINYINT UNSIGNED", "255", "1"),
    ("BIGINT", "-9223372036854775808", "5"),
    ("DECIMAL(20,3)", "-0.100", "7"),
    ("FLOAT", "0.1", "0.2"),
    ("DOUBLE", "-0.0", "1e300"),
    ("BIT(17)", "b'10000000000000001'", "b'1'"),
    ("YEAR", "2026", "0"),
    ("DATE", "'2026-01-31'", "'2026-02-01'"),
    ("TIME(2)", "'-00:00:00.50'", "'838:59:59'"),
    ("DATETIME(6)", "'2026-01-31 23:59:58.000001'", "'2027-01-01'"),
    ("TIMESTAMP(1)", "'2026-01-31 05:30:00.1'", "'2026-01-31 05:30:00.2'"),
    ("CHAR(10)", "'ab  '", "'AB'"),
    ("VARCHAR(20)", "'Straße '", "'STRASSE'"),
    ("VARCHAR(20) COLLATE utf8mb4_bin", "'ü '", "'U'"),
    ("VARCHAR(20) CHARACTER SET utf8mb3", "'žluť'", "'ŽLUT'"),
    ("VARCHAR(20) CHARACTER SET latin1", "'é '", "'E'"),
    ("BINARY(4)", "UNHEX('00ff0000')", "UNHEX('20')"),
    ("VARBINARY(10)", "UNHEX('ff00')", "UNHEX('ff')"),
    ("ENUM('a','b''c','ü')", "'b''c'", "'ü'"),
    ("SET('z','a','m')", "'m,z'", "''"),
]


def test_keys_of_every_type_are_equal_in_tables_and_binlog(
    server: Database, served: Metaq, database: str, config: Path
) -> None:
    tables = [f"`{database}`.t{number}" for number in range(len(KEYS))]
    with server.root() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        for table, (kind, key, _) in zip(tables, KEYS, strict=True):
            cursor.execute(f"CREATE TABLE {table} (k {kind} PRIMARY KEY, v INT)")
            cursor.execute(f"INSERT INTO {table} VALUES ({key}, 1)")
        running = Running(config)
        running.wait_for_phase("following")
        for table in tables:
            cursor.execute(f"UPDATE {table} SET v = 2")
        running.wait_until_at(server)
        updated = Mirror.of_topic(served.nameserver, database, QUEUES)
        for number, (table, (_, _, other)) in enumerate(zip(tables, KEYS, strict=True)):
            cursor.execute(f"UPDATE {table} SET k = {other}, v = {number}")
    running.wait_until_at(server)
    running.stop()
    changed = Mirror.of_topic(served.nameserver, database, QUEUES)
    for number, (kind, _, _) in enumerate(KEYS):
        # If the update had another value for the key, there would be two rows.
        assert [row["v"] for row in updated.rows(f"{database}.t{number}").values()] == [2], kind
        assert [row["v"] for row in changed.rows(f"{database}.t{number}").values()] == [number], kind


class Meddler:
    """Changes a table at the two critical moments of each chunk.

    The first is just before its snapshot is opened: the snapshot sees the change, but the binlog reader
    has not reached it. The second is before the end of the binlog is asked for: the snapshot does not see
    the change.
    """

    def __init__(self, server: Database, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._connection = server.root(database=database)
        self._chance = random.Random(int(os.environ.get("BINLOG_SEED", "7")))
        self.chunks = 0
        self._fill("CREATE TABLE t (k VARCHAR(20) PRIMARY KEY, v INT)")
        has_reached, moment = MySql.has_reached, MySql.moment

        def before(flavour: MySql, connection: Any, reached: Position, committed: Set[str]) -> bool:
            is_there = has_reached(flavour, connection, reached, committed)
            self._change()
            if self.chunks == 2:
                self._fill("TRUNCATE TABLE t")
            elif self.chunks == 5:
                self._fill("ALTER TABLE t COMMENT = 'x'")
            return is_there

        def between(flavour: MySql, connection: Any, reached: Position) -> Moment | None:
            self._change()
            self.chunks += 1
            return moment(flavour, connection, reached)

        monkeypatch.setattr(MySql, "has_reached", before)
        monkeypatch.setattr(MySql, "moment", between)

    def _fill(self, *statements: str) -> None:
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            cursor.executemany(
                "INSERT IGNORE INTO t VALUES (%s, 0)", [(f"k{number:03}",) for number in range(600)]
            )

    def _change(self) -> None:
        """Changes existing and new rows, many of them in the chunk that is being read."""
        chance = self._chance
        with self._connection.cursor() as cursor:
            cursor.execute("UPDATE t SET v = v + 1 WHERE k REGEXP %s", (f"{chance.randrange(10)}$",))
            cursor.execute("DELETE FROM t WHERE k REGEXP %s", (f"{chance.randrange(100):02}$",))
            cursor.execute("UPDATE t SET k = UPPER(k) WHERE k REGEXP %s", (f"{chance.randrange(10)}.$",))
            key = f"k{chance.randrange(1000):03}"
            cursor.execute("REPLACE INTO t VALUES (%s, %s)", (key, self.chunks))
            cursor.execute("UPDATE IGNORE t SET k = %s ORDER BY RAND(3) LIMIT 1", (key[::-1],))

    def close(self) -> None:
        self._connection.close()


def test_changes_around_the_snapshot_of_every_chunk(
    server: Database, served: Metaq, database: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meddler = Meddler(server, database, monkeypatch)
    reports: list[Progress] = []
    failures: list[BaseException] = []
    stop = threading.Event()

    def run() -> None:
        try:
            BinlogSync.from_file(config).run(reports.append, stop)
        except BaseException as error:
            failures.append(error)

    def has_read_all() -> bool:
        assert not failures, failures
        return any(report.phase == "following" for report in reports) and (
            server.number(str(reports[-1].details["gtid"])) >= server.committed()
        )

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        eventually(has_read_all, WAIT_S)
    finally:
        stop.set()
        thread.join(60)
        meddler.close()
    assert not thread.is_alive() and not failures
    assert meddler.chunks > 10, "both statements were executed"
    mirror = Mirror.of_topic(served.nameserver, database, QUEUES)
    with server.root(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT k, v FROM t")
        wanted = {(key,): {"k": key, "v": v} for key, v in cursor}
    assert mirror.rows(f"{database}.t") == wanted


def test_tags_partitions_and_generated_keys(
    server: Database, served: Metaq, database: str, config: Path
) -> None:
    with server.root(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_generate_invisible_primary_key = ON")
        cursor.execute("CREATE TABLE keyless (v INT)")
        cursor.execute("CREATE TABLE parts (id INT PRIMARY KEY, v INT) PARTITION BY HASH (id) PARTITIONS 3")
        # It has columns that cannot be read, but it is not selected.
        cursor.execute("CREATE DATABASE IF NOT EXISTS aside")
        cursor.execute("CREATE TABLE IF NOT EXISTS aside.vectors (id INT PRIMARY KEY, v VECTOR(3), w INT)")
        running = Running(config)
        running.wait_for_phase("following")
        for statement in (
            "SET gtid_next = 'AUTOMATIC:blue'",
            "INSERT INTO keyless VALUES (1), (2)",
            "INSERT INTO parts VALUES (1, 1), (2, 2), (3, 3)",
            "INSERT INTO aside.vectors VALUES (1, STRING_TO_VECTOR('[1,2,3]'), 5)",
            "SET gtid_next = 'AUTOMATIC:red'",
            "UPDATE parts SET id = id + 10, v = v + 1",
            "SET gtid_next = 'AUTOMATIC'",
            "UPDATE keyless SET v = 5 WHERE v = 2",
        ):
            cursor.execute(statement)
        running.wait_until_at(server)
        running.stop()
        assert ":blue:" in running.reports()[-1]["details"]["gtid"]
        # The next run begins with the set that has tags.
        second = Running(config)
        cursor.execute("DELETE FROM parts WHERE id = 11")
        second.wait_until_at(server)
        second.stop()
        cursor.execute("DROP DATABASE aside")
    mirror = Mirror.of_topic(served.nameserver, database, QUEUES)
    assert sorted(row["v"] for row in mirror.rows(f"{database}.keyless").values()) == [1, 5]
    assert {key[0]: row["v"] for key, row in mirror.rows(f"{database}.parts").items()} == {12: 3, 13: 4}
    assert mirror.duplicates == 0


def test_partial_json_of_a_session_fails_the_run(server: Database, database: str, config: Path) -> None:
    document = '{"a": "' + "x" * 200 + '", "b": 1}'
    with server.root(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v JSON)")
        cursor.execute("INSERT INTO t VALUES (1, %s)", (document,))
        running = Running(config)
        running.wait_for_phase("following")
        cursor.execute("SET SESSION binlog_row_value_options = PARTIAL_JSON")
        cursor.execute("UPDATE t SET v = JSON_SET(v, '$.b', 2)")
        eventually(lambda: not running.child.alive, WAIT_S)
    assert running.child.process.returncode == 1
    assert "SET GLOBAL binlog_row_value_options = ''" in running.child.tail()
