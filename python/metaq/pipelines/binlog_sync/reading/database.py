"""Connections to the source database, the settings that it needs, and its tables."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pymysql

from metaq.errors import CommandError
from metaq.pipelines.binlog_sync.config import ERROR, BinlogConfig
from metaq.pipelines.binlog_sync.errors import NoSuchTable, Unsuitable
from metaq.pipelines.binlog_sync.reading.flavours import Flavour, MariaDb, flavour_of, rows_of
from metaq.pipelines.binlog_sync.reading.foreign_keys import ForeignKey, ForeignKeys, foreign_keys_of
from metaq.pipelines.binlog_sync.reading.hints import NOT_ALLOWED, hint_for
from metaq.pipelines.binlog_sync.values.columns import (
    REFINED,
    Column,
    Definition,
    Refinements,
    column_of_schema,
    definition,
)

EXCLUDE: Final = 'name them in source.exclude, or set source.unsuitable = "skip"'
_TABLES: Final = (
    "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE, TABLE_ROWS FROM information_schema.TABLES"
    " WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')"
)
_ENGINES: Final = frozenset(("InnoDB", "ROCKSDB"))
_AWAY: Final = (1040, 1053, 1927, 3032)
"""Too many connections, server shutting down, connection killed, server offline for now."""
TABLE_CHANGED: Final = (1412, 1054)
"""The table has changed since the snapshot was opened; MySQL then reports an unknown column (1054)."""
NO_SUCH_TABLE: Final = 1146
NO_TABLESPACE: Final = (1812, 1814)


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
        """Returns the error for users, with a hint about its cause."""
        code, text = error.args if len(error.args) == 2 else (0, str(error))
        config = self._config
        failure = CommandError(f"{config.source}: {text} ({code})")
        failure.hint = hint_for(
            code, str(text), user=config.user, rights=self._rights, is_socket=bool(config.socket)
        )
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

    def missing_databases(self, connection: Any) -> list[str]:
        """Returns the databases of source.tables that the server lacks or hides from the user."""
        there = [next(iter(row.values())) for row in rows_of(connection, "SHOW DATABASES")]
        wanted = dict.fromkeys(pattern.partition(".")[0] for pattern in self._config.tables)
        return [pattern for pattern in wanted if not fnmatch.filter(there, pattern)]

    def tables(self, connection: Any) -> tuple[list[SourceTable], dict[str, str]]:
        """Returns the selected tables that are suitable, and for the others why not; raises CommandError."""
        found: list[SourceTable] = []
        faults: dict[str, str] = {}
        for row in rows_of(connection, f"{_TABLES} ORDER BY TABLE_SCHEMA, TABLE_NAME"):
            database, name = row["TABLE_SCHEMA"], row["TABLE_NAME"]
            if not self._config.selects(database, name):
                continue
            try:
                found.append(self._suitable(connection, row))
            except NoSuchTable:
                # It was dropped just now.
                continue
            except Unsuitable as reason:
                faults[f"{database}.{name}"] = str(reason)
        if faults and self._config.unsuitable == ERROR:
            raise CommandError(
                "tables that cannot be synchronised: "
                + "; ".join(f"{name}: {reason}" for name, reason in faults.items()),
                hint=EXCLUDE,
            )
        return found, faults

    def table(self, connection: Any, database: str, name: str) -> SourceTable | None:
        """Returns a table as it is now; None if it does not exist. Raises Unsuitable."""
        rows = rows_of(connection, f"{_TABLES} AND TABLE_SCHEMA = %s AND TABLE_NAME = %s", (database, name))
        try:
            return self._suitable(connection, rows[0]) if rows else None
        except NoSuchTable:
            return None

    def _suitable(self, connection: Any, row: dict[str, Any]) -> SourceTable:
        """Returns a table that can be synchronised; raises Unsuitable for another one."""
        database, name = row["TABLE_SCHEMA"], row["TABLE_NAME"]
        if row["TABLE_TYPE"] != "BASE TABLE":
            raise Unsuitable("it is system-versioned: its rows include its history")
        if row["ENGINE"] not in _ENGINES:
            raise Unsuitable(f"its engine {row['ENGINE']} cannot be read consistently without a lock")
        definition = self.definition(connection, database, name)
        return SourceTable(database, name, definition, int(row["TABLE_ROWS"] or 0))

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
            raise NoSuchTable("it does not exist")
        return definition(columns, key)

    def estimate(self, connection: Any, database: str, table: str) -> int:
        """Returns the server's estimate of the number of rows of a table."""
        found = rows_of(
            connection,
            "SELECT TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            (database, table),
        )
        return int(found[0]["TABLE_ROWS"] or 0) if found else 0

    def refinements(self, database: str, table: str) -> Refinements:
        """Returns the columns of a table whose types the binlog does not tell; raises CommandError."""
        with self.connect() as connection, self.errors():
            found = rows_of(
                connection,
                "SELECT COLUMN_NAME, DATA_TYPE FROM information_schema.COLUMNS"
                " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
                (database, table),
            )
        return {row["COLUMN_NAME"]: kind for row in found if (kind := row["DATA_TYPE"].lower()) in REFINED}

    def foreign_keys(self, connection: Any, tables: Iterable[tuple[str, str]] | None = None) -> ForeignKeys:
        """Returns the foreign keys, of these tables or of all selected ones, whose actions are missing from
        the binlog."""
        if _variables(connection).get("innodb_native_foreign_keys") == "OFF":
            # Since MySQL 9.6 the binlog has these changes like any others.
            return ForeignKeys()
        (clock,) = rows_of(connection, "SELECT UNIX_TIMESTAMP() AS now")
        found: list[ForeignKey] = []
        unchecked: list[str] = []
        with connection.cursor() as query:
            query.execute("SET SESSION sql_mode = '', SESSION sql_quote_show_create = 1")
            for name in self._selected(connection) if tables is None else tables:
                try:
                    query.execute(f"SHOW CREATE TABLE {quoted_name(name[0])}.{quoted_name(name[1])}", ())
                except pymysql.MySQLError as error:
                    code = error.args[0] if error.args else 0
                    if code in NOT_ALLOWED:
                        unchecked.append(".".join(name))
                    elif code != NO_SUCH_TABLE:
                        raise
                    continue
                found += foreign_keys_of(name, query.fetchone()[1])
        return ForeignKeys(tuple(found), tuple(unchecked), int(clock["now"]))

    def _selected(self, connection: Any) -> list[tuple[str, str]]:
        """Returns the names of the selected tables, suitable or not."""
        rows = rows_of(
            connection,
            "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE = 'BASE TABLE'",
        )
        names = [(row["TABLE_SCHEMA"], row["TABLE_NAME"]) for row in rows]
        return [name for name in names if self._config.selects(*name)]


def quoted_name(name: str) -> str:
    """Quotes a name for a statement that pymysql formats, so % is doubled."""
    return "`" + name.replace("`", "``").replace("%", "%%") + "`"


def _variables(connection: Any) -> dict[str, str]:
    return {row["Variable_name"]: row["Value"] for row in rows_of(connection, "SHOW GLOBAL VARIABLES")}
