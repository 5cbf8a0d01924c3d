"""Connections to the source database, the settings that it needs, and its tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pymysql

from metaq.errors import CommandError
from metaq.pipelines.binlog_sync.config import BinlogConfig
from metaq.pipelines.binlog_sync.errors import Unsuitable
from metaq.pipelines.binlog_sync.reading.flavours import Flavour, MariaDb, flavour_of, rows_of
from metaq.pipelines.binlog_sync.values.columns import NO_KEY, Column, Definition, column_of_schema

EXCLUDE: Final = 'name them in source.exclude, or set source.unsuitable = "skip"'
_ENGINES: Final = frozenset(("InnoDB", "ROCKSDB"))
_DENIED: Final = (1044, 1045, 1142, 1227)
_AWAY: Final = (1040, 1053, 1927, 3032)
"""Too many connections, server shutting down, connection killed, server offline for now."""
TABLE_CHANGED: Final = (1412, 1054)
"""The table has changed since the snapshot was opened; MySQL then reports an unknown column (1054)."""
NO_SUCH_TABLE: Final = 1146


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A selected table of the source."""

    database: str
    name: str
    definition: Definition
    rows: int
    """The server's estimate."""

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"


@dataclass(frozen=True, slots=True)
class DatabaseServer:
    """The MariaDB or MySQL server that answers."""

    flavour: Flavour
    version: str
    identity: str
    """It differs from server to server."""
    lowers_names: bool = False
    """Whether it stores names of databases and tables in lower case, although statements keep theirs."""


class SourceDatabase:
    """Opens connections with the configured settings."""

    def __init__(self, config: BinlogConfig) -> None:
        self._config = config
        self._rights = f"{MariaDb.rights} (on MySQL REPLICATION CLIENT for the last one)"
        """The rights in a hint, refined once it is known which server answers."""
        self.expected = ""
        """The identity of the server whose binlog is read, once it is known."""

    def settings(self) -> dict[str, Any]:
        """Returns new settings for pymysql, which the caller may change."""
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
        """Opens a connection of pymysql and closes it at the end; raises CommandError."""
        with self.errors():
            connection = pymysql.connect(**{**self.settings(), **settings})
        try:
            yield connection
        finally:
            # `close` would wait for a server that may be gone.
            connection._force_close()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns errors of the database into CommandError."""
        try:
            yield
        except pymysql.MySQLError as error:
            raise self.command_error(error) from None

    def command_error(self, error: pymysql.MySQLError) -> CommandError:
        """Returns the error for users, with a hint if rights are missing."""
        code, text = error.args if len(error.args) == 2 else (0, str(error))
        failure = CommandError(f"{self._config.source}: {text} ({code})")
        if code in _DENIED:
            failure.hint = f"GRANT {self._rights} ON *.* TO '{self._config.user}'@'…'"
        # A lost connection can be opened again; a refusal would only be repeated.
        failure.retriable = isinstance(error, pymysql.OperationalError) and (
            2000 <= code < 3000 or code in _AWAY
        )
        return failure

    def is_expected(self, connection: Any) -> bool:
        """Returns whether this is the server whose binlog is read: another one may have taken its address."""
        if not self.expected:
            return True
        variables = _variables(connection)
        return flavour_of(variables.get("version", "")).identity(variables) == self.expected

    def server(self, connection: Any) -> DatabaseServer:
        """Checks the settings of the server; raises CommandError with a hint for the wrong one."""
        variables = _variables(connection)
        version = variables.get("version", "")
        flavour = flavour_of(version)
        self._rights = flavour.rights
        flavour.require_version(self._config.source, version)
        for name, accepted, remedy in flavour.settings:
            value = variables.get(name)
            if value not in accepted:
                wanted = " or ".join(one or "empty" for one in accepted if one is not None)
                raise CommandError(
                    f"{self._config.source}: {name} is {value}, it must be {wanted}", hint=remedy
                )
        flavour.require_complete(connection, self._config.source, variables)
        return DatabaseServer(
            flavour,
            version,
            flavour.identity(variables),
            variables["lower_case_table_names"] == "1",
        )

    def tables(self, connection: Any) -> tuple[list[SourceTable], dict[str, str]]:
        """Returns the selected tables that are suitable, and for the others why not; raises CommandError."""
        found: list[SourceTable] = []
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
                    raise Unsuitable("it is system-versioned: its rows include its history")
                if row["ENGINE"] not in _ENGINES:
                    raise Unsuitable(f"its engine {row['ENGINE']} cannot be read consistently without a lock")
                definition = self.definition(connection, database, name)
            except Unsuitable as reason:
                faults[f"{database}.{name}"] = str(reason)
                continue
            found.append(SourceTable(database, name, definition, int(row["TABLE_ROWS"] or 0)))
        if faults and self._config.unsuitable == "error":
            raise CommandError(
                "tables that cannot be synchronised: "
                + "; ".join(f"{name}: {reason}" for name, reason in faults.items()),
                hint=EXCLUDE,
            )
        return found, faults

    def definition(self, connection: Any, database: str, table: str) -> Definition:
        """Returns the columns and the key of a table; raises Unsuitable, also if it does not exist."""
        name = (database, table)
        columns: list[Column] = [
            column_of_schema(row)
            for row in rows_of(
                connection,
                "SELECT * FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
                " ORDER BY ORDINAL_POSITION",
                name,
            )
        ]
        key = [
            row["COLUMN_NAME"]
            for row in rows_of(
                connection,
                "SELECT COLUMN_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s"
                " AND TABLE_NAME = %s AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX",
                name,
            )
        ]
        if not columns:
            raise Unsuitable("it does not exist")
        if not key:
            raise Unsuitable(NO_KEY)
        return Definition(tuple(columns), tuple(key))

    def cascades(self, connection: Any) -> list[str]:
        """Returns foreign keys whose cascading changes are missing from the binlog."""
        if _variables(connection).get("innodb_native_foreign_keys") == "OFF":
            # Since MySQL 9.6 the binlog has these changes like any others.
            return []
        return [
            f"{row['CONSTRAINT_SCHEMA']}.{row['TABLE_NAME']} ({row['CONSTRAINT_NAME']})"
            for row in rows_of(connection, "SELECT * FROM information_schema.REFERENTIAL_CONSTRAINTS")
            if self._config.selects(row["CONSTRAINT_SCHEMA"], row["TABLE_NAME"])
            and not {row["UPDATE_RULE"], row["DELETE_RULE"]} <= {"RESTRICT", "NO ACTION"}
        ]


def _variables(connection: Any) -> dict[str, str]:
    return {row["Variable_name"]: row["Value"] for row in rows_of(connection, "SHOW GLOBAL VARIABLES")}
