"""Tables that binlog-sync cannot follow are left out one by one, at the start and while it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metaq.admin import PipelineReport
from metaq.admin.sync import Admin
from tests.support.binlog import QUEUES, WAIT_S, Running, write_config
from tests.support.database import BOTH, Database
from tests.support.metaq import Metaq
from tests.support.mirror import Mirror
from tests.support.reading import stored
from tests.support.waiting import eventually, wait_until

HISTORY = "it is system-versioned: its rows include its history"


@pytest.fixture
def config(server: Database, served: Metaq, database: str, password: str, tmp_path: Path) -> Path:
    path = write_config(tmp_path / "sync.toml", server, served.nameserver, database)
    with path.open("a", encoding="utf-8") as file:
        file.write(f'[report]\nname = "{database}"\ninterval_s = 0.2\n')
    return path


def report_of(admin: Admin, name: str, *findings: str) -> PipelineReport:
    """Waits for a report of a run with these findings."""

    def newest() -> PipelineReport | None:
        found = [report for report in admin.pipelines.list().reports if report.name == name]
        return next((report for report in found if not report.is_over), None)

    found = eventually(
        newest,
        lambda report: report is not None and report.findings == findings,
        WAIT_S,
        f"a report with {findings}",
        interval_s=0.2,
    )
    assert found is not None
    return found


def tables_in(nameserver: str, topic: str, kind: str) -> set[str]:
    bodies = [json.loads(message.body) for message in stored(nameserver, topic)]
    return {body["table"] for body in bodies if body["kind"] == kind}


def test_a_table_with_history_is_left_out_alone(
    server: Database, served: Metaq, database: str, config: Path
) -> None:
    finding = f"{database}.hist is left out: {HISTORY}"
    with (
        Admin(served.nameserver) as admin,
        server.root(database=database) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("CREATE TABLE good (id INT PRIMARY KEY, v INT)")
        running = Running(config)
        running.wait_until_read(server)
        for statement in (
            "CREATE TABLE hist (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING",
            "INSERT INTO hist VALUES (1, 1), (2, 2)",
            "UPDATE hist SET v = 3",
            "CREATE TABLE fresh (id INT PRIMARY KEY, v INT)",
            "INSERT INTO good VALUES (1, 1)",
            "ALTER TABLE good ADD COLUMN w INT DEFAULT 4",
        ):
            cursor.execute(statement)
        running.wait_until_read(server)
        assert tables_in(served.nameserver, database, "rows") == {"good"}
        # A table without rows is announced at once.
        assert tables_in(served.nameserver, database, "schema") == {"good", "fresh"}
        report = report_of(admin, database, finding)
        assert (report.state, report.last_error) == ("running", None), running.child.tail()
        assert report.last_remark is not None and "good will be read again" in report.last_remark
        shown = json.loads(served.run("pipeline", "status", "-o", "json").stdout)
        [row] = [row for row in shown if row["run"] == report.run]
        assert (row["findings"], row["last_error"]) == ([finding], None)
        running.stop()

        # The next start has the same rule.
        second = Running(config)
        cursor.execute("UPDATE good SET v = 2")
        second.wait_until_at(server)
        report_of(admin, database, finding)
        assert tables_in(served.nameserver, database, "rows") == {"good"}
        cursor.execute("ALTER TABLE hist DROP SYSTEM VERSIONING")
        cursor.execute("UPDATE hist SET v = 4 WHERE id = 1")
        second.wait_until_read(server)
        report_of(admin, database)
        # A followed table may become one, too.
        cursor.execute("ALTER TABLE fresh ADD SYSTEM VERSIONING")
        cursor.execute("INSERT INTO fresh VALUES (1, 1)")
        second.wait_until_at(server)
        report_of(admin, database, f"{database}.fresh is left out: {HISTORY}")
        second.stop()
    mirror = Mirror.of_topic(served.nameserver, database, QUEUES)
    assert {key: row["v"] for key, row in mirror.rows(f"{database}.hist").items()} == {(1,): 4, (2,): 3}
    assert mirror.rows(f"{database}.good") == {(1,): {"id": 1, "v": 2, "w": 4}}
    assert not mirror.rows(f"{database}.fresh")


@BOTH
def test_a_table_without_its_tablespace_does_not_stop_the_others(
    server: Database, served: Metaq, database: str, config: Path
) -> None:
    with (
        Admin(served.nameserver) as admin,
        server.root(database=database) as connection,
        connection.cursor() as cursor,
    ):
        for table in ("broken", "good"):
            cursor.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)")
            cursor.execute(f"INSERT INTO {table} VALUES (1, 1)")
        running = Running(config)
        running.wait_until_read(server)
        cursor.execute("ALTER TABLE broken DISCARD TABLESPACE")
        cursor.execute("UPDATE good SET v = 2")
        running.wait_until_at(server)
        finding = f"{database}.broken is left out: its tablespace is discarded or missing"
        report_of(admin, database, finding)
        running.stop()
        # The same holds at a start.
        second = Running(config)
        cursor.execute("UPDATE good SET v = 3")
        second.wait_until_at(server)
        report_of(admin, database, finding)
        second.stop()
    mirror = Mirror.of_topic(served.nameserver, database, QUEUES)
    assert mirror.rows(f"{database}.good") == {(1,): {"id": 1, "v": 3}}


@BOTH
def test_a_change_of_rows_that_is_logged_as_a_statement_ends_the_run(
    server: Database, served: Metaq, database: str, config: Path
) -> None:
    with server.root(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        running = Running(config)
        running.wait_until_read(server)
        cursor.execute("SET SESSION binlog_format = STATEMENT")
        cursor.execute("/* why */ INSERT INTO t VALUES (1, 1)")
        wait_until(lambda: not running.child.alive, WAIT_S)
    assert running.child.process.returncode == 1
    assert "a change of rows" in running.child.tail() and "binlog_format" in running.child.tail()
