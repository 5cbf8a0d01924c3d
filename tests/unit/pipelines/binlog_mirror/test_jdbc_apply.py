"""Refused rows of a batch, in a small SQL database that stands for the target."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from metaq.pipelines.binlog_mirror.dialects import DIALECTS, PostgreSqlDialect
from metaq.pipelines.binlog_mirror.errors import DatabaseError
from metaq.pipelines.binlog_mirror.jdbc_apply import StagedBatch
from metaq.pipelines.binlog_mirror.jdbc_schema import hashed, prepare
from metaq.pipelines.binlog_mirror.refusals import RefusedRow

NAME = ("shop", "t")
TABLE_ID = hashed(*NAME)
STAGE = '"metaq_mirror"."stage"'
COLUMNS = {"id": "string", "note": "string"}


class SqliteDialect(PostgreSqlDialect):
    """PostgreSQL's dialect as far as SQLite understands it."""

    __slots__ = ()

    def make_schema(self, name: str) -> str:
        return f"ATTACH DATABASE ':memory:' AS \"{name}\""

    def delete_joined(self, table: str, other: str, condition: str) -> str:
        return f"DELETE FROM {table} AS t WHERE EXISTS (SELECT 1 FROM {other} AS s WHERE {condition})".format(
            t="t", s="s"
        )


def _dialect() -> SqliteDialect:
    known = DIALECTS["jdbc:postgresql:"]
    values = {name: getattr(known, name) for name in known.__dataclass_fields__}
    return replace(SqliteDialect(**values), identity="varchar({})")


