"""The differences between MariaDB and MySQL: settings, rights, and how to find out which part of the binlog a
reader of tables sees. Their events differ too; `event_decoder.py` deals with these."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Set
from typing import Any, Final, NamedTuple

import pymysql
from pymysql.cursors import DictCursor

from metaq.errors import CommandError
from metaq.pipelines.binlog_sync.coordinates import Coordinates, Position
from metaq.pipelines.binlog_sync.errors import BinlogError
from metaq.pipelines.binlog_sync.reading.binlog_items import xid_text
from metaq.pipelines.binlog_sync.reading.gtids import MARIADB, MYSQL

Setting = tuple[str, tuple[str | None, ...], str]
"""A variable, its accepted values (None: the server may lack it), and how to set it."""

_BOTH: Final[tuple[Setting, ...]] = (
    ("log_bin", ("ON",), "start the server with --log-bin"),
    ("binlog_row_metadata", ("FULL",), "SET GLOBAL binlog_row_metadata = FULL"),
    ("binlog_row_image", ("FULL",), "SET GLOBAL binlog_row_image = FULL"),
    # With 2, a table has one name in the binlog and another one in information_schema.
    ("lower_case_table_names", ("0", "1"), "start the server with --lower-case-table-names=1"),
)
_ROW_FORMAT: Final = "SET GLOBAL binlog_format = ROW"
_SYNTAX: Final = 1064
_FIRST_EVENT: Final = 4
"""The position of the first event in a file."""
_WAIT_S: Final = 20


class Moment(NamedTuple):
    """The part of the binlog that a consistent snapshot of the tables includes."""

    low: Coordinates
    """The snapshot includes everything before these coordinates."""
    high: Coordinates
    """The snapshot includes nothing after these coordinates."""
    is_exact: bool
    """Whether the snapshot includes everything before `high`."""


class Flavour(ABC):
    """One kind of server."""

    name: str
    product: str
    version_min: tuple[int, ...]
    settings: tuple[Setting, ...]
    rights: str

    def require_version(self, where: str, version: str) -> None:
        """Raises CommandError."""
        if version_of(version) < self.version_min:
            wanted = ".".join(map(str, self.version_min))
            raise CommandError(f"{where} is {version}; binlog-sync reads {self.product} {wanted} or newer")

    @abstractmethod
    def require_complete(self, connection: Any, where: str, variables: Mapping[str, str]) -> None:
        """Raises CommandError if the server does not write all changes to its binlog."""

    @abstractmethod
    def identity(self, variables: Mapping[str, str]) -> str:
        """Returns a text that differs between servers, and between series of binlog files."""

    @abstractmethod
    def require_known(self, connection: Any, where: str, gtid: str) -> None:
        """Raises CommandError if the server lacks transactions that were read from another server."""

    @abstractmethod
    def position(self, connection: Any) -> Position:
        """Returns where a new state begins. Transactions that its GTIDs lack begin after its coordinates."""

    @abstractmethod
    def has_reached(self, connection: Any, reached: Position, committed: Set[str]) -> bool:
        """Returns whether a transaction that begins now sees everything before `reached`, including the XA
        transactions whose commit was read (`committed`, their ids)."""

    @abstractmethod
    def moment(self, connection: Any, reached: Position) -> Moment | None:
        """Returns what the open transaction of this connection sees; None if it does not see enough."""


class MariaDb(Flavour):
    """MariaDB reports exactly what a consistent snapshot includes."""

    name = MARIADB
    product = "MariaDB"
    version_min = (10, 5)
    settings = (
        *_BOTH,
        ("binlog_format", ("ROW",), _ROW_FORMAT),
        ("log_bin_compress", ("OFF", None), "SET GLOBAL log_bin_compress = OFF"),
    )
    rights = "SELECT, REPLICATION SLAVE, BINLOG MONITOR"

    def require_complete(self, connection: Any, where: str, variables: Mapping[str, str]) -> None:
        if variables.get("log_slave_updates") == "ON":
            return
        status = rows_of(connection, "SHOW GLOBAL STATUS LIKE 'Slaves_running'")
        if status and status[0]["Value"] not in ("0", "OFF"):
            raise CommandError(
                f"{where} is a replica whose log_slave_updates is OFF: its binlog lacks replicated changes",
                hint="start the server with --log-slave-updates, or read its master",
            )

    def identity(self, variables: Mapping[str, str]) -> str:
        return f"{variables['server_id']}/{variables['log_bin_basename']}"

    def require_known(self, connection: Any, where: str, gtid: str) -> None:
        """MariaDB itself refuses to continue from a GTID that it lacks."""

    def position(self, connection: Any) -> Position:
        with connection.cursor() as query:
            query.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            coordinates = _snapshot_coordinates(connection)
            query.execute("COMMIT")
        (row,) = rows_of(connection, "SELECT BINLOG_GTID_POS(%s, %s) AS gtid", coordinates)
        if row["gtid"] is None:
            raise BinlogError(f"the server does not know the coordinates {coordinates} of its own binlog")
        return Position(coordinates, str(row["gtid"]))

    def has_reached(self, connection: Any, reached: Position, committed: Set[str]) -> bool:
        # The binlog has their commit before the tables do, and no coordinates reveal it.
        return not committed or committed.isdisjoint(_prepared(connection))

    def moment(self, connection: Any, reached: Position) -> Moment | None:
        coordinates = _snapshot_coordinates(connection)
        # A transaction is in the binlog a moment before others see it.
        if coordinates.order < reached.coordinates.order:
            return None
        return Moment(reached.coordinates, coordinates, is_exact=True)


class MySql(Flavour):
    """MySQL reports only the end of its binlog, and which transactions everybody sees."""

    name = MYSQL
    product = "MySQL"
    version_min = (8, 0, 22)
    settings = (
        *_BOTH,
        # A future version will have no other format, and no such variable.
        ("binlog_format", ("ROW", None), _ROW_FORMAT),
        ("gtid_mode", ("ON",), "start the server with --gtid-mode=ON --enforce-gtid-consistency=ON"),
        # Otherwise the binlog lacks replicated changes. The second name is that of versions before 8.0.26.
        ("log_replica_updates", ("ON", None), "start the server with --log-replica-updates=ON"),
        ("log_slave_updates", ("ON", None), "start the server with --log-slave-updates=ON"),
        ("binlog_row_value_options", ("", None), "SET GLOBAL binlog_row_value_options = ''"),
        ("binlog_transaction_compression", ("OFF", None), "SET GLOBAL binlog_transaction_compression = OFF"),
    )
    rights = "SELECT, REPLICATION SLAVE, REPLICATION CLIENT"

    def require_complete(self, connection: Any, where: str, variables: Mapping[str, str]) -> None:
        """The settings above are sufficient."""

    def identity(self, variables: Mapping[str, str]) -> str:
        return f"{variables['server_uuid']}/{variables['log_bin_basename']}"

    def position(self, connection: Any) -> Position:
        # The order matters: MySQL begins a file only after everything in the previous files is executed. The
        # current file may hold transactions that are not executed, so the state begins at its first event.
        end = _binlog_end(connection)
        (row,) = rows_of(connection, "SELECT @@GLOBAL.gtid_executed AS gtids")
        return Position(Coordinates(end.file, _FIRST_EVENT), "".join(row["gtids"].split()))

    def has_reached(self, connection: Any, reached: Position, committed: Set[str]) -> bool:
        (row,) = rows_of(
            connection, "SELECT GTID_SUBSET(%s, @@GLOBAL.gtid_executed) AS seen", (reached.gtid,)
        )
        return int(row["seen"]) == 1

    def require_known(self, connection: Any, where: str, gtid: str) -> None:
        # It may still be executing transactions that it has received.
        rows_of(connection, "SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s) AS missing", (gtid, _WAIT_S))
        (row,) = rows_of(connection, "SELECT GTID_SUBTRACT(%s, @@GLOBAL.gtid_executed) AS lacking", (gtid,))
        if row["lacking"]:
            raise CommandError(
                f"{where} is another server, which lacks transactions that were sent: {row['lacking']}",
                hint="move the state file away, and the next run begins with a new snapshot",
            )

    def moment(self, connection: Any, reached: Position) -> Moment | None:
        return Moment(reached.coordinates, _binlog_end(connection), is_exact=False)


_FLAVOURS: Final[dict[str, Flavour]] = {flavour.name: flavour for flavour in (MariaDb(), MySql())}


def flavour_of(version: str) -> Flavour:
    """Returns the flavour for the version text of a server."""
    return _FLAVOURS[MARIADB if "mariadb" in version.lower() else MYSQL]


def flavour_at(connection: Any) -> Flavour:
    """Returns the flavour of the connected server."""
    (row,) = rows_of(connection, "SELECT VERSION() AS version")
    return flavour_of(row["version"])


def version_of(text: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


def rows_of(connection: Any, statement: str, values: tuple[object, ...] = ()) -> list[dict[str, Any]]:
    with connection.cursor(DictCursor) as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall())


def _snapshot_coordinates(connection: Any) -> Coordinates:
    status = {
        row["Variable_name"].lower(): row["Value"]
        for row in rows_of(connection, "SHOW STATUS LIKE 'binlog_snapshot_%%'")
    }
    file, position = status.get("binlog_snapshot_file"), status.get("binlog_snapshot_position")
    if not file or not position:
        raise BinlogError("the server does not report the binlog coordinates of a consistent snapshot")
    return Coordinates(file, int(position))


def _prepared(connection: Any) -> set[str]:
    """Returns the ids of the XA transactions that are prepared at a MariaDB server."""
    found = set()
    for row in rows_of(connection, "XA RECOVER"):
        data, length = row["data"], int(row["gtrid_length"])
        data = data.encode() if isinstance(data, str) else data
        found.add(xid_text(data[:length], data[length:], int(row["formatID"])))
    return found


def _binlog_end(connection: Any) -> Coordinates:
    """Returns the end of the binlog of a MySQL server."""
    try:
        status = rows_of(connection, "SHOW BINARY LOG STATUS")
    except pymysql.ProgrammingError as error:
        if error.args[0] != _SYNTAX:
            raise
        # The name of the statement before 8.2.
        status = rows_of(connection, "SHOW MASTER STATUS")
    if not status:
        raise BinlogError("the server writes no binlog")
    return Coordinates(status[0]["File"], int(status[0]["Position"]))
