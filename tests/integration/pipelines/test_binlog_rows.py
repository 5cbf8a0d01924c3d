"""binlog-sync reads types and tables of real databases that need special care."""

from __future__ import annotations

import ipaddress
import json
import random
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support.binlog import QUEUES, Running, write_config
from tests.support.database import BOTH, Database
from tests.support.metaq import Metaq
from tests.support.mirror import Mirror
from tests.support.reading import stored


@pytest.fixture
def config(server: Database, served: Metaq, database: str, password: str, tmp_path: Path) -> Path:
    return write_config(tmp_path / "sync.toml", server, served.nameserver, database)


def changes_of(nameserver: str, topic: str) -> list[dict[str, Any]]:
    """Returns all changes of rows in a topic, in the order of their numbers."""
    bodies = [json.loads(message.body) for message in stored(nameserver, topic)]
    found = [change for body in bodies if body["kind"] == "rows" for change in body["changes"]]
    return sorted(found, key=lambda change: str(change["seq"]))


def addresses(count: int) -> list[tuple[str, str, str]]:
    """Returns random values of UUID, INET6 and INET4; many INET6 have runs of zeros."""
    chance = random.Random(5)
    found = []
    for _ in range(count):
        words = [chance.choice((0, 0, 1, chance.randrange(65536))) for _ in range(8)]
        if chance.random() < 0.3:
            words[:6] = [0, 0, 0, 0, 0, chance.choice((0, 0xFFFF))]
        packed = b"".join(word.to_bytes(2, "big") for word in words)
        text = str(uuid.UUID(int=chance.getrandbits(128), version=4))
        value = f"{text[:14]}{chance.choice('147')}{text[15:]}"
        four = ipaddress.IPv4Address(chance.choice((0, 256, chance.getrandbits(32))))
        found.append((value, str(ipaddress.IPv6Address(packed)), str(four)))
    return found


def test_uuids_and_addresses_as_the_server_prints_them(
    server: Database, served: Metaq, database: str, config: Path
) -> None:
    with server.root(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (u UUID PRIMARY KEY, six INET6, four INET4, b BINARY(16), v INT)")
        insert = "INSERT INTO t VALUES (%s, %s, %s, x'01', 1)"
        values = addresses(240)
        # Several chunks along the UUIDs, then rows of the binlog.
        cursor.executemany(insert, values[:120])
        running = Running(config)
        running.wait_for_phase("following")
        cursor.executemany(insert, values[120:])
        cursor.execute("UPDATE t SET v = 2")
        # The new column is a UUID in the binlog at once.
        cursor.execute("ALTER TABLE t ADD COLUMN other UUID NULL")
        cursor.execute("UPDATE t SET other = u, v = 3 WHERE v = 2")
        running.wait_until_at(server)
        running.wait_until_read(server)
        running.stop()
        cursor.execute("SELECT u, six, four, v, other FROM t")
        wanted = {
            (row[0],): dict(zip(("u", "six", "four", "v", "other"), row, strict=True)) for row in cursor
        }
    rows = Mirror.of_topic(served.nameserver, database, QUEUES).rows(f"{database}.t")
    assert len(wanted) == 240
    assert {row.pop("b") for row in rows.values()} == {"AQAAAAAAAAAAAAAAAAAAAA=="}
    assert rows == wanted


@BOTH
def test_the_rows_before_updates_and_deletes(
    server: Database, served: Metaq, database: str, config: Path
) -> None:
    write_config(config, server, served.nameserver, database, topic='row_image = "full"')
    server.execute(f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, v VARCHAR(9), n INT)")
    running = Running(config)
    running.wait_for_phase("following")
    server.execute(
        f"INSERT INTO `{database}`.t VALUES (1, 'a', NULL), (2, 'b', 2)",
        f"UPDATE `{database}`.t SET v = 'c' WHERE id = 1",
        f"UPDATE `{database}`.t SET id = 3 WHERE id = 1",
        f"DELETE FROM `{database}`.t WHERE id = 2",
    )
    running.wait_until_at(server)
    running.stop()
    found = [
        (change["op"], change["row"], change.get("before"))
        for change in changes_of(served.nameserver, database)
    ]
    assert found == [
        ("insert", {"id": 1, "v": "a", "n": None}, None),
        ("insert", {"id": 2, "v": "b", "n": 2}, None),
        ("update", {"id": 1, "v": "c", "n": None}, {"id": 1, "v": "a", "n": None}),
        ("delete", {"id": 1}, {"id": 1, "v": "c", "n": None}),
        ("insert", {"id": 3, "v": "c", "n": None}, None),
        ("delete", {"id": 2}, {"id": 2, "v": "b", "n": 2}),
    ]


def rows_of(server: Database, database: str, table: str) -> set[tuple[Any, ...]]:
    with server.root(database=database) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        return set(cursor.fetchall())


@BOTH
def test_tables_without_a_primary_key(server: Database, served: Metaq, database: str, config: Path) -> None:
    write_config(config, server, served.nameserver, database, snapshot="reread_interval_s = 0")
    with server.root(database=database) as connection, connection.cursor() as cursor:
        # The collation treats a and A as equal, so no chunk could continue after one of them.
        cursor.execute("CREATE TABLE t (a VARCHAR(9), b INT NULL, c DOUBLE)")
        rows = [(chance, number % 30, None) for number in range(120) for chance in ("a", "A")]
        cursor.executemany("INSERT INTO t VALUES (%s, %s, %s)", rows)
        running = Running(config)
        running.wait_until_read(server)
        assert rows_of(server, database, "t") == mirrored(served, database)
        for statement in (
            "INSERT INTO t VALUES ('new', NULL, 0.1), ('new', NULL, 0.1), ('once', 1, 1)",
            # One of two equal rows goes; the other one stays.
            "DELETE FROM t WHERE a = 'new' LIMIT 1",
            "DELETE FROM t WHERE a = 'once'",
            "UPDATE t SET b = 100 WHERE BINARY a = 'A' AND b = 3 LIMIT 1",
            "UPDATE t SET c = 5 WHERE b = 4",
        ):
            cursor.execute(statement)
        running.wait_until_read(server)
        assert rows_of(server, database, "t") == mirrored(served, database)
        cursor.execute("ALTER TABLE t ADD COLUMN d INT NULL")
        cursor.execute("UPDATE t SET d = 1 WHERE b = 5")
        running.wait_until_read(server)
        assert rows_of(server, database, "t") == mirrored(served, database)
        cursor.execute("ALTER TABLE t ADD COLUMN id INT AUTO_INCREMENT PRIMARY KEY")
        cursor.execute("DELETE FROM t WHERE id % 2 = 0")
        running.wait_until_read(server)
        running.stop()
    found = Mirror.of_topic(served.nameserver, database, QUEUES)
    assert {tuple(row.values()) for row in found.rows(f"{database}.t").values()} == rows_of(
        server, database, "t"
    )
    # Updates of rows that identify themselves are a delete and an insert.
    without = [one for one in changes_of(served.nameserver, database) if "id" not in one["row"]]
    assert {change["op"] for change in without} == {"snapshot", "insert", "delete"}
    assert all(change["row"].keys() >= {"a", "b", "c"} for change in without)


def mirrored(served: Metaq, database: str) -> set[tuple[Any, ...]]:
    mirror = Mirror.of_topic(served.nameserver, database, QUEUES)
    return {tuple(row.values()) for row in mirror.rows(f"{database}.t").values()}
