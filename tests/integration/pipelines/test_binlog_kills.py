"""binlog-sync and its broker are killed at random moments while the tables change.

Afterwards the topic, applied by key and sequence number, equals the tables, row by row. The test prints its
seed; set METAQ_SEED to repeat a run.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.binlog import QUEUES, Running, write_config
from tests.support.database import BOTH, Database
from tests.support.metaq import Metaq
from tests.support.mirror import Mirror
from tests.support.processes import free_port
from tests.support.rounds import draw_seed, kill_loop, rounds

KILLS = rounds(5, 100)
ROWS_BEFORE = 1500


class Preparer:
    """Changes its own table in XA transactions that stay prepared for a while.

    They run one after the other, because each locks the rows that it has changed.
    """

    def __init__(self, server: Database, database: str, chance: random.Random) -> None:
        self._connection = server.root(database=database)
        self._xid = f"'{database[-40:]}','x',9"
        self._chance = chance
        self._is_open = False

    def go_on(self) -> None:
        chance = self._chance
        with self._connection.cursor() as cursor:
            if self._is_open and chance.random() < 0.1:
                self.end(cursor)
            elif not self._is_open and chance.random() < 0.3:
                cursor.execute(f"XA START {self._xid}")
                for _ in range(chance.choice((0, 1, 5))):
                    key = chance.randrange(200)
                    cursor.execute("DELETE FROM prepared WHERE id = %s", (key,))
                    cursor.execute("REPLACE INTO prepared VALUES (%s, %s)", (key + 1, chance.random()))
                cursor.execute(f"XA END {self._xid}")
                if chance.random() < 0.2:
                    cursor.execute(f"XA COMMIT {self._xid} ONE PHASE")
                else:
                    cursor.execute(f"XA PREPARE {self._xid}")
                    self._is_open = True

    def change_without_a_trace(self) -> None:
        """Deletes parents, whose children go by a foreign key, and rows of a table without a primary key."""
        chance = self._chance
        if self._is_open or chance.random() < 0.7:
            return
        with self._connection.cursor() as cursor:
            key = chance.randrange(40)
            cursor.execute("REPLACE INTO parents VALUES (%s)", (key,))
            cursor.execute("REPLACE INTO children VALUES (%s, %s), (%s, %s)", (key, key, key + 100, key))
            cursor.execute("INSERT INTO bag VALUES (%s, 'x'), (%s, 'x')", (key, key))
            key = chance.randrange(40)
            cursor.execute("DELETE FROM parents WHERE id = %s", (key,))
            cursor.execute("DELETE FROM bag WHERE id = %s LIMIT 1", (key,))

    def end(self, cursor: Any) -> None:
        cursor.execute(f"XA {'COMMIT' if self._chance.random() < 0.8 else 'ROLLBACK'} {self._xid}")
        self._is_open = False

    def close(self) -> None:
        with self._connection.cursor() as cursor:
            if self._is_open:
                self.end(cursor)
        self._connection.close()


class Writer(threading.Thread):
    """Changes two tables in many ways, in transactions of random size, until it is stopped."""

    def __init__(
        self,
        server: Database,
        database: str,
        chance: random.Random,
        pause_s_max: float = 0.01,
        preparer: Preparer | None = None,
    ) -> None:
        super().__init__(daemon=True)
        self._connection = server.root(database=database)
        self._connection.autocommit(False)
        self._chance = chance
        self._preparer = preparer
        self._pause_s_max = pause_s_max
        self._ended = threading.Event()
        self.failure: Exception | None = None
        self.transactions = 0

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                with self._connection.cursor() as cursor:
                    for _ in range(self._chance.choice((1, 1, 2, 5, 30))):
                        self._change(cursor)
                self._connection.commit() if self._chance.random() < 0.9 else self._connection.rollback()
                self.transactions += 1
                if self._preparer is not None:
                    self._preparer.go_on()
                    self._preparer.change_without_a_trace()
                time.sleep(self._chance.random() * self._pause_s_max)
        except Exception as error:
            self.failure = error
        finally:
            if self._preparer is not None:
                self._preparer.close()
            self._connection.close()

    def _change(self, cursor: Any) -> None:
        chance = self._chance
        identity = chance.randrange(2 * ROWS_BEFORE)
        what = chance.random()
        if what < 0.35:
            cursor.execute(
                "REPLACE INTO numbers VALUES (%s, %s, %s)",
                (identity, chance.random(), "x" * chance.randrange(200)),
            )
        elif what < 0.55:
            cursor.execute(
                "UPDATE numbers SET amount = amount + 1 WHERE id BETWEEN %s AND %s", (identity, identity + 20)
            )
        elif what < 0.65:
            cursor.execute("DELETE FROM numbers WHERE id = %s", (identity,))
        elif what < 0.75:
            cursor.execute(
                "UPDATE IGNORE numbers SET id = %s WHERE id = %s", (identity, chance.randrange(3000))
            )
        elif what < 0.9:
            key = (f"k{chance.randrange(50)}", chance.randrange(5))
            cursor.execute("REPLACE INTO texts VALUES (%s, %s, %s)", (*key, chance.randrange(10**6)))
        elif what < 0.99:
            cursor.execute(
                "UPDATE IGNORE texts SET part = %s WHERE name = %s",
                (chance.randrange(5), f"k{identity % 50}"),
            )
        elif what < 0.995:
            cursor.execute("TRUNCATE TABLE texts")
        else:
            cursor.execute("ALTER TABLE numbers COMMENT = %s", (str(identity),))

    def stop(self) -> None:
        self._ended.set()
        self.join(60)
        assert not self.is_alive(), "the writer did not end"
        if self.failure is not None:
            raise self.failure


def _serve(home: Path, ports: tuple[int, int]) -> Metaq:
    namesrv, broker = ports
    return Metaq(
        "serve",
        *("--namesrv-port", str(namesrv), "--broker-port", str(broker), "--data", str(home / "data")),
        home=home,
    )


@kill_loop
@pytest.mark.timeout(600)
@BOTH
def test_killed_at_random_moments(server: Database, database: str, password: str, tmp_path: Path) -> None:
    seed = draw_seed()
    chance = random.Random(seed)
    ports = (free_port(), free_port(neighbours=(-2, 1)))
    metaq = _serve(tmp_path, ports)
    with server.root(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE numbers (id INT PRIMARY KEY, amount DOUBLE, note VARCHAR(200))")
        cursor.execute("CREATE TABLE texts (name VARCHAR(20), part INT, v INT, PRIMARY KEY (name, part))")
        cursor.execute("CREATE TABLE prepared (id INT PRIMARY KEY, v DOUBLE)")
        cursor.execute("CREATE TABLE parents (id INT PRIMARY KEY)")
        action = "FOREIGN KEY (parent) REFERENCES parents (id) ON DELETE CASCADE"
        cursor.execute(f"CREATE TABLE children (id INT PRIMARY KEY, parent INT, {action})")
        cursor.execute("CREATE TABLE bag (id INT, v VARCHAR(9))")
        cursor.executemany("INSERT INTO prepared VALUES (%s, 0)", [(number,) for number in range(150)])
        rows = [(number, chance.random(), "before") for number in range(ROWS_BEFORE)]
        cursor.executemany("INSERT INTO numbers VALUES (%s, %s, %s)", rows)
    often = "reread_interval_s = 0.2"
    config = write_config(tmp_path / "sync.toml", server, metaq.nameserver, database, snapshot=often)
    preparer = Preparer(server, database, random.Random(seed + 2))
    writer = Writer(server, database, random.Random(seed + 1), preparer=preparer)
    running = Running(config)
    sent_before_kill: list[int] = []
    try:
        writer.start()
        for kill in range(KILLS):
            # A kill before the first row would test nothing.
            running.wait_for_rows()
            time.sleep(chance.random() * 0.4)
            if kill % 2:
                metaq.child.kill()
                time.sleep(chance.random() * 0.5)
                metaq = _serve(tmp_path, ports)
            else:
                assert running.child.alive, running.child.tail()
                running.kill()
                sent_before_kill.append(running.rows)
                running = Running(config)
        writer.stop()
        running.wait_until_read(server)
        running.wait_until_at(server)
        running.stop()
        mirror = Mirror.of_topic(metaq.nameserver, database, QUEUES)
    finally:
        running.kill()
        metaq.child.kill()
    print(f"{writer.transactions} transactions, {mirror.changes} changes, {mirror.duplicates} duplicates")
    with server.root(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id, amount, note FROM numbers")
        numbers = {(n,): {"id": n, "amount": amount, "note": note} for n, amount, note in cursor}
        cursor.execute("SELECT name, part, v FROM texts")
        texts = {(name, part): {"name": name, "part": part, "v": v} for name, part, v in cursor}
        cursor.execute("SELECT id, v FROM prepared")
        prepared = {(n,): {"id": n, "v": v} for n, v in cursor}
        cursor.execute("SELECT id, parent FROM children")
        children = {(n,): {"id": n, "parent": parent} for n, parent in cursor}
        cursor.execute("SELECT DISTINCT id, v FROM bag")
        bag = {(n, v): {"id": n, "v": v} for n, v in cursor}
    assert mirror.rows(f"{database}.children") == children
    assert mirror.rows(f"{database}.bag") == bag
    assert mirror.rows(f"{database}.numbers") == numbers
    assert mirror.rows(f"{database}.prepared") == prepared
    assert mirror.rows(f"{database}.texts") == texts
    assert mirror.changes > ROWS_BEFORE
    assert any(sent_before_kill), "no run was killed after it had sent rows"
