"""binlog-sync reads XA transactions from real databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.binlog import QUEUES, WAIT_S, Running, write_config
from tests.support.database import BOTH, Database
from tests.support.metaq import Metaq
from tests.support.mirror import Mirror
from tests.support.reading import eventually


@pytest.fixture
def config(server: Database, served: Metaq, database: str, password: str, tmp_path: Path) -> Iterator[Path]:
    server.execute(f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, v INT)")
    server.execute(f"INSERT INTO `{database}`.t VALUES (1, 1), (2, 2), (3, 3)")
    yield write_config(tmp_path / "sync.toml", server, served.nameserver, database)
    # A transaction that a failed test has left open would block dropping its database.
    with server.root() as connection, connection.cursor() as cursor:
        cursor.execute("XA RECOVER")
        for number, first_bytes, _, xid in cursor.fetchall():
            cursor.execute("XA ROLLBACK %s, %s, %s", (xid[:first_bytes], xid[first_bytes:], number))


def xa(server: Database, database: str, xid: str, ending: str, *statements: str) -> None:
    """Runs a transaction in its own session, up to `ending`."""
    with server.root(database=database) as connection, connection.cursor() as cursor:
        for statement in (f"XA START {xid}", *statements, f"XA END {xid}"):
            cursor.execute(statement)
        cursor.execute(ending.format(xid))


def rows(server: Database, database: str) -> dict[tuple[int], dict[str, Any]]:
    with server.root(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id, v FROM t")
        return {(number,): {"id": number, "v": v} for number, v in cursor}


def wait_for_open(running: Running, count: int) -> None:
    def found() -> bool:
        assert running.child.alive, running.child.tail()
        reports = running.reports()
        return bool(reports) and reports[-1]["details"]["xa_open"] == count

    eventually(found, WAIT_S)


@BOTH
def test_rows_are_sent_when_they_are_committed(
    server: Database, served: Metaq, database: str, config: Path
) -> None:
    running = Running(config)
    running.wait_for_phase("following")
    first, second, third = f"'{database[-40:]}','a',7", f"'{database[-40:]}'", f"'{database[-40:]}','c'"
    xa(
        *(server, database, first, "XA PREPARE {}"),
        "INSERT INTO t VALUES (9, 9)",
        "UPDATE t SET v = 10 WHERE id = 1",
        "UPDATE t SET id = 20 WHERE id = 2",
    )
    xa(server, database, second, "XA PREPARE {}", "INSERT INTO t VALUES (30, 30)")
    server.execute(f"INSERT INTO `{database}`.t VALUES (4, 4)")
    wait_for_open(running, 2)
    sent = Mirror.of_topic(served.nameserver, database, QUEUES).rows(f"{database}.t")
    assert {key[0] for key in sent} <= {1, 2, 3, 4}
    # A new run reads prepared transactions again.
    running.kill()
    running = Running(config)
    wait_for_open(running, 2)
    server.execute(f"XA COMMIT {first}", f"XA ROLLBACK {second}")
    xa(server, database, third, "XA COMMIT {} ONE PHASE", "INSERT INTO t VALUES (5, 5)")
    server.execute(f"UPDATE `{database}`.t SET v = 40 WHERE id = 4")
    running.wait_until_at(server)
    running.stop()
    mirror = Mirror.of_topic(served.nameserver, database, QUEUES)
    assert mirror.rows(f"{database}.t") == rows(server, database)
    numbers = {key[0]: number for key, (number, _) in mirror.tables[f"{database}.t"].items()}
    assert numbers[9] < numbers[5] < numbers[4], "rows have the number of the commit"
    assert numbers[9][:-8] == numbers[1][:-8] == numbers[20][:-8]
    assert 30 not in numbers


@pytest.mark.parametrize("server", ["mysql"], indirect=True)
def test_the_commit_of_a_transaction_prepared_before_the_first_run_reads_tables_again(
    server: Database, served: Metaq, database: str, config: Path
) -> None:
    xid = f"'{database[-40:]}'"
    xa(server, database, xid, "XA PREPARE {}", "INSERT INTO t VALUES (9, 9)", "DELETE FROM t WHERE id = 3")
    running = Running(config)
    running.wait_for_phase("following")
    server.execute(f"XA COMMIT {xid}")
    running.wait_until_read(server)
    running.stop()
    mirror = Mirror.of_topic(served.nameserver, database, QUEUES)
    assert mirror.rows(f"{database}.t") == rows(server, database)
    assert "reading all tables again" in running.child.log.read_text()
