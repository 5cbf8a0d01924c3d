"""binlog-mirror into a second MariaDB server, MySQL and PostgreSQL, all of them real."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from metaq.errors import ConfigError, MetaqError
from metaq.pipelines.binlog_mirror.connection import Connection, JdbcConfig, transaction
from metaq.pipelines.binlog_mirror.dialects import dialect_of
from metaq.pipelines.binlog_mirror.errors import MirrorError
from metaq.pipelines.binlog_mirror.pipeline import BinlogMirror
from tests.spark.mirroring import KEYS, Mirroring, kill_while_applying, planned, run_sql
from tests.spark.running import seeded
from tests.support import postgresql
from tests.support.binlog import QUEUES
from tests.support.database import Database
from tests.support.mariadb import MariaDb
from tests.support.metaq import Metaq
from tests.support.mysql import MySql
from tests.support.postgresql import PostgreSql

# Each batch is a few dozen Spark jobs, which take long on a busy machine.
pytestmark = [pytest.mark.usefixtures("spark", "password"), pytest.mark.timeout(900)]

WRITER = "writer"
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
    with pytest.raises(MetaqError, match="which is not a mirror"):
        mirroring.apply()
    other.execute(f"DROP TABLE {mirroring.database}.kinds")
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
    assert (str(first["born"]), by_id["4"]["born"]) == ("2026-01-31", None)

    # Verification finds a row that differs.
    run_sql(mirroring, "UPDATE kinds SET part = 2 WHERE id = 2")
    different = BinlogMirror.from_file(mirroring.config).verify(10, 0)
    assert [(json.loads(key.key)[0], key.what) for key in different.tables[0].keys] == [("2", "different")]


STEPS_MAX = 60
INTERRUPTIONS = 3


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


def test_a_run_may_end_between_any_two_statements(
    mirroring: Mirroring, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = seeded("MIRROR_SEED")
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
    assert {row["name"] for row in left} == {"tables", "tombstones"}


def require_same(mirroring: Mirroring, other: Other) -> None:
    for table, columns in {"t": "id, v, added", "other": "id, v"}.items():
        found = other.rows(f'SELECT {columns} FROM "{mirroring.database}"."{table}"')
        assert {(row["id"],): row for row in found} == mirroring.source(table, "id")


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
