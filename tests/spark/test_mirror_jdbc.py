"""binlog-mirror into a second MariaDB server, MySQL and PostgreSQL, all of them real."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from metaq.errors import ConfigError, MetaqError
from metaq.pipelines import Progress, Verification
from metaq.pipelines.binlog_mirror.columns import wanted_columns
from metaq.pipelines.binlog_mirror.connection import Connection, JdbcConfig, transaction
from metaq.pipelines.binlog_mirror.dialects import dialect_of
from metaq.pipelines.binlog_mirror.errors import MirrorError
from metaq.pipelines.binlog_mirror.jdbc import JdbcMirror, JdbcTarget
from metaq.pipelines.binlog_mirror.notes import Notes
from metaq.pipelines.binlog_mirror.pipeline import BinlogMirror
from metaq.pipelines.binlog_sync.values.columns import Column, Definition
from tests.spark.mirroring import KEYS, Mirroring, kill_while_applying, planned, run_command, run_sql
from tests.support import postgresql
from tests.support.binlog import QUEUES
from tests.support.database import PASSWORD, Database
from tests.support.mariadb import MariaDb
from tests.support.metaq import Metaq
from tests.support.mysql import MySql
from tests.support.postgresql import PostgreSql
from tests.support.rounds import kill_loop, rounds, seeded, soak
from tests.support.waiting import wait_until

# Each batch is a few dozen Spark jobs, which take long on a busy machine.
pytestmark = [pytest.mark.usefixtures("spark", "password"), pytest.mark.timeout(900)]

WRITER = "writer"
PATIENCE_S = 120
PAGE = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text(encoding="utf-8")
(RIGHTS,) = re.findall(r"^GRANT (CREATE, .*) ON", PAGE, flags=re.MULTILINE)
"""The rights that the page lists."""


@dataclass(frozen=True)
class Other:
    """The database that holds the mirror."""

    name: str
    url: str
    user: str
    rows: Callable[[str], list[dict[str, Any]]]
    """Runs a query that returns only numbers and texts."""
    execute: Callable[[str], object]


def _mysql_family(server: Database, settings: str = "") -> Other:
    server.execute(
        f"CREATE USER {WRITER}@'%' IDENTIFIED BY '{postgresql.PASSWORD.replace(chr(39), chr(39) * 2)}'",
        f"GRANT {RIGHTS} ON *.* TO {WRITER}@'%'",
    )

    def rows(query: str) -> list[dict[str, Any]]:
        with server.root() as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_mode = 'ANSI_QUOTES'")
            cursor.execute(query)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    url = f"jdbc:mariadb://127.0.0.1:{server.port}/{settings}"
    return Other(server.name, url, WRITER, rows, server.execute)


@pytest.fixture(scope="module")
def second_mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Other]:
    server = MariaDb(tmp_path_factory.mktemp("second"))
    yield _mysql_family(server)
    server.stop()


@pytest.fixture(scope="module")
def mysql_server(mysql: MySql) -> Iterator[Other]:
    # Clusters and some providers have this setting.
    mysql.execute("SET GLOBAL sql_require_primary_key = ON")
    yield _mysql_family(mysql, "?allowPublicKeyRetrieval=true")
    mysql.execute("SET GLOBAL sql_require_primary_key = OFF", f"DROP USER {WRITER}@'%'")
    mysql.execute("DROP DATABASE IF EXISTS metaq_mirror")


@pytest.fixture(scope="module")
def postgresql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Other]:
    server = PostgreSql(tmp_path_factory.mktemp("postgresql"))
    yield Other("postgresql", server.url, postgresql.USER, server.rows, server.execute)
    server.stop()


@pytest.fixture(params=["second_mariadb", "mysql_server", "postgresql_server"])
def other(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Other:
    monkeypatch.setenv("OTHER_PASSWORD", postgresql.PASSWORD)
    found: Other = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def mirroring(
    mariadb: MariaDb, served: Metaq, database: str, tmp_path: Path, other: Other
) -> Iterator[Mirroring]:
    made = Mirroring(tmp_path, mariadb, served, database)
    set_target(made, other)
    yield made
    made.close()


def set_target(mirroring: Mirroring, other: Other, lines: str = "") -> None:
    mirroring.set_mirror(
        f'target = "jdbc"\ncheckpoint = "checkpoint"\n{lines}\n'
        f'[jdbc]\nurl = "{other.url}"\nuser = "{other.user}"\npassword_env = "OTHER_PASSWORD"\n'
    )


def _forget(mirroring: Mirroring, other: Other) -> None:
    """Lets the mirror begin again."""
    shutil.rmtree(mirroring.home / "checkpoint")
    other.execute("DELETE FROM metaq_mirror.left_out")


def databases(other: Other) -> set[str]:
    """Returns the databases, or in PostgreSQL the schemas."""
    return {
        row["name"] for row in other.rows('SELECT schema_name AS "name" FROM information_schema.schemata')
    }


def test_every_type_and_the_life_of_rows(mirroring: Mirroring, other: Other) -> None:
    run_sql(
        mirroring,
        """CREATE TABLE kinds (id BIGINT UNSIGNED, name VARCHAR(20) CHARACTER SET latin1,
           price DECIMAL(30,10), small TINYINT, part FLOAT, whole DOUBLE, flag BIT(3), born DATE,
           at DATETIME(3), seen TIMESTAMP(6) NULL, span TIME, choice ENUM('a','b'), many SET('x','y'),
           raw VARBINARY(9), fixed BINARY(3), `odd, "name` TEXT, PRIMARY KEY (id, name))""",
        """INSERT INTO kinds VALUES
           (18446744073709551615, 'é', '-12345678901234567890.0123456789', -128, 0.1, 1e300, 5, '2026-01-31',
            '2026-01-31 12:00:00.5', '2026-01-31 12:00:00.000001', '-100:00:01', 'b', 'x,y', x'00ff', x'01',
            'a "quoted" \\\\ ''text''\n☃😀'),
           (1, '', NULL, NULL, NULL, NULL, NULL, '0000-00-00',
            NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)""",
    )
    mirroring.read()
    before = databases(other)
    plan = planned(mirroring)
    assert (plan["facts"]["queues"], plan["tables"]) == (QUEUES, [])
    assert databases(other) == before
    # An existing table belongs to somebody else.
    schema = "SCHEMA" if other.name == "postgresql" else "DATABASE"
    other.execute(f"CREATE {schema} {mirroring.database}")
    other.execute(f"CREATE TABLE {mirroring.database}.kinds (id INT PRIMARY KEY)")
    kinds = f"{mirroring.database}.kinds"
    assert mirroring.apply().details["skipped"] == kinds
    (warning,) = planned(mirroring)["warnings"]
    assert warning.startswith(f"{kinds} is left out: ") and "which is not a mirror" in warning
    # The mirror begins again without the table, and without the memory of having left it out.
    other.execute(f"DROP TABLE {mirroring.database}.kinds")
    _forget(mirroring, other)
    mirroring.apply()
    run_sql(
        mirroring,
        "INSERT INTO kinds (id, name, small) VALUES (2, 'two', 2), (3, 'three', 3)",
        "UPDATE kinds SET small = 22 WHERE id = 2",
        "DELETE FROM kinds WHERE id = 3",
        "UPDATE kinds SET id = 4 WHERE id = 1",
    )
    mirroring.sync()
    plan = planned(mirroring)
    assert plan["facts"]["mirror"] == other.url.partition("?")[0]
    own = [entry for entry in plan["tables"] if entry["table"] == f"{mirroring.database}.kinds"]
    assert [(entry["columns"], entry["definitions"], entry["rows"]) for entry in own] == [(16, 1, 3)]
    assert BinlogMirror.from_file(mirroring.config).verify(10, 0).is_same
    found = other.rows(
        'SELECT CAST(id AS CHAR(20)) AS "id", name, CAST(price AS CHAR(40)) AS "price", small, whole, flag,'
        ' born, CAST(at AS CHAR(26)) AS "at", span, choice, many, "odd, ""name"'
        f' FROM "{mirroring.database}"."kinds" ORDER BY small'
    )
    by_id = {row["id"].strip(): row for row in found}
    assert by_id.keys() == {"18446744073709551615", "2", "4"}
    first = by_id["18446744073709551615"]
    assert first["at"].strip().rstrip("0") == "2026-01-31 12:00:00.5"
    assert {name: first[name] for name in first.keys() - {"id", "at", "price", "born"}} == {
        **{"name": "é", "small": -128, "whole": 1e300, "flag": 5, "span": "-100:00:01", "choice": "b"},
        **{"many": "x,y", 'odd, "name': "a \"quoted\" \\ 'text'\n☃😀"},
    }
    assert first["price"].strip() == "-12345678901234567890.0123456789"
    assert by_id["2"]["small"] == 22
    assert _key_index(mirroring, other) == ["id", "name"]
    assert (str(first["born"]), by_id["4"]["born"]) == ("2026-01-31", None)

    # A row goes without the binlog, and the range of its key is read again.
    run_sql(mirroring, "SET sql_log_bin = 0", "DELETE FROM kinds WHERE id = 4")
    table = f"{mirroring.database}.kinds"
    code, said = run_command(mirroring, "reread", "binlog-sync", "--table", table, "--from", "3", "--to", "9")
    assert (code, said) == (0, f"{table}: about 0 rows will be read again\n")
    wait_until(lambda: not list(mirroring.home.glob("state/*.rereads/*.json")), 120)
    mirroring.sync()
    assert BinlogMirror.from_file(mirroring.config).verify(10, 0).is_same

    # Verification finds a row that differs.
    run_sql(mirroring, "UPDATE kinds SET part = 2 WHERE id = 2")
    different = BinlogMirror.from_file(mirroring.config).verify(10, 0)
    assert [(json.loads(key.key)[0], key.what) for key in different.tables[0].keys] == [("2", "different")]


def _key_index(mirroring: Mirroring, other: Other) -> list[str]:
    """Returns the columns of the index on the source's primary key."""
    if other.name == "postgresql":
        (row,) = other.rows(
            "SELECT indexdef AS definition FROM pg_indexes"
            f" WHERE schemaname = '{mirroring.database}' AND indexname LIKE 'metaq_key_%'"
        )
        return re.findall(r"\w+", row["definition"].rpartition("(")[2])
    found = other.rows(
        'SELECT column_name AS "name" FROM information_schema.statistics'
        f" WHERE index_name LIKE 'metaq_key_%' AND table_schema = '{mirroring.database}'"
        " ORDER BY seq_in_index"
    )
    return [row["name"] for row in found]