class Connection:
    """A connection of SQLite with the methods of ours."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self.statements = 0
        self.deadlocks = False

    def execute(self, statement: str, *parameters: Any) -> int:
        self.statements += 1
        return self._connection.execute(statement, parameters).rowcount

    def query(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        self.statements += 1
        return self._connection.execute(statement.replace(" FOR UPDATE", ""), parameters).fetchall()

    @contextmanager
    def attempt(self) -> Iterator[None]:
        self.execute("SAVEPOINT attempt")
        try:
            if self.deadlocks:
                raise DatabaseError("deadlock", state="40001")
            yield
        except sqlite3.IntegrityError as error:
            self.execute("ROLLBACK TO SAVEPOINT attempt")
            raise DatabaseError(str(error), state="23514") from None
        self.execute("RELEASE SAVEPOINT attempt")


class Target:
    """A mirror whose texts may have three characters, and its batches."""

    def __init__(self) -> None:
        self.connection = Connection()
        self._dialect = _dialect()
        anything: Any = self.connection
        prepare(anything, self._dialect)
        execute = self.connection.execute
        execute("ATTACH DATABASE ':memory:' AS shop")
        execute(
            "CREATE TABLE shop.t (metaq_id TEXT PRIMARY KEY, metaq_key TEXT, metaq_seq TEXT, id TEXT,"
            " note TEXT CHECK (length(note) <= 3), CHECK (id <> 'odd' OR note IS NULL))"
        )
        execute("INSERT INTO metaq_mirror.tables (id, floor, app, batch) VALUES (?, '', '', -1)", TABLE_ID)

    def apply(self, *changes: tuple[str, str, str | None], quarantines: bool = True) -> int:
        """Applies changes (key, sequence number, note). A row without a note is deleted."""
        execute = self.connection.execute
        execute(
            f"CREATE TABLE {STAGE} (id TEXT, key TEXT, seq TEXT, deleted INT, column_name TEXT, value TEXT,"
            ' reason TEXT, "row" TEXT, c0 TEXT, c1 TEXT)'
        )
        for key, sequence, note in changes:
            row = (hashed(key), f'["{key}"]', sequence, int(note is None), key, note)
            execute(f"INSERT INTO {STAGE} (id, key, seq, deleted, c0, c1) VALUES (?, ?, ?, ?, ?, ?)", *row)
        anything: Any = self.connection
        batch = StagedBatch(anything, self._dialect, NAME, TABLE_ID, COLUMNS, STAGE, quarantines)
        execute("SAVEPOINT whole")
        before = self.connection.statements
        try:
            return batch.apply("query", 1)
        except RefusedRow:
            execute("ROLLBACK TO SAVEPOINT whole")
            raise
        finally:
            self.spent = self.connection.statements - before
            execute("RELEASE SAVEPOINT whole")
            execute(f"DROP TABLE {STAGE}")

    def rows(self) -> dict[str, str]:
        return dict(self.connection.query("SELECT id, note FROM shop.t"))

    def quarantined(self) -> dict[str, tuple[str, ...]]:
        found = self.connection.query(
            'SELECT key, seq, column_name, value, reason, "row" FROM metaq_mirror.quarantine'
        )
        return {key: tuple(parts) for key, *parts in found}


@pytest.fixture
def target() -> Target:
    return Target()


def test_refused_rows_go_to_the_quarantine_and_the_others_are_applied(target: Target) -> None:
    assert target.apply(("a", "1", "old"), ("d", "1", "x")) == 0
    assert target.apply(("a", "2", "too long"), ("b", "2", "ok"), ("c", "2", "long"), ("d", "2", None)) == 2
    # The old version of a refused row stays.
    assert target.rows() == {"a": "old", "b": "ok"}
    found = target.quarantined()
    assert found.keys() == {'["a"]', '["c"]'}
    sequence, column, value, reason, row = found['["a"]']
    assert (sequence, column, value) == ("2", "note", '"too long"')
    assert "length(note) <= 3" in reason
    assert row == '{"id": "a", "note": "too long"}'

    # The same batch again changes nothing; an older refused change does not replace a newer one.
    target.apply(("a", "2", "too long"), ("b", "2", "ok"), ("c", "1", "another"))
    assert target.quarantined()['["c"]'][0] == "2"
    # A later change, or a delete, takes a row out of the quarantine.
    assert target.apply(("a", "3", "new"), ("c", "3", None)) == 0
    assert target.rows() == {"a": "new", "b": "ok"}
    assert target.quarantined() == {}


def test_the_first_refused_row_is_an_error_that_names_everything(target: Target) -> None:
    target.apply(("a", "1", "old"))
    with pytest.raises(RefusedRow) as raised:
        target.apply(("a", "2", "x"), ("b", "2", "too long"), quarantines=False)
    text = str(raised.value)
    assert text.startswith('column note of row ["b"] of shop.t is refused: ')
    assert text.endswith('; its value is "too long"')
    assert '[tables."shop.t"]' in raised.value.hint
    assert target.rows() == {"a": "old"}
    assert target.quarantined() == {}


def test_a_row_that_is_refused_as_a_whole(target: Target) -> None:
    assert target.apply(("odd", "1", "x"), ("a", "1", "y")) == 1
    assert target.rows() == {"a": "y"}
    assert target.quarantined()['["odd"]'][1:3] == ("", "")


def test_finding_a_row_costs_in_proportion_to_the_logarithm(target: Target) -> None:
    count = 1000
    changes = [(f"{number:04}", "1", "ok") for number in range(count)]
    changes[617] = ("0617", "1", "too long")
    assert target.apply(*changes) == 1
    assert len(target.rows()) == count - 1
    # Each of the ten levels is a few statements for either half.
    assert target.spent < 40 + 12 * math.log2(count), target.spent
    print(target.spent)


def test_other_errors_are_not_about_a_row(target: Target) -> None:
    target.connection.deadlocks = True
    with pytest.raises(DatabaseError, match="deadlock"):
        target.apply(("a", "1", "x"))
    assert not DatabaseError("x", state="08006").is_refusal
    assert not DatabaseError("x", state="40P01").is_refusal
    assert not DatabaseError("x").is_refusal
    assert DatabaseError("x", state="22021").is_refusal
    assert DatabaseError("x", state="HY000", number=1366).is_refusal
