"""The two servers whose binlog is read, and what differs between them: settings, rights, and what they tell
of the place in the binlog that a reader of tables sees. Events differ too, of which stream.py knows."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Set
from typing import Any, Final, NamedTuple

import pymysql
from pymysql.cursors import DictCursor

from metaq.errors import CommandError
from metaq.pipelines.binlog_sync.gtids import MARIADB, MYSQL
from metaq.pipelines.binlog_sync.progress import Position
from metaq.pipelines.binlog_sync.sequence import BinlogError, Place, xid_text

Setting = tuple[str, tuple[str | None, ...], str]
"""Variable, what it may be (None: it need not be there), and how it gets so."""

_BOTH: Final[tuple[Setting, ...]] = (
    ("log_bin", ("ON",), "start the server with --log-bin"),
    ("binlog_row_metadata", ("FULL",), "SET GLOBAL binlog_row_metadata = FULL"),
    ("binlog_row_image", ("FULL",), "SET GLOBAL binlog_row_image = FULL"),
    # With 2 a table has one name in its rows and another one in the server's own tables.
    ("lower_case_table_names", ("0", "1"), "start the server with --lower-case-table-names=1"),
)
_ROW_FORMAT: Final = "SET GLOBAL binlog_format = ROW"
_SYNTAX: Final = 1064
_FIRST_PLACE: Final = 4
"""Where the events of a file begin."""
_WAIT_S: Final = 20


class Moment(NamedTuple):
    """Which part of the binlog a reader of tables sees."""

    low: Place
    """All before it is seen."""
    high: Place
    """Nothing behind it is seen."""
    is_exact: bool
    """All before the high one is seen."""


class Flavour(ABC):
    """What one of them needs and tells."""

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
        """Raises CommandError where rows change of which its binlog does not tell."""

    @abstractmethod
    def identity(self, variables: Mapping[str, str]) -> str:
        """Another server has another one, and other files of the binlog."""

    @abstractmethod
    def require_known(self, connection: Any, where: str, gtid: str) -> None:
        """Raises CommandError where the server lacks what was read from another one before it."""

    @abstractmethod
    def position(self, connection: Any) -> Position:
        """Where a new state begins: no transaction that is missing there begins before its place."""

    @abstractmethod
    def has_reached(self, connection: Any, reached: Position, committed: Set[str]) -> bool:
        """Whether a transaction that begins now sees all that the reader of the binlog has passed, among it
        the XA transactions that were committed (their ids)."""

    @abstractmethod
    def moment(self, connection: Any, reached: Position) -> Moment | None:
        """What the open transaction of this connection sees; None where it does not see enough."""


class MariaDb(Flavour):
    """Tells exactly what a consistent snapshot sees."""

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
                f"{where} is a replica whose log_slave_updates is OFF: its binlog lacks what it replicates",
                hint="start the server with --log-slave-updates, or read its master",
            )

    def identity(self, variables: Mapping[str, str]) -> str:
        return f"{variables['server_id']}/{variables['log_bin_basename']}"

    def require_known(self, connection: Any, where: str, gtid: str) -> None:
        """It refuses by itself to go on from a GTID that it does not have."""

    def position(self, connection: Any) -> Position:
        with connection.cursor() as query:
            query.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            place = _snapshot_place(connection)
            query.execute("COMMIT")
        (row,) = rows_of(connection, "SELECT BINLOG_GTID_POS(%s, %s) AS gtid", place)
        if row["gtid"] is None:
            raise BinlogError(f"the server does not know the place {place} of its binlog")
        return Position(place, str(row["gtid"]))

    def has_reached(self, connection: Any, reached: Position, committed: Set[str]) -> bool:
        # They come into the binlog before tables have them, and no place tells which do.
        return not committed or committed.isdisjoint(_prepared(connection))

    def moment(self, connection: Any, reached: Position) -> Moment | None:
        place = _snapshot_place(connection)
        # A transaction comes into the binlog a moment before others see it.
        if place.order < reached.place.order:
            return None
        return Moment(reached.place, place, is_exact=True)


class MySql(Flavour):
    """Tells only how far its binlog is, and which transactions everybody sees."""

    name = MYSQL
    product = "MySQL"
    version_min = (8, 0, 22)
    settings = (
        *_BOTH,
        # It is to have no other one some day, and then no such variable.
        ("binlog_format", ("ROW", None), _ROW_FORMAT),
        ("gtid_mode", ("ON",), "start the server with --gtid-mode=ON --enforce-gtid-consistency=ON"),
        # Otherwise what it replicates is not in its binlog. Before 8.0.26 the second name.
        ("log_replica_updates", ("ON", None), "start the server with --log-replica-updates=ON"),
        ("log_slave_updates", ("ON", None), "start the server with --log-slave-updates=ON"),
        ("binlog_row_value_options", ("", None), "SET GLOBAL binlog_row_value_options = ''"),
        ("binlog_transaction_compression", ("OFF", None), "SET GLOBAL binlog_transaction_compression = OFF"),
    )
    rights = "SELECT, REPLICATION SLAVE, REPLICATION CLIENT"

    def require_complete(self, connection: Any, where: str, variables: Mapping[str, str]) -> None:
        """Its settings are all that it takes."""

    def identity(self, variables: Mapping[str, str]) -> str:
        return f"{variables['server_uuid']}/{variables['log_bin_basename']}"

    def position(self, connection: Any) -> Position:
        # In this order: no file is begun before all that stands in those before it is executed. In the file
        # itself something may stand that is not executed yet, so the place is its beginning.
        place = _written(connection)
        (row,) = rows_of(connection, "SELECT @@GLOBAL.gtid_executed AS gtids")
        return Position(Place(place.file, _FIRST_PLACE), "".join(row["gtids"].split()))

    def has_reached(self, connection: Any, reached: Position, committed: Set[str]) -> bool:
        (row,) = rows_of(
            connection, "SELECT GTID_SUBSET(%s, @@GLOBAL.gtid_executed) AS seen", (reached.gtid,)
        )
        return int(row["seen"]) == 1

    def require_known(self, connection: Any, where: str, gtid: str) -> None:
        # It may still have to execute what it got in time.
        rows_of(connection, "SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s) AS missing", (gtid, _WAIT_S))
        (row,) = rows_of(connection, "SELECT GTID_SUBTRACT(%s, @@GLOBAL.gtid_executed) AS lacking", (gtid,))
        if row["lacking"]:
            raise CommandError(
                f"{where} is another server, without transactions that were told before: {row['lacking']}",
                hint="move the state file away, and the next run begins with a new snapshot",
            )

    def moment(self, connection: Any, reached: Position) -> Moment | None:
        return Moment(reached.place, _written(connection), is_exact=False)


_FLAVOURS: Final[dict[str, Flavour]] = {flavour.name: flavour for flavour in (MariaDb(), MySql())}


def flavour_of(version: str) -> Flavour:
    """By what a server says of its version."""
    return _FLAVOURS[MARIADB if "mariadb" in version.lower() else MYSQL]


def flavour_at(connection: Any) -> Flavour:
    """That of the server at the other end."""
    (row,) = rows_of(connection, "SELECT VERSION() AS version")
    return flavour_of(row["version"])


def version_of(text: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


def rows_of(connection: Any, statement: str, values: tuple[object, ...] = ()) -> list[dict[str, Any]]:
    with connection.cursor(DictCursor) as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall())


def _snapshot_place(connection: Any) -> Place:
    status = {
        row["Variable_name"].lower(): row["Value"]
        for row in rows_of(connection, "SHOW STATUS LIKE 'binlog_snapshot_%%'")
    }
    file, position = status.get("binlog_snapshot_file"), status.get("binlog_snapshot_position")
    if not file or not position:
        raise BinlogError("the server does not tell the binlog place of a consistent snapshot")
    return Place(file, int(position))


def _prepared(connection: Any) -> set[str]:
    """The XA transactions that wait for their end at a MariaDB."""
    found = set()
    for row in rows_of(connection, "XA RECOVER"):
        data, length = row["data"], int(row["gtrid_length"])
        data = data.encode() if isinstance(data, str) else data
        found.add(xid_text(data[:length], data[length:], int(row["formatID"])))
    return found


def _written(connection: Any) -> Place:
    """Behind all that stands in the binlog of a MySQL."""
    try:
        status = rows_of(connection, "SHOW BINARY LOG STATUS")
    except pymysql.ProgrammingError as error:
        if error.args[0] != _SYNTAX:
            raise
        # Its name before 8.2.
        status = rows_of(connection, "SHOW MASTER STATUS")
    if not status:
        raise BinlogError("the server writes no binlog")
    return Place(status[0]["File"], int(status[0]["Position"]))