class Watched:
    """Reports of a run, whose first batch waits in its middle until its progress was reported."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reports: list[Progress] = []
        self._is_reported = threading.Event()
        self.was_reported = False
        merge = JdbcMirror.merge

        def waits(table: JdbcMirror, *arguments: Any, **more: Any) -> int:
            if not self.was_reported:
                self.was_reported = self._is_reported.wait(PATIENCE_S)
            return merge(table, *arguments, **more)

        monkeypatch.setattr(JdbcMirror, "merge", waits)

    def __call__(self, progress: Progress) -> None:
        self.reports.append(replace(progress, details=dict(progress.details)))
        if progress.details.get("messages_left") and "." in str(progress.details.get("step")):
            self._is_reported.set()


def set_policies(mirroring: Mirroring, other: Other, **policies: str) -> None:
    sections = [f'[tables."{mirroring.database}.{table}"]\n{line}\n' for table, line in policies.items()]
    set_target(mirroring, other)
    with mirroring.config.open("a", encoding="utf-8") as file:
        file.write("".join(sections))


def mirrored(mirroring: Mirroring, other: Other, table: str, columns: str = "id, note") -> dict[int, Any]:
    found = other.rows(f'SELECT {columns} FROM "{mirroring.database}"."{table}"')
    return {row["id"]: row["note"] for row in found}


DROPPED = {"kept": "keep", "cut": "drop", "box": "archive", "again": "archive"}


@pytest.mark.parametrize("other", ["second_mariadb", "postgresql_server"], indirect=True)
def test_refused_rows_dropped_tables_and_progress(
    mirroring: Mirroring, other: Other, monkeypatch: pytest.MonkeyPatch, spark_stderr: Path
) -> None:
    tables = ("bad", "worse", "good", *DROPPED)
    for table in tables:
        run_sql(
            mirroring,
            f"CREATE TABLE {table} (id INT PRIMARY KEY, note TEXT)",
            f"INSERT INTO {table} VALUES (1, 'one')",
        )
    mirroring.read()
    watched = Watched(monkeypatch)
    done = mirroring.apply(watched)
    assert watched.was_reported, watched.reports
    first = next(report for report in watched.reports if "." in str(report.details["step"]))
    # Some rows may be read twice: from the table and from the binlog.
    assert first.details["batch_rows"] >= len(tables) and first.details["batch_rows_done"] == 0
    assert first.details["messages_left"] != 0 and first.lag_s != 0
    assert first.details["step"] == f"{mirroring.database}.again"
    assert (done.lag_s, done.details["messages_left"], done.details["step"]) == (0.0, 0, "waiting")
    monkeypatch.undo()
    monkeypatch.setenv("OTHER_PASSWORD", postgresql.PASSWORD)
    monkeypatch.setenv("TEST_DATABASE_PASSWORD", PASSWORD)

    # Somebody has made a column of the target shorter. PostgreSQL also refuses NUL in every text.
    refuse = "MODIFY note VARCHAR(5)" if other.name == "mariadb" else "ALTER COLUMN note TYPE VARCHAR(5)"
    for table in ("bad", "worse"):
        other.execute(f"ALTER TABLE {mirroring.database}.{table} {refuse}")
    nul = "'a\\0b'" if other.name == "postgresql" else "'much too long'"
    run_sql(
        mirroring,
        f"INSERT INTO bad VALUES (2, 'much too long'), (3, 'three'), (4, {nul})",
        "UPDATE bad SET note = 'uno' WHERE id = 1",
        f"INSERT INTO worse VALUES (2, {nul}), (3, 'three')",
        "INSERT INTO good VALUES (2, 'two')",
    )
    mirroring.read()
    printed = len(spark_stderr.read_bytes())
    with pytest.raises(MetaqError) as refused:
        mirroring.apply()
    assert b"\tat " not in spark_stderr.read_bytes()[printed:], "no stack of Java"
    assert re.match(
        rf'column note of row \["[24]"\] of {mirroring.database}\.bad is refused: .*; its value is "',
        str(refused.value),
    ), refused.value
    assert "\n" not in str(refused.value) and "quarantine" in refused.value.hint
    assert mirrored(mirroring, other, "bad") == {1: "one"}

    policies = {name: f'dropped = "{policy}"' for name, policy in DROPPED.items()}
    set_policies(mirroring, other, bad='refused = "quarantine"', worse='refused = "skip"', **policies)
    run_sql(
        mirroring,
        *(f"DROP TABLE {name}" for name in DROPPED),
        "CREATE TABLE again (id INT PRIMARY KEY, note TEXT)",
        "INSERT INTO again VALUES (7, 'new')",
    )
    done = mirroring.sync()
    assert (done.details["quarantined"], done.details["skipped"]) == (2, f"{mirroring.database}.worse")
    assert mirrored(mirroring, other, "bad") == {1: "uno", 3: "three"}
    assert mirrored(mirroring, other, "worse") == {1: "one"}
    assert mirrored(mirroring, other, "good") == {1: "one", 2: "two"}
    assert mirrored(mirroring, other, "kept") == {1: "one"}
    assert mirrored(mirroring, other, "again") == {7: "new"}
    there = other.rows(
        'SELECT table_name AS "name" FROM information_schema.tables'
        f" WHERE table_schema = '{mirroring.database}'"
    )
    names = {row["name"] for row in there}
    assert {re.sub("_dropped_.*", "_dropped", name) for name in names} == {
        *("bad", "worse", "good", "kept", "again", "again_dropped", "box_dropped")
    }
    for archived in names:
        if "_dropped_" in archived:
            assert mirrored(mirroring, other, archived) == {1: "one"}

    found = {table.table.partition(".")[2]: table for table in _verified(mirroring).tables}
    assert {name for name, table in found.items() if not table.is_same} == {"bad", "worse"}
    assert found["bad"].quarantined == 2
    assert {key.key: key.what.partition(":")[0] for key in found["bad"].keys} == {
        f'["{key}"]': "only in the source; in quarantine" for key in (2, 4)
    }
    assert found["worse"].note.startswith("it is skipped: column note: ")
    assert found["kept"].is_kept

    # Later changes take rows out of the quarantine. A skipped table resumes when it is emptied or read again.
    run_sql(
        mirroring,
        "UPDATE bad SET note = 'short' WHERE id = 2",
        "TRUNCATE TABLE worse",
        "INSERT INTO worse VALUES (5, 'five')",
        "CREATE TABLE cut (id INT PRIMARY KEY, note TEXT)",
        "INSERT INTO cut VALUES (8, 'back')",
    )
    # One goes without the binlog, and the range of its key is read again.
    run_sql(mirroring, "SET sql_log_bin = 0", "DELETE FROM bad WHERE id = 4")
    bad = f"{mirroring.database}.bad"
    assert run_command(mirroring, "reread", "binlog-sync", "--table", bad, "--from", "3", "--to", "9")[0] == 0
    wait_until(lambda: not list(mirroring.home.glob("state/*.rereads/*.json")), 120)
    mirroring.sync()
    assert mirrored(mirroring, other, "bad") == {1: "uno", 2: "short", 3: "three"}
    assert mirrored(mirroring, other, "worse") == {5: "five"}
    assert mirrored(mirroring, other, "cut") == {8: "back"}
    assert other.rows("SELECT 1 FROM metaq_mirror.quarantine") == []


@pytest.mark.parametrize("other", ["second_mariadb", "mysql_server", "postgresql_server"], indirect=True)
def test_addresses_and_uuids_have_the_types_of_the_target(other: Other, spark: SparkSession) -> None:
    dialect = dialect_of(other.url)
    assert dialect is not None
    target = JdbcTarget(spark, JdbcConfig(other.url, other.user, postgresql.PASSWORD, dialect))
    kinds = {"id": "int32", "u": "uuid", "four": "inet4", "six": "inet6"}
    key = Definition(tuple(Column(name, kind, True) for name, kind in kinds.items()), ("u", "id"))
    notes = Notes("net.hosts", definitions={("a1", 1): key})
    columns = wanted_columns(key, typed_dates=True, native=target.native_types())
    mirror = target.create(("net", "hosts"), notes, columns)
    mirror.ensure_index()
    row = ("7", "123e4567-e89b-12d3-a456-426655440000", "10.0.0.1", "2001:db8::1")
    names = ", ".join(f"{name} string" for name in kinds)
    changes = spark.createDataFrame(
        [('["7"]', "a1", False, *row), ('["8"]', "a1", False, "8", None, None, None)],
        f"metaq_key string, metaq_seq string, metaq_deleted boolean, {names}",
    )
    mirror.merge(changes, "query", 0)
    found = {entry.id: entry for entry in mirror.rows().collect()}
    assert [str(found[7][name]) for name in kinds] == list(row)
    assert found[8].u is None
    there = other.rows(
        'SELECT column_name AS "name", data_type AS "kind" FROM information_schema.columns'
        " WHERE table_schema = 'net' AND table_name = 'hosts' AND column_name IN ('u', 'four', 'six')"
    )
    wanted = {
        "mariadb": {"u": "uuid", "four": "inet4", "six": "inet6"},
        "mysql": dict.fromkeys(("u", "four", "six"), "longtext"),
        "postgresql": {"u": "uuid", "four": "inet", "six": "inet"},
    }
    assert {entry["name"]: entry["kind"] for entry in there} == wanted[other.name]
    mirror.discard()
    assert target.open(("net", "hosts")) is None


def _verified(mirroring: Mirroring) -> Verification:
    return BinlogMirror.from_file(mirroring.config).verify(10, 0)


STEPS_MAX = 60
INTERRUPTIONS = rounds(1, 10)


class Interruptions:
    """Ends a run before or after a statement, whose number is given; uncommitted changes are lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps_left: int | None = None
        self.points: list[str] = []
        execute = Connection.execute

        def interrupted(connection: Connection, statement: str, *parameters: str | int) -> int:
            self._pass(f"before {statement}")
            done = execute(connection, statement, *parameters)
            self._pass(f"after {statement}")
            return done

        monkeypatch.setattr(Connection, "execute", interrupted)

    def _pass(self, point: str) -> None:
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left == 0:
                self.points.append(point)
                raise RuntimeError(point)


