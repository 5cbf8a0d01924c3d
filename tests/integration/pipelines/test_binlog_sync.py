"""binlog-sync against real databases and a real broker."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metaq.errors import CommandError
from metaq.pipelines.binlog_sync.pipeline import BinlogSync
from tests.support.binlog import QUEUES, Running, write_config
from tests.support.database import BOTH, PASSWORD, USER, Database
from tests.support.metaq import Metaq, run
from tests.support.mirror import Mirror
from tests.support.reading import stored


@pytest.fixture
def config(server: Database, served: Metaq, database: str, password: str, tmp_path: Path) -> Iterator[Path]:
    return write_config(tmp_path / "sync.toml", server, served.nameserver, database)


# Type, literal, expected JSON. Every value is written before and after the snapshot.
VALUES: list[tuple[str, str, Any]] = [
    ("TINYINT", "-128", -128),
    ("TINYINT UNSIGNED", "255", 255),
    ("SMALLINT", "-32768", -32768),
    ("SMALLINT UNSIGNED", "65535", 65535),
    ("MEDIUMINT", "-8388608", -8388608),
    ("MEDIUMINT", "8388607", 8388607),
    ("MEDIUMINT UNSIGNED", "16777215", 16777215),
    ("INT", "-2147483648", -(2**31)),
    ("INT UNSIGNED ZEROFILL", "4294967295", 2**32 - 1),
    ("BIGINT", "-9223372036854775808", -(2**63)),
    ("BIGINT UNSIGNED", "18446744073709551615", 2**64 - 1),
    ("BOOLEAN", "TRUE", 1),
    ("FLOAT", "0.1", 0.10000000149011612),
    ("FLOAT", "16777216.0", 16777216.0),
    ("DOUBLE", "0.1", 0.1),
    ("DOUBLE", "1.7976931348623157e308", 1.7976931348623157e308),
    ("DOUBLE(10,3)", "-1.5", -1.5),
    ("DECIMAL(10,2)", "-12.5", "-12.50"),
    ("DECIMAL(65,30)", "12345678901234567890123456789012345.000000000000000000000000000001",
     "12345678901234567890123456789012345.000000000000000000000000000001"),
    ("DECIMAL(9,9)", "-0.000000001", "-0.000000001"),
    ("DECIMAL(20,0)", "0", "0"),
    ("DECIMAL(4,1) UNSIGNED", "999.9", "999.9"),
    ("BIT(1)", "b'1'", 1),
    ("BIT(17)", "b'10000000000000001'", 65537),
    ("BIT(64)", "b'1111111111111111111111111111111111111111111111111111111111111111'", 2**64 - 1),
    ("YEAR", "2026", 2026),
    ("YEAR", "0", 0),
    ("DATE", "'2026-01-31'", "2026-01-31"),
    ("DATE", "'0000-00-00'", "0000-00-00"),
    ("DATE", "'2026-02-00'", "2026-02-00"),
    ("DATE", "'9999-12-31'", "9999-12-31"),
    ("TIME", "'838:59:59'", "838:59:59"),
    ("TIME", "'-00:00:01'", "-00:00:01"),
    ("TIME(1)", "'-00:00:00.5'", "-00:00:00.5"),
    ("TIME(3)", "'-12:34:56.789'", "-12:34:56.789"),
    ("TIME(6)", "'-838:59:58.999999'", "-838:59:58.999999"),
    ("DATETIME", "'2026-01-31 23:59:58'", "2026-01-31 23:59:58"),
    ("DATETIME(2)", "'2026-01-31 23:59:58.07'", "2026-01-31 23:59:58.07"),
    ("DATETIME(5)", "'2026-01-31 23:59:58.00001'", "2026-01-31 23:59:58.00001"),
    ("DATETIME(6)", "'0000-00-00 00:00:00'", "0000-00-00 00:00:00.000000"),
    ("DATETIME", "'2026-00-00 00:00:00'", "2026-00-00 00:00:00"),
    ("TIMESTAMP NULL", "'2026-01-31 05:30:00'", "2026-01-31 00:00:00"),
    ("TIMESTAMP(4) NULL", "'2026-01-31 05:30:00.1234'", "2026-01-31 00:00:00.1234"),
    ("TIMESTAMP NULL", "'0000-00-00 00:00:00'", "0000-00-00 00:00:00"),
    ("CHAR(5)", "'ab'", "ab"),
    ("CHAR(255)", "REPEAT('ü', 255)", "ü" * 255),
    ("VARCHAR(300)", "REPEAT('x', 300)", "x" * 300),
    ("VARCHAR(20)", "'😀 \\0 \\n \"'", '😀 \0 \n "'),
    ("VARCHAR(20) CHARACTER SET latin1", "CONVERT(UNHEX('80e981') USING latin1)", "€é\x81"),
    ("VARCHAR(20) CHARACTER SET ucs2", "'žluť'", "žluť"),
    ("VARCHAR(20) CHARACTER SET gbk", "'中文'", "中文"),
    ("TEXT", "''", ""),
    ("MEDIUMTEXT", "REPEAT('y', 70000)", "y" * 70000),
    ("BINARY(4)", "UNHEX('00ff0000')", "AP8AAA=="),
    ("BINARY(2)", "UNHEX('2020')", "ICA="),
    ("VARBINARY(10)", "UNHEX('ff00')", "/wA="),
    ("BLOB", "UNHEX('0001')", "AAE="),
    ("ENUM('a','b''c','ü')", "'b''c'", "b'c"),
    ("ENUM('a','b')", "0", ""),
    ("SET('z','a','m')", "'m,z'", "z,m"),
    ("SET('z','a')", "''", ""),
    ("POINT", "ST_GeomFromText('POINT(1 2)')", "AAAAAAEBAAAAAAAAAAAA8D8AAAAAAAAAQA=="),
    ("INT GENERATED ALWAYS AS (id + 1) STORED", "DEFAULT", None),
    ("INT GENERATED ALWAYS AS (id + 1) VIRTUAL", "DEFAULT", None),
    ("INT INVISIBLE", "5", 5),
]  # fmt: skip
JSON = '\'{"b": 1.10, "a": [null, "ü"]}\''
# MariaDB keeps JSON as it was written. MySQL keeps values, some of which have no literal.
OWN_VALUES: dict[str, list[tuple[str, str, Any]]] = {
    "mariadb": [
        ("JSON", JSON, '{"b": 1.10, "a": [null, "ü"]}'),
        ("UUID", "'123E4567E89B12D3A456426655440000'", "123e4567-e89b-12d3-a456-426655440000"),
        ("UUID", "'00000000-0000-0000-0000-000000000000'", "00000000-0000-0000-0000-000000000000"),
        ("INET6", "'2001:DB8:0::'", "2001:db8::"),
        ("INET4", "'1.2.3.0'", "1.2.3.0"),
    ],
    "mysql": [
        ("JSON", JSON, '{"a":[null,"ü"],"b":1.1}'),
        ("JSON", "'[]'", "[]"),
        ("JSON", "'null'", "null"),
        ("JSON", "CAST(CAST(-1.50 AS DECIMAL(30,20)) AS JSON)", "-1.5"),
        ("JSON", "JSON_ARRAY(CAST('2015-01-15 23:24:25' AS DATETIME), CAST('2015-01-15' AS DATE),"
         " CAST('-12:13:14.5' AS TIME(1)))",
         '["2015-01-15 23:24:25.000000","2015-01-15","-12:13:14.500000"]'),
        ("JSON", "JSON_ARRAY(-1, 40000, -40000, 3000000000, -3000000000, 18446744073709551615, 1e100, 5e-324,"
         " 1e15, 0.1e0, 1.0e0, true, false, UNHEX('00ff'), 123456789012345678901234567890.123456789)",
         "[-1,40000,-40000,3000000000,-3000000000,18446744073709551615,1e100,5e-324,1000000000000000.0,"
         '0.1,1.0,true,false,"base64:type15:AP8=",123456789012345678901234567890.123456789]'),
        ("JSON", "JSON_ARRAY(REPEAT('y', 70000), JSON_OBJECT('ü', JSON_ARRAY(1, '😀')),"
         " UNHEX(REPEAT('00', 60)))",
         '["' + "y" * 70000 + '",{"ü":[1,"😀"]},"base64:type15:' + "A" * 76 + "\\n" + "A" * 4 + '"]'),
    ],
}  # fmt: skip


@BOTH
def test_all_types_before_and_after(server: Database, served: Metaq, database: str, config: Path) -> None:
    values = [*VALUES, *OWN_VALUES[server.name]]
    columns = ", ".join(f"c{number} {kind}" for number, (kind, _, _) in enumerate(values))
    names = ", ".join(f"c{number}" for number in range(len(values)))
    literals = ", ".join(literal for _, literal, _ in values)
    empty = ", ".join("DEFAULT" if literal == "DEFAULT" else "NULL" for _, literal, _ in values)
    table = f"`{database}`.wide"
    insert = f"INSERT INTO {table} (id, {names}) VALUES"
    server.execute(
        "SET SESSION sql_mode = '', time_zone = '+05:30'",
        f"CREATE TABLE {table} (id INT PRIMARY KEY, {columns})",
    )
    with server.root() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = '', time_zone = '+05:30'")
        cursor.execute(f"{insert} (1, {literals}), (2, {empty})")
        running = Running(config)
        running.wait_for_phase("following")
        cursor.execute(f"{insert} (3, {literals}), (4, {empty})")
    running.wait_until_at(server)
    running.stop()

    mirror = Mirror.of_topic(served.nameserver, database, QUEUES)
    rows = {key[0]: row for key, row in mirror.rows(f"{database}.wide").items()}
    assert rows.keys() == {1, 2, 3, 4}
    for number, (kind, literal, expected) in enumerate(values):
        for identity in (1, 3):
            wanted = identity + 1 if literal == "DEFAULT" else expected
            assert rows[identity][f"c{number}"] == wanted, (kind, literal, identity)
        for identity in (2, 4):
            wanted = identity + 1 if literal == "DEFAULT" else None
            assert rows[identity][f"c{number}"] == wanted, (kind, "NULL", identity)
    # The binlog and information_schema give the same definition.
    assert [version for _, version in mirror.definitions] == [1]


@BOTH
def test_changes_of_keys_and_statements_as_barriers(
    server: Database, served: Metaq, database: str, config: Path
) -> None:
    server.execute(
        f"CREATE TABLE `{database}`.a (id INT, part VARCHAR(20), v INT, PRIMARY KEY (part, id))",
        f"CREATE TABLE `{database}`.b (id INT PRIMARY KEY)",
    )
    with server.root(database=database) as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO a VALUES (%s, %s, %s)", [(n, f"p{n % 7}", n) for n in range(120)])
        running = Running(config)
        running.wait_for_phase("following")
        for statement in (
            "UPDATE a SET v = v + 1",
            "UPDATE a SET id = id + 1000 WHERE part = 'p3'",
            "INSERT INTO b VALUES (1), (2)",
            "TRUNCATE TABLE b",
            "INSERT INTO b VALUES (2), (3)",
            "ALTER TABLE a ADD COLUMN added VARCHAR(9) DEFAULT 'new' AFTER id",
            "UPDATE a SET v = 0 WHERE part = 'p1'",
            "DELETE FROM a WHERE part = 'p2'",
            "CREATE TABLE c (id INT PRIMARY KEY) AS SELECT 5 AS id",
            "RENAME TABLE c TO d",
            "CREATE TEMPORARY TABLE scratch (id INT)",
        ):
            cursor.execute(statement)
        running.wait_until_at(server)
        # A phase that was reported before the statements says nothing about what is read again.
        running.wait_until_read(server)
        cursor.execute("SELECT id, added, part, v FROM a")
        wanted = {(part, n): {"id": n, "added": added, "part": part, "v": v} for n, added, part, v in cursor}
    running.stop()

    mirror = Mirror.of_topic(served.nameserver, database, QUEUES)
    found = mirror.rows(f"{database}.a")
    assert found.keys() == wanted.keys()
    for key, row in found.items():
        if "added" in row:
            assert row == wanted[key]
        else:
            # The row was sent before the column existed; a mirror takes the default from the statement.
            assert {**row, "added": "new"} == wanted[key]
    assert sorted(mirror.rows(f"{database}.b")) == [(2,), (3,)]
    assert list(mirror.rows(f"{database}.d")) == [(5,)]
    assert mirror.definitions.keys() >= {(f"{database}.a", 1), (f"{database}.a", 2)}
    assert [statement.split()[0] for statement in mirror.statements] == [
        "TRUNCATE",
        "ALTER",
        "CREATE",
        "RENAME",
    ]
    for queue in range(QUEUES):
        kinds = [
            json.loads(message.body)["kind"]
            for message in stored(served.nameserver, database)
            if message.queue.id == queue
        ]
        assert kinds.count("ddl") == 4, "every queue has each statement"


@BOTH
def test_a_second_run_continues(server: Database, served: Metaq, database: str, config: Path) -> None:
    server.execute(
        f"CREATE TABLE `{database}`.t (id INT AUTO_INCREMENT PRIMARY KEY, v INT)",
        f"INSERT INTO `{database}`.t (v) VALUES (1), (2), (3)",
    )
    first = Running(config)
    first.wait_for_phase("following")
    first.stop()
    server.execute(f"INSERT INTO `{database}`.t (v) VALUES (4)", "FLUSH BINARY LOGS")
    server.restart()
    server.execute(f"UPDATE `{database}`.t SET v = 9 WHERE id = 1")
    # Pretend that another server answered until now: GTIDs continue, files and positions start again.
    state = config.parent / "state" / f"{database}.json"
    state.write_text(state.read_text().replace('"server": "', '"server": "other '))

    plan = run("pipeline", "run", "binlog-sync", "--config", str(config), "--dry-run", "-o", "json")
    planned = json.loads(plan.stdout)["tables"]
    assert planned == [
        {"table": f"{database}.t", "key": "id", "columns": 2, "rows": planned[0]["rows"],
         "snapshot": "done"}
    ]  # fmt: skip
    second = Running(config)
    second.wait_until_at(server)
    # The pipeline reconnects to a server that crashed.
    server.kill()
    server.restart()
    server.execute(f"DELETE FROM `{database}`.t WHERE id = 2")
    second.wait_until_at(server)
    second.stop()
    mirror = Mirror.of_topic(served.nameserver, database, QUEUES)
    assert {key: row["v"] for key, row in mirror.rows(f"{database}.t").items()} == {(1,): 9, (3,): 3, (4,): 4}
    assert (mirror.changes, mirror.duplicates) == (6, 0)
    eras = {number[:8] for number, _ in mirror.tables[f"{database}.t"].values()}
    assert len(eras) == 2


@pytest.mark.parametrize(
    ("server", "setting", "value", "message"),
    [
        ("mariadb", "binlog_format", "MIXED",
         "binlog_format is MIXED, it must be ROW; SET GLOBAL binlog_format = ROW"),
        ("mariadb", "binlog_row_metadata", "NO_LOG", "SET GLOBAL binlog_row_metadata = FULL"),
        ("mariadb", "binlog_row_image", "MINIMAL", "SET GLOBAL binlog_row_image = FULL"),
        ("mysql", "binlog_row_metadata", "MINIMAL", "SET GLOBAL binlog_row_metadata = FULL"),
        ("mysql", "binlog_row_image", "MINIMAL", "SET GLOBAL binlog_row_image = FULL"),
        ("mysql", "gtid_mode", "ON_PERMISSIVE", "gtid_mode is ON_PERMISSIVE, it must be ON; start"),
        ("mysql", "binlog_row_value_options", "PARTIAL_JSON",
         "it must be empty; SET GLOBAL binlog_row_value_options = ''"),
        ("mysql", "binlog_transaction_compression", "ON", "SET GLOBAL binlog_transaction_compression = OFF"),
    ],
    indirect=["server"],
)  # fmt: skip
def test_settings_of_the_server_are_checked(
    server: Database, config: Path, setting: str, value: str, message: str
) -> None:
    pipeline = BinlogSync.from_file(config)
    with server.root() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT @@GLOBAL.{setting}")
        (before,) = cursor.fetchone()
        cursor.execute(f"SET GLOBAL {setting} = {value}")
        try:
            with pytest.raises(CommandError) as raised:
                pipeline.run(lambda progress: None, threading.Event())
        finally:
            cursor.execute(f"SET GLOBAL {setting} = %s", (before,))
    assert message in f"{raised.value}; {raised.value.hint}"


def test_tables_that_cannot_be_synchronised(
    server: Database, served: Metaq, database: str, config: Path, password: str
) -> None:
    server.execute(
        f"CREATE TABLE `{database}`.packed (id INT PRIMARY KEY, v TEXT COMPRESSED)",
        f"CREATE TABLE `{database}`.old (id INT PRIMARY KEY) ENGINE = MyISAM",
        f"CREATE TABLE `{database}`.good (id INT PRIMARY KEY)",
    )
    planned = run("pipeline", "run", "binlog-sync", "--config", str(config), "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert f"{database}.good" in planned.stdout
    assert f"warning: {database}.packed" in planned.stdout
    assert not (config.parent / "state").exists(), "a dry run changes nothing"
    assert password not in planned.stdout + planned.stderr

    write_config(config, server, served.nameserver, database, source='unsuitable = "error"')
    with pytest.raises(CommandError) as refused:
        BinlogSync.from_file(config).plan()
    assert "packed: column v is compressed" in str(refused.value)
    assert "old: its engine MyISAM" in str(refused.value)
    assert "source.exclude" in refused.value.hint


@BOTH
def test_the_hint_names_the_cause(
    server: Database, served: Metaq, database: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.execute(f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY)")
    right = config.read_text(encoding="utf-8")

    def refused() -> str:
        with pytest.raises(CommandError) as raised:
            BinlogSync.from_file(config).plan()
        return f"{raised.value}; {raised.value.hint}"

    config.write_text(right.replace(f'["{database}.*"]', '["nowhere.*"]'), encoding="utf-8")
    assert "has no database nowhere" in (found := refused()) and "GRANT" not in found
    config.write_text(right.replace(f"port = {server.port}", "port = 1"), encoding="utf-8")
    assert "check source.host and source.port" in (found := refused()) and "GRANT" not in found
    server.execute(
        f"CREATE USER IF NOT EXISTS few@'%' IDENTIFIED BY '{PASSWORD.replace(chr(39), chr(39) * 2)}'"
    )
    server.execute(f"GRANT SELECT ON `{database}`.* TO few@'%'")
    config.write_text(right.replace(f'user = "{USER}"', 'user = "few"'), encoding="utf-8")
    pipeline = BinlogSync.from_file(config)
    with pytest.raises(CommandError, match="denied") as raised:
        pipeline.run(lambda progress: None, threading.Event())
    assert raised.value.hint == f"GRANT {server.rights} ON *.* TO 'few'@'…'"
    server.execute("DROP USER few@'%'")
    config.write_text(right, encoding="utf-8")
    monkeypatch.setenv("TEST_DATABASE_PASSWORD", "wrong-one")
    assert "Access denied" in (found := refused())
    assert "check source.user and the password" in found and "GRANT" not in found


def test_an_error_does_not_show_a_wrong_password(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_DATABASE_PASSWORD", "wrong-one")
    outcome = run("pipeline", "run", "binlog-sync", "--config", str(config))
    assert outcome.returncode == 1
    assert "Access denied" in outcome.stderr
    assert "check source.user" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert "wrong-one" not in outcome.stderr
