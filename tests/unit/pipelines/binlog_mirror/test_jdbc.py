"""Mirrors in a database: statements, secrets and error texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from metaq.pipelines.binlog_mirror.columns import Evolution
from metaq.pipelines.binlog_mirror.config import read_mirror_config
from metaq.pipelines.binlog_mirror.connection import JdbcConfig, driver_errors
from metaq.pipelines.binlog_mirror.dialects import DIALECTS
from metaq.pipelines.binlog_mirror.errors import MirrorError
from metaq.pipelines.binlog_mirror.jdbc import JdbcMirror
from metaq.pipelines.binlog_mirror.jdbc_schema import KeyIndex, hashed
from metaq.pipelines.binlog_mirror.notes import Notes
from metaq.pipelines.binlog_sync.config import SECTIONS
from metaq.pipelines.binlog_sync.envelope import RangeBarrier
from metaq.pipelines.binlog_sync.values.columns import Column, Definition

QUARANTINED_KEY = '"key"'
URLS = ["jdbc:mariadb://h:1/", "jdbc:postgresql://h:1/d"]


def config_of(url: str) -> JdbcConfig:
    dialect = next(found for prefix, found in DIALECTS.items() if url.startswith(prefix))
    return JdbcConfig(url, "u", "a secret", dialect)


class FakeTarget:
    """A target and its connection, which record the statements."""

    def __init__(self, url: str, *rows: tuple[str, ...]) -> None:
        self.config = config_of(url)
        self.statements: list[str] = []
        self.parameters: list[tuple[str | int, ...]] = []
        self._rows = list(rows)

    def returns(self, *rows: tuple[str, ...]) -> None:
        self._rows = list(rows)

    @contextmanager
    def transaction(self) -> Iterator[FakeTarget]:
        yield self

    def execute(self, statement: str, *parameters: str | int) -> int:
        self.statements.append(statement)
        self.parameters.append(parameters)
        return 0

    def query(self, statement: str, *parameters: str | int) -> list[tuple[str, ...]]:
        self.statements.append(statement)
        return self._rows


def mirror_of(target: FakeTarget, notes: Notes, **columns: str) -> JdbcMirror:
    fake: Any = target
    return JdbcMirror(fake, ("shop", "t"), notes, columns)


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    ("before", "after", "is_kept"),
    [
        ("int", "bigint", True),
        ("int", "string", True),
        ("date", "int", False),
        ("string", "int", False),
        ("bigint", "int", False),
        ("binary", "string", False),
        ("string", "binary", False),
    ],
)
def test_a_column_keeps_its_values_if_the_new_type_is_wider(
    url: str, before: str, after: str, is_kept: bool
) -> None:
    target = FakeTarget(url)
    mirror = mirror_of(target, Notes("shop.t"), v=before)
    mirror.evolve(Evolution(retyped={"v": after}))
    assert mirror.columns == {"v": after}
    change = next(statement for statement in target.statements if statement.startswith("ALTER"))
    assert ("DROP COLUMN" not in change) is is_kept


def test_saving_keeps_the_notes_of_another_run() -> None:
    own, other = Notes("shop.t", "a1"), Notes("shop.t", "b1")
    target = FakeTarget(URLS[0], (other.encode(),))
    mirror_of(target, own).save_notes()
    assert "FOR UPDATE" in target.statements[0]
    assert target.parameters[-1][:2] == (other.encode(), "b1")


def test_a_column_with_a_name_of_the_mirror_is_refused() -> None:
    with pytest.raises(MirrorError, match="metaq_id has a name that the mirror needs"):
        mirror_of(FakeTarget(URLS[0]), Notes("shop.t")).evolve(Evolution({"Metaq_ID": "int"}))


def test_passwords_are_hidden() -> None:
    url = "jdbc:mariadb://h:1/?user=u&password=other%21&useSsl=true"
    config = JdbcConfig(url, "u", "a secret", config_of(url).dialect)
    text = config.without_secrets(f"cannot connect to {url}: u, a secret, other!, password=other%21")
    assert text == "cannot connect to jdbc:mariadb://h:1/: u, ***, ***, password=***"


class Java:
    """An exception of Java."""

    def __init__(self, message: str | None, cause: Java | None = None) -> None:
        self._message, self._cause = message, cause

    def getMessage(self) -> str | None:
        return self._message

    def getCause(self) -> Java | None:
        return self._cause

    def toString(self) -> str:
        return "java.Failure"


TASK = """Job aborted due to stage failure: Lost task 0.0 in stage 1.0 (TID 1) (h executor driver): \
java.sql.BatchUpdateException: too long
\tat org.Driver.run(Driver.java:1)
"""


@pytest.mark.parametrize(
    ("java", "message"),
    [
        (Java("outer", Java("no such database")), "no such database"),
        (Java(None), "java.Failure"),
        (Java(TASK), "too long"),
        (Java(TASK + "Caused by: org.PSQLException: ERROR: no NUL\n\t... 3 more"), "ERROR: no NUL"),
    ],
)
def test_the_error_is_the_innermost_message(java: Java, message: str) -> None:
    failure: Any = PySparkException("text")
    failure._origin = java
    with pytest.raises(MirrorError) as error, driver_errors(config_of(URLS[1])):
        raise failure
    assert str(error.value) == f"PostgreSQL reports: {message}"


def test_password_file_is_relative_to_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret\n")
    path = tmp_path / "sync.toml"
    path.write_text(
        '[topic]\nname = "changes"\n[mirror]\ntarget = "jdbc"\ncheckpoint = "c"\n'
        f'[jdbc]\nurl = "{URLS[0]}"\nuser = "u"\npassword_file = "secret"\n'
    )
    jdbc = read_mirror_config(path, SECTIONS).jdbc
    assert jdbc is not None and jdbc.password == "a secret"


def test_the_index_of_a_key() -> None:
    mariadb, postgresql = (config_of(url).dialect for url in URLS)
    assert mariadb.index_parts({"id": "bigint", "n": "string"}) == '"id", "n"(190)'
    # Together they have at most 3072 bytes, with four for each character.
    parts = mariadb.index_parts({f"c{number}": "string" for number in range(16)})
    assert parts.startswith('"c0"(48), ') and 16 * 4 * 48 == 3072
    assert postgresql.index_parts({"id": "bigint", "n": "string"}) == '"id", "n"'
    names = {
        KeyIndex(mariadb, ("shop", "t"), key, kinds).name
        for key, kinds in ((("a", "b"), ("int", "int")), (("b", "a"), ("int", "int")), (("a",), ("string",)))
    }
    assert len(names) == 3 and all(len(name) < 63 for name in names)


def test_the_index_follows_the_key() -> None:
    target = FakeTarget(URLS[1])
    notes = Notes("shop.t")
    notes.define("a1", 1, Definition((Column("ID", "int32", False),), ("ID",)))
    mirror = mirror_of(target, notes, id="int", v="int")
    mirror.ensure_index()
    created = target.statements[-1]
    assert created.startswith('CREATE INDEX "metaq_key_') and created.endswith('ON "shop"."t" ("id")')
    name = created.split('"')[1]
    # The next run finds it; another column of the table may change without it.
    target.returns((name,))
    mirror.ensure_index()
    mirror.evolve(Evolution(retyped={"v": "bigint"}))
    assert not any(
        statement.startswith(("CREATE INDEX", "DROP INDEX")) for statement in target.statements[2:]
    )
    notes.define("a2", 2, Definition((Column("ID", "text", False),), ("ID",)))
    mirror.evolve(Evolution(retyped={"id": "string"}))
    assert f'DROP INDEX "shop"."{name}"' in target.statements


def test_types_of_a_target_depend_on_its_version() -> None:
    mariadb, postgresql = (config_of(url).dialect for url in URLS)
    assert mariadb.native_types("10.11.6-MariaDB-0+deb12u1") == {"uuid", "inet4", "inet6"}
    assert mariadb.native_types("10.6.1-MariaDB") == {"inet6"}
    assert mariadb.native_types("8.4.0") == frozenset()
    assert postgresql.native_types("PostgreSQL 15.3 on x86_64") == {"uuid", "inet4", "inet6"}
    assert postgresql.read("x", "inet4") == "CAST(x AS inet)"
    assert postgresql.text_of("x", "inet6") == "host(x)"


@pytest.mark.parametrize("url", URLS)
def test_rows_of_a_range_that_were_not_read_again_become_tombstones(url: str) -> None:
    target = FakeTarget(url)
    barrier = RangeBarrier("a9", "shop", "t", "ID", 3, None, "a8", 2)
    mirror_of(target, Notes("shop.t"), id="int").drop_range(barrier)
    kept, deleted, forgotten = target.statements
    where = """FROM "shop"."t" WHERE "metaq_seq" < ? AND "id" >= 3"""
    assert kept.endswith(f""", "metaq_id", 'a8' {where}""") and "tombstones" in kept
    assert deleted == f"DELETE {where}"
    assert forgotten.startswith('DELETE FROM "metaq_mirror"."quarantine" WHERE "table_id" = ? AND "seq" < ?')
    assert forgotten.endswith(f" AND {target.config.dialect.first_of_key(QUARANTINED_KEY)} >= 3")
    assert target.parameters == [("a8",), ("a8",), (hashed("shop", "t"), "a8")]
