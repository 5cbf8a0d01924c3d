"""The database: connections, what must be set there, and the tables that it has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pymysql
from pymysql.cursors import DictCursor

from metaq.errors import CommandError
from metaq.pipelines.binlog.columns import NO_KEY, Column, Definition, Unsuitable, column_of_schema
from metaq.pipelines.binlog.config import BinlogConfig
from metaq.pipelines.binlog.sequence import BinlogError, Place

_REQUIRED: Final = (
    ("log_bin", ("ON",), "start the server with --log-bin"),
    ("binlog_format", ("ROW",), "SET GLOBAL binlog_format = ROW"),
    ("binlog_row_metadata", ("FULL",), "SET GLOBAL binlog_row_metadata = FULL"),
    ("binlog_row_image", ("FULL",), "SET GLOBAL binlog_row_image = FULL"),
    ("log_bin_compress", ("OFF", None), "SET GLOBAL log_bin_compress = OFF"),
    # With 2 a table has one name in its rows and another one in the server's own tables.
    ("lower_case_table_names", ("0", "1"), "start the server with --lower-case-table-names=1"),
)
"""Variable, what it may be (None: it need not be there), and how it gets so."""
EXCLUDE: Final = 'name them in source.exclude, or set source.unsuitable = "skip"'
_ENGINES: Final = frozenset(("InnoDB", "ROCKSDB"))
_DENIED: Final = (1044, 1045, 1142, 1227)
_AWAY: Final = (1040, 1053, 1927)
"""Too many connections, a server that shuts down, a connection that was killed."""
TABLE_CHANGED: Final = 1412
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

    version: str
    identity: str
    """Another server has another one."""
    lowers_names: bool = False
    """Those of databases and tables, but not in statements."""


class Source:
    """Opens connections as the configuration says."""

    def __init__(self, config: BinlogConfig) -> None:
        self._config = config

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
            failure.hint = (
                f"GRANT SELECT, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO '{self._config.user}'@'…'"
            )
        # Whoever lost the server finds it again; what the server refuses it will refuse again.
        failure.retriable = isinstance(error, pymysql.OperationalError) and (
            2000 <= code < 3000 or code in _AWAY
        )
        return failure

    def server(self, connection: Any) -> Server:
        """Checks what must be set; raises CommandError with the setting and how it gets right."""
        variables = _variables(connection)
        version = variables.get("version", "")
        if "MariaDB" not in version:
            raise CommandError(
                f"{self._config.source} is {version}; binlog-sync reads MariaDB 10.5 or newer",
                hint="MySQL does not tell the place in its binlog that a reader sees",
            )
        for name, accepted, remedy in _REQUIRED:
            value = variables.get(name)
            if value not in accepted:
                words = " or ".join(word for word in accepted if word)
                raise CommandError(
                    f"{self._config.source}: {name} is {value}, it must be {words}", hint=remedy
                )
        return Server(
            version,
            f"{variables['server_id']}/{variables['log_bin_basename']}",
            variables["lower_case_table_names"] == "1",
        )

    def tables(self, connection: Any) -> tuple[list[Table], dict[str, str]]:
        """All that are selected and suitable, and why the others are not; raises CommandError."""
        found: list[Table] = []
        faults: dict[str, str] = {}
        for row in _rows(
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
            for row in _rows(
                connection,
                "SELECT * FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
                " ORDER BY ORDINAL_POSITION",
                place,
            )
        ]
        key = [
            row["COLUMN_NAME"]
            for row in _rows(
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
        return [
            f"{row['CONSTRAINT_SCHEMA']}.{row['TABLE_NAME']} ({row['CONSTRAINT_NAME']})"
            for row in _rows(connection, "SELECT * FROM information_schema.REFERENTIAL_CONSTRAINTS")
            if self._config.selects(row["CONSTRAINT_SCHEMA"], row["TABLE_NAME"])
            and not {row["UPDATE_RULE"], row["DELETE_RULE"]} <= {"RESTRICT", "NO ACTION"}
        ]


def snapshot_place(connection: Any) -> Place:
    """The place of the binlog that the transaction of this connection sees; raises BinlogError."""
    status = {
        row["Variable_name"].lower(): row["Value"]
        for row in _rows(connection, "SHOW STATUS LIKE 'binlog_snapshot_%%'")
    }
    file, position = status.get("binlog_snapshot_file"), status.get("binlog_snapshot_position")
    if not file or not position:
        raise BinlogError("the server does not tell the binlog place of a consistent snapshot")
    return Place(file, int(position))


def gtid_at(connection: Any, place: Place) -> str:
    """The GTID position that the server gives for a place."""
    (row,) = _rows(connection, "SELECT BINLOG_GTID_POS(%s, %s) AS gtid", place)
    if row["gtid"] is None:
        raise BinlogError(f"the server does not know the place {place} of its binlog")
    return str(row["gtid"])


def _variables(connection: Any) -> dict[str, str]:
    return {row["Variable_name"]: row["Value"] for row in _rows(connection, "SHOW GLOBAL VARIABLES")}


def _rows(connection: Any, statement: str, values: tuple[object, ...] = ()) -> list[dict[str, Any]]:
    with connection.cursor(DictCursor) as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall())
