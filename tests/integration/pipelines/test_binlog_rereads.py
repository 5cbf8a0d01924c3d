"""binlog-sync reads tables of real databases again if it must, and only then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from metaq.errors import MetaqError
from metaq.pipelines.binlog_sync.pipeline import BinlogSync
from tests.support.binlog import QUEUES, WAIT_S, Running, write_config
from tests.support.database import BOTH, Database
from tests.support.metaq import Metaq, run
from tests.support.mirror import Mirror
from tests.support.reading import stored
from tests.support.waiting import wait_until

OFTEN = "reread_interval_s = 0"


@pytest.fixture
def config(server: Database, served: Metaq, database: str, password: str, tmp_path: Path) -> Path:
    return write_config(tmp_path / "sync.toml", server, served.nameserver, database, snapshot=OFTEN)


def source_rows(server: Database, database: str, table: str, *key: str) -> dict[Any, dict[str, Any]]:
    with server.root(database=database) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return {tuple(row[name] for name in key or names): row for row in rows}


def snapshot_rows(nameserver: str, topic: str, table: str) -> int:
    """Returns how many rows of a table were read from it, not from the binlog."""
    bodies = [json.loads(message.body) for message in stored(nameserver, topic)]
    return sum(
        change["op"] == "snapshot"
        for body in bodies
        if body["kind"] == "rows" and body["table"] == table
        for change in body["changes"]
    )


def log_of(running: Running) -> str:
    return running.child.log.read_text(encoding="utf-8", errors="replace")


# Foreign keys

CASCADES = (
    "CREATE TABLE parents (id INT PRIMARY KEY, v INT)",
    """CREATE TABLE children (id INT PRIMARY KEY, parent INT, other INT,
       CONSTRAINT up FOREIGN KEY (parent) REFERENCES parents (id) ON DELETE CASCADE ON UPDATE CASCADE)""",
    """CREATE TABLE grandchildren (id INT PRIMARY KEY, child INT, FOREIGN KEY (child)
       REFERENCES children (id) ON DELETE SET NULL)""",
    "CREATE TABLE bystanders (id INT PRIMARY KEY, parent INT, FOREIGN KEY (parent) REFERENCES parents (id))",
    "INSERT INTO parents VALUES (1, 1), (2, 2), (3, 3), (4, 4)",
    "INSERT INTO children SELECT id * 10, id, id FROM parents",
    "INSERT INTO children SELECT id + 1, parent, id FROM children",
    "INSERT INTO grandchildren SELECT id * 10, id FROM children",
    "INSERT INTO bystanders VALUES (1, 4)",
)


@BOTH
@pytest.mark.parametrize("selected", ["*", "*children"], ids=["all", "children"])
def test_foreign_keys_act(
    server: Database, served: Metaq, database: str, config: Path, selected: str
) -> None:
    text = config.read_text(encoding="utf-8").replace(f"{database}.*", f"{database}.{selected}")
    config.write_text(text, encoding="utf-8")
    with server.root(database=database) as connection, connection.cursor() as cursor:
        for statement in CASCADES:
            cursor.execute(statement)
        # The user has the documented rights, which hide foreign keys in information_schema of MariaDB.
        warnings = "".join(BinlogSync.from_file(config).plan().warnings)
        # This MySQL writes what foreign keys do to the binlog.
        is_missing = server.name == "mariadb"
        assert (f"{database}.children (up)" in warnings) is is_missing and "bystanders" not in warnings
        running = Running(config)
        running.wait_until_read(server)
        before = snapshot_rows(served.nameserver, database, "children")
        # Neither changes a referenced column.
        cursor.execute("UPDATE parents SET v = 9")
        cursor.execute("INSERT INTO parents VALUES (5, 5)")
        running.wait_until_read(server)
        assert snapshot_rows(served.nameserver, database, "children") == before
        # A delete, an update of the key, and an action that comes while a table is read again.
        for statement in (
            "DELETE FROM parents WHERE id = 1",
            "UPDATE parents SET id = 22 WHERE id = 2",
            "DELETE FROM parents WHERE id = 3",
        ):
            cursor.execute(statement)
        running.wait_until_read(server)
    running.stop()
    mirror = Mirror.of_topic(served.nameserver, database, QUEUES)
    for table in ("children", "grandchildren"):
        wanted = source_rows(server, database, table, "id")
        assert mirror.rows(f"{database}.{table}") == wanted, table
    assert len(source_rows(server, database, "children", "id")) == 4
    assert snapshot_rows(served.nameserver, database, "bystanders") == (1 if selected == "*" else 0)


def test_foreign_keys_that_come_and_go(server: Database, served: Metaq, database: str, config: Path) -> None:
    with server.root(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE parents (id INT PRIMARY KEY)")
        cursor.execute("CREATE TABLE children (id INT PRIMARY KEY, parent INT)")
        cursor.execute("INSERT INTO parents VALUES (1), (2), (3)")
        cursor.execute("INSERT INTO children VALUES (1, 1), (2, 2), (3, 3)")
        key = "CONSTRAINT c FOREIGN KEY (parent) REFERENCES parents (id) ON DELETE CASCADE"
        add = f"ALTER TABLE children ADD {key}"
        running = Running(config)
        running.wait_until_read(server)
        cursor.execute(add)
        cursor.execute("DELETE FROM parents WHERE id = 1")
        running.wait_until_read(server)
        assert Mirror.of_topic(served.nameserver, database, QUEUES).rows(f"{database}.children").keys() == {
            (2,),
            (3,),
        }
        cursor.execute("ALTER TABLE children DROP FOREIGN KEY c")
        running.wait_until_read(server)
        running.stop()
        # While no run is there, one comes, acts and goes.
        for statement in (add, "DELETE FROM parents WHERE id = 2", "DO SLEEP(1.1)"):
            cursor.execute(statement)
        cursor.execute("ALTER TABLE children DROP FOREIGN KEY c")
        cursor.execute("DO SLEEP(1.1)")
        second = Running(config)
        second.wait_until_read(server)
        second.stop()
    mirror = Mirror.of_topic(served.nameserver, database, QUEUES)
    assert mirror.rows(f"{database}.children").keys() == {(3,)}


def test_the_policies_that_only_warn_or_refuse(
    server: Database, served: Metaq, database: str, config: Path
) -> None:
    with server.root(database=database) as connection, connection.cursor() as cursor:
        for statement in CASCADES[:3]:
            cursor.execute(statement)
    write_config(config, server, served.nameserver, database, source='cascades = "warn"')
    (warning,) = BinlogSync.from_file(config).plan().warnings
    assert "the binlog, and so the topic, lacks the changes" in warning and "children (up)" in warning
    write_config(config, server, served.nameserver, database, source='cascades = "stop"')
    refused = run("pipeline", "run", "binlog-sync", "--config", str(config))
    assert refused.returncode == 1
    assert "children (up)" in refused.stderr and "source.cascades" in refused.stderr


# Statements


@BOTH
def test_a_new_column_that_is_null_reads_nothing_again(
    server: Database, served: Metaq, database: str, config: Path
) -> None:
    with server.root(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        cursor.executemany("INSERT INTO t VALUES (%s, 1)", [(number,) for number in range(300)])
        running = Running(config)
        running.wait_until_read(server)
        for statement in (
            "ALTER TABLE t ADD COLUMN note VARCHAR(20) NULL, ALGORITHM = INSTANT",
            "ALTER TABLE t ADD INDEX (v), COMMENT = 'x'",
            "ALTER TABLE t DROP COLUMN note",
            "UPDATE t SET v = 2 WHERE id < 10",
        ):
            cursor.execute(statement)
        running.wait_until_read(server)
        assert snapshot_rows(served.nameserver, database, "t") == 300
        assert "read again" not in log_of(running)
        # A reader may still have values of a column that had this name.
        cursor.execute("ALTER TABLE t ADD COLUMN note VARCHAR(20) NULL")
        running.wait_until_read(server)
        assert snapshot_rows(served.nameserver, database, "t") == 600
        cursor.execute("ALTER TABLE t ADD COLUMN n INT DEFAULT 7")
        running.wait_until_read(server)
        running.stop()
    assert snapshot_rows(served.nameserver, database, "t") == 900
    said = [line for line in log_of(running).splitlines() if "will be read again, about" in line]
    assert len(said) == 2 and "ADD COLUMN n INT DEFAULT 7" in said[1]
    mirror = Mirror.of_topic(served.nameserver, database, QUEUES)
    assert mirror.rows(f"{database}.t") == source_rows(server, database, "t", "id")


# Requests


@BOTH
def test_a_table_and_a_range_are_read_again_on_request(
    server: Database, served: Metaq, database: str, config: Path
) -> None:
    with server.root(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT, part INT, v INT, PRIMARY KEY (id, part))")
        cursor.execute("CREATE TABLE other (id VARCHAR(9) PRIMARY KEY)")
        rows = [(number // 2, number, 1) for number in range(300)]
        cursor.executemany("INSERT INTO t VALUES (%s, %s, %s)", rows)
        running = Running(config)
        running.wait_until_read(server)
        # Changes without a trace: the session does not write them to the binlog.
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute("UPDATE t SET v = 2 WHERE id IN (20, 100)")
        cursor.execute("DELETE FROM t WHERE id IN (30, 110)")
        cursor.execute("SET SESSION sql_log_bin = 1")
    words = ("pipeline", "reread", "binlog-sync", "--config", str(config), "--table", f"{database}.t")
    folder = config.parent / "state" / f"{database}.json.rereads"

    def wait_for_request() -> None:
        wait_until(lambda: not list(folder.glob("*.json")), WAIT_S)

    planned = run(*words, "--from", "10", "--to", "39", "--dry-run")
    assert planned.stdout == f"{database}.t: about 58 rows would be read again\n"
    asked = run(*words, "--from", "10", "--to", "39")
    assert asked.stdout == f"{database}.t: about 58 rows will be read again\n"
    wait_for_request()
    assert snapshot_rows(served.nameserver, database, "t") == 358
    rows_now = Mirror.of_topic(served.nameserver, database, QUEUES).rows(f"{database}.t")
    assert {row["v"] for (number, _), row in rows_now.items() if number == 20} == {2}
    assert not [key for key in rows_now if key[0] == 30]
    assert len([key for key in rows_now if key[0] in (100, 110)]) == 4

    assert run(*words).returncode == 0
    wait_for_request()
    running.stop()
    # Without a run, the next one takes the request.
    server.execute(f"INSERT INTO `{database}`.other VALUES ('a')")
    with pytest.raises(MetaqError, match="no primary key that begins with a whole number"):
        BinlogSync.from_file(config).reread(f"{database}.other", 1, None, dry_run=False)
    BinlogSync.from_file(config).reread(f"{database}.other", None, None, dry_run=False)
    second = Running(config)
    wait_for_request()
    second.wait_until_at(server)
    second.stop()
    mirror = Mirror.of_topic(served.nameserver, database, QUEUES)
    assert mirror.rows(f"{database}.t") == source_rows(server, database, "t", "id", "part")
    assert snapshot_rows(served.nameserver, database, "other") == 1