# MySQL gets the same statements as MariaDB.
@kill_loop
@pytest.mark.parametrize(
    "other",
    ["second_mariadb", pytest.param("mysql_server", marks=soak), "postgresql_server"],
    indirect=True,
)
def test_a_run_may_end_between_any_two_statements(
    mirroring: Mirroring, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = seeded()
    set_target(mirroring, other, 'batch_bytes = "12k"\nschema_changes = "evolve"')
    run_sql(
        mirroring,
        "CREATE TABLE t (id INT PRIMARY KEY, v INT, old INT)",
        "CREATE TABLE other (id INT PRIMARY KEY, v INT)",
        "INSERT INTO t SELECT seq, 0, 0 FROM seq_1_to_40",
    )
    mirroring.read()
    run_sql(
        mirroring,
        "INSERT INTO other SELECT seq, 0 FROM seq_1_to_40",
        "TRUNCATE TABLE t",
        "INSERT INTO t SELECT seq, 1, 1 FROM seq_20_to_50",
        "DELETE FROM t WHERE id > 40",
        "ALTER TABLE t ADD COLUMN added INT DEFAULT 7, DROP COLUMN old, MODIFY v VARCHAR(20)",
        "UPDATE t SET added = id, v = 'text' WHERE id < 30",
        "UPDATE other SET v = id WHERE id < 20",
        "UPDATE other SET id = id + 100 WHERE id < 10",
    )
    mirroring.read()
    interruptions = Interruptions(monkeypatch)
    for number in range(INTERRUPTIONS):
        interruptions.steps_left = chance.randrange(1, STEPS_MAX)
        try:
            mirroring.apply()
        except MetaqError:
            assert len(interruptions.points) == number + 1
        else:
            break
    interruptions.steps_left = None
    mirroring.apply()
    assert interruptions.points
    print(interruptions.points)
    require_same(mirroring, other)

    # Without its checkpoint the mirror gets everything again, oldest changes first.
    (mirroring.home / "checkpoint").rename(mirroring.home / "lost")
    set_target(mirroring, other, 'schema_changes = "evolve"')
    mirroring.apply()
    require_same(mirroring, other)
    left = other.rows(
        "SELECT table_name AS \"name\" FROM information_schema.tables WHERE table_schema = 'metaq_mirror'"
    )
    assert {row["name"] for row in left} == {"tables", "tombstones", "quarantine", "left_out"}


def require_same(mirroring: Mirroring, other: Other) -> None:
    for table, columns in {"t": "id, v, added", "other": "id, v"}.items():
        found = other.rows(f'SELECT {columns} FROM "{mirroring.database}"."{table}"')
        assert {(row["id"],): row for row in found} == mirroring.source(table, "id")


# `make test` kills the mirror in Delta, and ends runs into PostgreSQL between their statements.
@soak
@kill_loop
@pytest.mark.parametrize("other", ["postgresql_server"], indirect=True)
def test_kills_while_batches_are_applied(mirroring: Mirroring, other: Other) -> None:
    set_mirror = partial(set_target, mirroring, other)
    kill_while_applying(mirroring, set_mirror, mirroring.home / "checkpoint", (None,))
    for table, key in KEYS.items():
        rows = [
            {name: value for name, value in row.items() if not name.startswith("metaq_")}
            for row in other.rows(f'SELECT * FROM "{mirroring.database}"."{table}"')
        ]
        assert {tuple(row[name] for name in key): row for row in rows} == mirroring.source(table, *key)


def test_a_password_of_mysql_needs_tls_or_a_key(mysql: MySql, spark: SparkSession) -> None:
    # MySQL caches a user after the first login, so the test creates a new one.
    mysql.execute("CREATE USER stranger IDENTIFIED BY 'secret'")
    try:
        url = f"jdbc:mariadb://127.0.0.1:{mysql.port}/"
        for settings in ("", "?sslMode=trust"):
            dialect = dialect_of(url)
            assert dialect is not None
            config = JdbcConfig(url + settings, "stranger", "secret", dialect)
            if settings:
                with transaction(spark, config) as connection:
                    assert connection.query("SELECT 1") == [("1",)]
            else:
                with (
                    pytest.raises(MirrorError, match="RSA public key") as refused,
                    transaction(spark, config),
                ):
                    pass
                assert "sslMode=verify-full" in refused.value.hint
    finally:
        mysql.execute("DROP USER stranger")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('[jdbc]\nurl = "jdbc:oracle:thin:@h"', "must begin with jdbc:mariadb: or jdbc:postgresql:"),
        ("", r"jdbc\.url is missing"),
    ],
)
def test_bad_configuration(
    mariadb: MariaDb, served: Metaq, tmp_path: Path, lines: str, message: str, spark: SparkSession
) -> None:
    mirroring = Mirroring(tmp_path, mariadb, served, "nothing")
    mirroring.set_mirror(f'target = "jdbc"\ncheckpoint = "checkpoint"\n{lines}')
    with pytest.raises(ConfigError, match=message):
        BinlogMirror.from_file(mirroring.config)
