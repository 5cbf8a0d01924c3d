"""binlog-mirror with real databases, a real broker and Delta Lake."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from metaq.errors import MetaqError
from metaq.pipelines.binlog_mirror.delta import DeltaMirror, table_path
from metaq.pipelines.binlog_mirror.pipeline import BinlogMirror
from tests.spark.cluster import Cluster
from tests.spark.mirroring import (
    KEYS,
    VERIFY_S,
    Mirroring,
    Verifying,
    kill_while_applying,
    planned,
    run_command,
    run_sql,
)
from tests.support.binlog import QUEUES
from tests.support.database import USER, Database
from tests.support.metaq import Metaq
from tests.support.rounds import LONG, kill_loop, rounds, seeded
from tests.support.waiting import wait_until

# Each batch is a few dozen Spark jobs, which take long on a busy machine.
pytestmark = [pytest.mark.usefixtures("spark", "password"), pytest.mark.timeout(900)]

Make = Callable[..., Mirroring]


@pytest.fixture
def make_mirror(server: Database, served: Metaq, database: str, tmp_path: Path) -> Iterator[Make]:
    made: list[Mirroring] = []

    def make(mirror: str = "") -> Mirroring:
        made.append(Mirroring(tmp_path, server, served, database, mirror))
        return made[-1]

    yield make
    for mirroring in made:
        mirroring.close()


# This test uses MySQL, the others MariaDB.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("server", ["mysql"], indirect=True)
def test_every_type_and_the_life_of_rows(make_mirror: Make, spark: SparkSession) -> None:
    mirroring = make_mirror()
    run_sql(
        mirroring,
        """CREATE TABLE kinds (id BIGINT UNSIGNED, name VARCHAR(20) CHARACTER SET latin1,
           price DECIMAL(30,10), small TINYINT, part FLOAT, whole DOUBLE, flag BIT(3), born DATE,
           at DATETIME(3), seen TIMESTAMP(6) NULL, span TIME, choice ENUM('a','b'), many SET('x','y'),
           raw VARBINARY(9), fixed BINARY(3), `odd, name` TEXT, PRIMARY KEY (id, name))""",
        """INSERT INTO kinds VALUES
           (18446744073709551615, 'é', '-12345678901234567890.0123456789', -128, 0.1, 1e300, 5, '2026-01-31',
            '2026-01-31 12:00:00.5', '2026-01-31 12:00:00.000001', '-100:00:01', 'b', 'x,y', x'00ff', x'01',
            'a "quoted" \\\\ text\n'),
           (1, '', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)""",
        "CREATE TABLE untouched (id INT PRIMARY KEY)",
    )
    plan = planned(mirroring)
    assert (plan["facts"]["queues"], plan["tables"]) == (0, [])
    assert plan["warnings"] == [f"there is no topic {mirroring.database} yet; binlog-sync creates it"]
    assert not mirroring.path.exists()
    mirroring.sync()
    run_sql(
        mirroring,
        "INSERT INTO kinds (id, name, small) VALUES (2, 'two', 2), (3, 'three', 3)",
        "UPDATE kinds SET small = 22 WHERE id = 2",
        "DELETE FROM kinds WHERE id = 3",
        "UPDATE kinds SET id = 4 WHERE id = 1",
    )
    done = mirroring.sync()
    assert done.rows >= 6
    found = mirroring.rows(spark, "kinds", "id", "name")
    first = found[Decimal(18446744073709551615), "é"]
    assert found.keys() == {(Decimal(18446744073709551615), "é"), (2, "two"), (4, "")}
    assert first["price"] == Decimal("-12345678901234567890.0123456789")
    assert (first["small"], first["whole"], first["flag"]) == (-128, 1e300, 5)
    assert first["part"] == pytest.approx(0.1, rel=1e-7)
    assert first["born"] == datetime.date(2026, 1, 31)
    assert first["at"] == datetime.datetime(2026, 1, 31, 12, 0, 0, 500000)
    assert first["seen"].astimezone(datetime.UTC).replace(tzinfo=None) == datetime.datetime(
        2026, 1, 31, 12, 0, 0, 1
    )
    assert (first["span"], first["choice"], first["many"]) == ("-100:00:01", "b", "x,y")
    assert (bytes(first["raw"]), bytes(first["fixed"])) == (b"\x00\xff", b"\x01\x00\x00")
    assert first["odd, name"] == 'a "quoted" \\ text\n'
    assert found[2, "two"]["small"] == 22
    assert mirroring.tombstones(spark, "kinds") == 2
    assert mirroring.rows(spark, "untouched", "id") == {}
    plan = planned(mirroring)
    assert (plan["facts"]["queues"], plan["facts"]["mirror"]) == (QUEUES, str(mirroring.path))
    assert (plan["facts"]["changes"], plan["warnings"]) == ("of definitions: lenient", [])
    assert plan["tables"] == [
        {"table": f"{mirroring.database}.{name}", "columns": columns, "definitions": 1, "rows": rows}
        for name, columns, rows in (("kinds", 16, 3), ("untouched", 1, 0))
    ]

    same = BinlogMirror.from_file(mirroring.config).verify(10, 0)
    assert same.is_same, same
    assert {table.table.partition(".")[2]: table.source_rows for table in same.tables} == {
        "kinds": 3,
        "untouched": 0,
    }
    _damage(spark, mirroring)
    run_sql(mirroring, "INSERT INTO kinds (id, name) VALUES (9, 'not read yet')")
    other = BinlogMirror.from_file(mirroring.config).verify(10, 0)
    assert not other.is_same
    (kinds, _) = other.tables
    assert {(json.loads(key.key)[0], key.what) for key in kinds.keys} == {
        ("2", "different"),
        ("4", "only in the source"),
        ("9", "only in the source"),
    }
    _verify_by_command(mirroring)


def _verify_by_command(mirroring: Mirroring) -> None:
    """Runs the command while three keys differ, and until the mirror has caught up."""
    kinds = f"{mirroring.database}.kinds"
    code, printed = run_command(mirroring, "verify", "binlog-mirror", "--limit", "1")
    assert code == 1, printed
    keys = [line for line in printed.splitlines() if line.startswith(f"{kinds} [") or "more keys" in line]
    assert len(keys) == 2 and keys[1] == f"{kinds}: 2 more keys", printed
    assert keys[0].endswith((": different", ": only in the source"))

    run_sql(mirroring, "UPDATE kinds SET small = 5 WHERE id IN (2, 4)")
    mirroring.read()
    server = mirroring.server
    server.execute("SET GLOBAL log_output = 'TABLE'", "SET GLOBAL general_log = ON")
    verifying = Verifying(mirroring, "--wait", str(VERIFY_S), "-o", "json")
    try:
        with server.root() as connection, connection.cursor() as cursor:

            def has_differed() -> bool:
                """Returns whether the source was read again, which happens only after a difference."""
                assert verifying.is_running, verifying.done()
                cursor.execute(
                    "SELECT COUNT(*) FROM mysql.general_log WHERE user_host LIKE %s AND argument LIKE %s",
                    (f"{USER}%", "SELECT %`kinds` ORDER BY%"),
                )
                (reads,) = cursor.fetchone()
                return bool(reads >= 2)

            # The server logs and searches these queries, too.
            wait_until(has_differed, VERIFY_S, interval_s=0.2)
        mirroring.apply()
        code, printed = verifying.done()
    finally:
        server.execute("SET GLOBAL general_log = OFF", "SET GLOBAL log_output = 'FILE'")
    assert code == 0, printed
    found = json.loads(printed[printed.index("\n{") if "\n{" in printed else 0 :])
    assert found["same"]
    assert [(table["source_rows"], table["keys"]) for table in found["tables"]] == [(4, []), (0, [])]


def _damage(spark: SparkSession, mirroring: Mirroring) -> None:
    table = f"delta.`{table_path(str(mirroring.path), (mirroring.database, 'kinds'))}`"
    spark.sql(f"UPDATE {table} SET small = NULL, part = 1 WHERE id = 2")
    spark.sql(f"DELETE FROM {table} WHERE id = 4")


def test_barriers_in_any_order_and_replays(make_mirror: Make, spark: SparkSession) -> None:
    """Batches are small, so that they end between the barriers of different queues."""
    mirroring = make_mirror('batch_bytes = "6k"')
    run_sql(mirroring, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", "CREATE TABLE gone (id INT PRIMARY KEY)")
    run_sql(mirroring, "INSERT INTO t SELECT seq, 0 FROM seq_1_to_40", "INSERT INTO gone VALUES (1), (2)")
    mirroring.read()
    run_sql(
        mirroring,
        "SET STATEMENT max_statement_time=100 FOR TRUNCATE TABLE t",
        "INSERT INTO t SELECT seq, 1 FROM seq_30_to_60",
        "DELETE FROM t WHERE id > 50",
        "SET STATEMENT max_statement_time=100 FOR DROP TABLE gone",
        "CREATE TABLE fresh (id INT PRIMARY KEY)",
    )
    # Messages of strangers, and one that a newer binlog-sync could not have written either.
    strangers = [
        b"\xff\xfe",
        b"",
        b"null",
        b"[1]",
        b'{"v":1}',
        b'{"v":1,"kind":"rows","changes":[]}',
        b'{"v":1,"kind":"x"}',
    ]
    strangers += [
        b'{"v":1,"kind":"snapshot","seq":"ff","database":"d","table":"t","state":"end","begun":"ff",'
        b'"queues":1,"queue":Infinity}'
    ]
    strangers += [
        b'{"v":1,"kind":"rows","database":"d","table":"t","schema":1,"changes":[{"seq":"ff","op":"insert",'
        b'"row":"no object"}]}'
    ]
    mirroring.send(*strangers)
    done = mirroring.sync()
    assert done.details["batches"] >= 2
    assert done.details["foreign"] == len(strangers)
    assert mirroring.rows(spark, "t", "id") == mirroring.source("t", "id")
    assert mirroring.rows(spark, "gone", "id") == {}
    assert mirroring.tombstones(spark, "t") == 10
    # It has no rows yet.
    assert mirroring.rows(spark, "fresh", "id") == {}

    # Without its checkpoint the mirror gets everything again, oldest changes first.
    (mirroring.path / "_checkpoint").rename(mirroring.path / "_lost")
    mirroring.set_mirror("")
    mirroring.apply()
    assert mirroring.rows(spark, "t", "id") == mirroring.source("t", "id")
    assert mirroring.rows(spark, "gone", "id") == {}


CHANGE = "ALTER TABLE t ADD COLUMN added INT DEFAULT 7, DROP COLUMN old, MODIFY v VARCHAR(20)"


@pytest.mark.parametrize("mode", ["lenient", "evolve", "ignore", "exception"])
def test_changes_of_definitions(make_mirror: Make, spark: SparkSession, mode: str) -> None:
    mirroring = make_mirror(f'schema_changes = "{mode}"')
    run_sql(
        mirroring,
        "CREATE TABLE t (id INT PRIMARY KEY, v INT, old INT)",
        "INSERT INTO t VALUES (1, 1, 1), (2, 2, 2)",
    )
    mirroring.sync()
    run_sql(mirroring, CHANGE, "INSERT INTO t VALUES (3, 'three', 8)", "UPDATE t SET v = '22' WHERE id = 2")
    if mode == "exception":
        with pytest.raises(MetaqError, match=r"the definition of .* has changed: added int is new"):
            mirroring.sync()
        assert mirroring.rows(spark, "t", "id")[1,] == {"id": 1, "v": 1, "old": 1}
        return
    mirroring.sync()
    found = mirroring.rows(spark, "t", "id")
    if mode == "evolve":
        assert found == mirroring.source("t", "id")
    elif mode == "lenient":
        assert found == {key: {**row, "old": None} for key, row in mirroring.source("t", "id").items()}
    else:
        assert found == {
            (1,): {"id": 1, "v": 1, "old": None},
            (2,): {"id": 2, "v": 22, "old": None},
            (3,): {"id": 3, "v": None, "old": None},
        }
        # Verification ignores columns that the mirror leaves out.
        assert BinlogMirror.from_file(mirroring.config).verify(10, 0).is_same


def test_rows_that_change_without_a_trace(make_mirror: Make, spark: SparkSession) -> None:
    mirroring = make_mirror()
    text = mirroring.config.read_text(encoding="utf-8")
    mirroring.config.write_text(
        text.replace("[snapshot]", "[snapshot]\nreread_interval_s = 0"), encoding="utf-8"
    )
    run_sql(
        mirroring,
        "CREATE TABLE parents (id INT PRIMARY KEY)",
        """CREATE TABLE children (id INT PRIMARY KEY, parent INT, address INET6,
           FOREIGN KEY (parent) REFERENCES parents (id) ON DELETE CASCADE)""",
        "CREATE TABLE bag (v VARCHAR(9), n INT)",
        "INSERT INTO parents VALUES (1), (2), (3)",
        "INSERT INTO children VALUES (1, 1, '::1'), (2, 2, '2001:db8::'), (3, 3, NULL), (4, 3, NULL)",
        "INSERT INTO bag VALUES ('a', NULL), ('a', NULL), ('A', 1), ('b', 2)",
    )
    mirroring.sync()
    run_sql(
        mirroring,
        "DELETE FROM parents WHERE id = 1",
        "DELETE FROM bag WHERE v = 'a' AND n IS NULL LIMIT 1",
        "UPDATE bag SET n = 3 WHERE v = 'b'",
    )
    mirroring.sync()
    assert mirroring.rows(spark, "children", "id") == mirroring.source("children", "id")
    assert mirroring.rows(spark, "bag", "v", "n") == mirroring.source("bag", "v", "n")
    # Two rows change without the binlog; only the first one is in the range that is read again.
    run_sql(mirroring, "SET sql_log_bin = 0", "DELETE FROM children WHERE id IN (2, 4)")
    name = f"{mirroring.database}.children"
    code, said = run_command(mirroring, "reread", "binlog-sync", "--table", name, "--from", "2", "--to", "3")
    assert (code, said) == (0, f"{name}: about 1 row will be read again\n")
    wait_until(lambda: not list(mirroring.home.glob("state/*.rereads/*.json")), 120)
    mirroring.sync()
    assert mirroring.rows(spark, "children", "id").keys() == {(3,), (4,)}
    assert mirroring.tombstones(spark, "children") == 1
    found = BinlogMirror.from_file(mirroring.config).verify(10, 0)
    assert {table.table: len(table.keys) for table in found.tables} == {
        f"{mirroring.database}.bag": 0,
        f"{mirroring.database}.children": 1,
        f"{mirroring.database}.parents": 0,
    }


STEPS = ("save_notes", "evolve", "drop_below_floor", "merge")


class Ended(Exception):
    """Stands for the end of the process."""


class Interruptions:
    """Ends a run before or after a step of any table and batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.point = ""
        self.occurrence = 0
        self.met: list[str] = []
        for name in STEPS:
            monkeypatch.setattr(DeltaMirror, name, self._step(name, getattr(DeltaMirror, name)))

    def _step(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(table: DeltaMirror, *arguments: Any, **more: Any) -> Any:
            self._pass(f"before {name}")
            done = method(table, *arguments, **more)
            self._pass(f"after {name}")
            return done

        return call

    def _pass(self, point: str) -> None:
        if point == self.point:
            self.occurrence -= 1
            if self.occurrence == 0:
                self.met.append(point)
                raise Ended(point)


@kill_loop
def test_a_run_may_end_between_any_two_steps(
    make_mirror: Make, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = seeded()
    mirroring = make_mirror('batch_bytes = "12k"')
    run_sql(
        mirroring,
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE other (id INT PRIMARY KEY, v INT)",
        "INSERT INTO t SELECT seq, 0 FROM seq_1_to_40",
    )
    mirroring.read()
    run_sql(
        mirroring,
        "INSERT INTO other SELECT seq, 0 FROM seq_1_to_40",
        "TRUNCATE TABLE t",
        "INSERT INTO t SELECT seq, 1 FROM seq_20_to_50",
        "DELETE FROM t WHERE id > 40",
        "ALTER TABLE t ADD COLUMN added INT DEFAULT 7",
        "UPDATE t SET added = id WHERE id < 30",
        "UPDATE other SET v = id WHERE id < 20",
    )
    mirroring.read()
    interruptions = Interruptions(monkeypatch)
    points = [f"{when} {step}" for when in ("before", "after") for step in STEPS]
    for number, point in enumerate(chance.sample(points, rounds(1, len(points)))):
        # Definitions change only once.
        occurrence = 1 if point.endswith("evolve") else chance.randrange(1, 3)
        interruptions.point, interruptions.occurrence = point, occurrence
        try:
            mirroring.apply()
        except MetaqError:
            assert len(interruptions.met) == number + 1
        else:
            # The step did not occur that often any more: everything is applied.
            break
    interruptions.point = ""
    mirroring.apply()
    assert interruptions.met
    print(interruptions.met)
    for table in ("t", "other"):
        assert mirroring.rows(spark, table, "id") == mirroring.source(table, "id")


@kill_loop
def test_kills_while_batches_are_applied(make_mirror: Make, spark: SparkSession) -> None:
    mirroring = make_mirror()
    cluster = Cluster(mirroring.home, workers=rounds(1, 2))
    # A mirror in one process is killed only in a long run.
    clusters = (None, cluster) if LONG else (cluster,)
    kill_while_applying(mirroring, mirroring.set_mirror, mirroring.path / "_checkpoint", clusters)
    assert len(cluster.executors) >= cluster.workers
    for table, key in KEYS.items():
        assert mirroring.rows(spark, table, *key) == mirroring.source(table, *key)
