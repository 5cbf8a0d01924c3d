"""The database: connections, what must be set there, and the tables that it has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pymysql

from metaq.errors import CommandError
from metaq.pipelines.binlog_sync.columns import NO_KEY, Column, Definition, Unsuitable, column_of_schema
from metaq.pipelines.binlog_sync.config import BinlogConfig
from metaq.pipelines.binlog_sync.flavours import Flavour, MariaDb, flavour_of, rows_of

EXCLUDE: Final = 'name them in source.exclude, or set source.unsuitable = "skip"'
_ENGINES: Final = frozenset(("InnoDB", "ROCKSDB"))
_DENIED: Final = (1044, 1045, 1142, 1227)
_AWAY: Final = (1040, 1053, 1927, 3032)
"""Too many connections, a server that shuts down, a connection that was killed, offline for now."""
TABLE_CHANGED: Final = (1412, 1054)
"""Or a column of it, of which MySQL tells in a snapshot as it was when that was opened."""
NO_SUCH_TABLE: Final = 1146


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the source that is selected."""

    database: str
    name: str
    definition: Definition
    rows: int
    """As the server guesses."""

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"


@dataclass(frozen=True, slots=True)
class Server:
    """Who answers."""

    flavour: Flavour
    version: str
    identity: str
    """Another server has another one."""
    lowers_names: bool = False
    """Those of databases and tables, but not in statements."""


class Source:
    """Opens connections as the configuration says."""

    def __init__(self, config: BinlogConfig) -> None:
        self._config = config
        self._rights = f"{MariaDb.rights} (on MySQL REPLICATION CLIENT for the last one)"
        """Until it is known which server answers."""
        self.expected = ""
        """The identity of the server that places in the binlog are of, once that is known."""

    def settings(self) -> dict[str, Any]:
        """For pymysql; each call gives a new one, as callers change it."""
        config = self._config
        where: dict[str, Any] = (
            {"unix_socket": config.socket} if config.socket else {"host": config.host, "port": config.port}
        )
        if config.tls_ca:
            where["ssl"] = {"ca": config.tls_ca}
        return {
            **where,
            "user": config.user,
            "password": config.password,
            "charset": "utf8mb4",
            "connect_timeout": 10,
            "read_timeout": 60,
            "autocommit": True,
        }

    @contextmanager
    def connect(self, **settings: Any) -> Iterator[Any]:
        """A connection of pymysql, closed at the end; raises CommandError."""
        with self.errors():
            connection = pymysql.connect(**{**self.settings(), **settings})
        try:
            yield connection
        finally:
            # Not `close`, which would wait for a server that may be gone.
            connection._force_close()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns errors of the database into ours."""
        try:
            yield
        except pymysql.MySQLError as error:
            raise self.told(error) from None

    def told(self, error: pymysql.MySQLError) -> CommandError:
        code, text = error.args if len(error.args) == 2 else (0, str(error))
        failure = CommandError(f"{self._config.source}: {text} ({code})")
        if code in _DENIED:
            failure.hint = f"GRANT {self._rights} ON *.* TO '{self._config.user}'@'…'"
        # Whoever lost the server finds it again; what the server refuses it will refuse again.
        failure.retriable = isinstance(error, pymysql.OperationalError) and (
            2000 <= code < 3000 or code in _AWAY
        )
        return failure

    def is_expected(self, connection: Any) -> bool:
        """Whether the server at the other end is the one that places are of: behind one address there may be
        another one by now."""
        if not self.expected:
            return True
        variables = _variables(connection)
        return flavour_of(variables.get("version", "")).identity(variables) == self.expected

    def server(self, connection: Any) -> Server:
        """Checks what must be set; raises CommandError with the setting and how it gets right."""
        variables = _variables(connection)
        version = variables.get("version", "")
        flavour = flavour_of(version)
        self._rights = flavour.rights
        flavour.require_version(self._config.source, version)
        for name, accepted, remedy in flavour.settings:
            value = variables.get(name)
            if value not in accepted:
                words = " or ".join(word or "empty" for word in accepted if word is not None)
                raise CommandError(
                    f"{self._config.source}: {name} is {value}, it must be {words}", hint=remedy
                )
        flavour.require_complete(connection, self._config.source, variables)
        return Server(
            flavour,
            version,
            flavour.identity(variables),
            variables["lower_case_table_names"] == "1",
        )

    def tables(self, connection: Any) -> tuple[list[Table], dict[str, str]]:
        """All that are selected and suitable, and why the others are not; raises CommandError."""
        found: list[Table] = []
        faults: dict[str, str] = {}
        for row in rows_of(
            connection,
            "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE, TABLE_ROWS FROM information_schema.TABLES"
            " WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY TABLE_SCHEMA, TABLE_NAME",
        ):
            database, name = row["TABLE_SCHEMA"], row["TABLE_NAME"]
            if not self._config.selects(database, name):
                continue
            try:
                if row["TABLE_TYPE"] != "BASE TABLE":
                    raise Unsuitable("it is versioned, and its history is among its rows")
                if row["ENGINE"] not in _ENGINES:
                    raise Unsuitable(
                        f"its engine is {row['ENGINE']}, whose tables cannot be read without a lock"
                    )
                definition = self.definition(connection, database, name)
            except Unsuitable as reason:
                faults[f"{database}.{name}"] = str(reason)
                continue
            found.append(Table(database, name, definition, int(row["TABLE_ROWS"] or 0)))
        if faults and self._config.unsuitable == "error":
            raise CommandError(
                "tables that cannot be synchronised: "
                + "; ".join(f"{name}: {reason}" for name, reason in faults.items()),
                hint=EXCLUDE,
            )
        return found, faults

    def definition(self, connection: Any, database: str, table: str) -> Definition:
        """Raises Unsuitable, also where the table is not there."""
        place = (database, table)
        columns: list[Column] = [
            column_of_schema(row)
            for row in rows_of(
                connection,
                "SELECT * FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
                " ORDER BY ORDINAL_POSITION",
                place,
            )
        ]
        key = [
            row["COLUMN_NAME"]
            for row in rows_of(
                connection,
                "SELECT COLUMN_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s"
                " AND TABLE_NAME = %s AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX",
                place,
            )
        ]
        if not columns:
            raise Unsuitable("it is not there")
        if not key:
            raise Unsuitable(NO_KEY)
        return Definition(tuple(columns), tuple(key))

    def cascades(self, connection: Any) -> list[str]:
        """Foreign keys whose changes never come into the binlog."""
        if _variables(connection).get("innodb_native_foreign_keys") == "OFF":
            # Since MySQL 9.6 they are changes as any others.
            return []
        return [
            f"{row['CONSTRAINT_SCHEMA']}.{row['TABLE_NAME']} ({row['CONSTRAINT_NAME']})"
            for row in rows_of(connection, "SELECT * FROM information_schema.REFERENTIAL_CONSTRAINTS")
            if self._config.selects(row["CONSTRAINT_SCHEMA"], row["TABLE_NAME"])
            and not {row["UPDATE_RULE"], row["DELETE_RULE"]} <= {"RESTRICT", "NO ACTION"}
        ]


def _variables(connection: Any) -> dict[str, str]:
    return {row["Variable_name"]: row["Value"] for row in rows_of(connection, "SHOW GLOBAL VARIABLES")}
