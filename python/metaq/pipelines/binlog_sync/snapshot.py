"""Reading tables in chunks along their primary keys, between two places of the binlog that are known.

Why nothing is missing and nothing stale wins, without a lock:

A chunk is read in a transaction that sees one moment of the database. Of that moment two places of the binlog
are known: it sees every transaction before the low one, and none behind the high one, H. The reader of the
binlog is at the low one when the chunk is read. It goes on until it has sent everything before H, then the
rows of the chunk are sent with the sequence number (H, row 0), then it goes on behind H.

On MariaDB all before H is seen, as the server tells the place (`binlog_snapshot_file` and `_position`). For
every key of the chunk, what was sent before H is already in its row and has a smaller number, and what comes
after H has a larger one. In its queue, the row stands between the two. Only the commit of an XA transaction
is in the binlog, and counted as seen, before tables have it: of those that the reader has passed the server
is asked whether they are still open (`XA RECOVER`), and the keys of those on the way are taken out, as on
MySQL.

MySQL does not tell it. There the low one is where the reader of the binlog is, which has passed a set G of
GTIDs. A transaction stands in the binlog before it is committed, and is in `gtid_executed` after it is. So
the server is first asked to have G executed, then the snapshot is opened, which thus sees all of G. Then the
server is asked how far its binlog is: that is H, and what the snapshot sees stands before it. Of
transactions between the two nobody knows whether the snapshot sees them. But the reader comes by all of them
before the chunk is sent, and each key that one of them touches is taken out of the chunk: the binlog has told
its row, or that it is gone, with a number below H. A key that none of them touches is at H as the snapshot
saw it.

Keys are compared as values: of a row image in the binlog, before and after the change, and of a row of the
chunk. Both have a key as it is stored, whatever spelling a statement used to find it under a collation that
takes several for the same; where a statement changes the spelling, the two images have both. That both sides
give the same value for the same stored key is what the choice of a queue relies on, too.

A change of the table's definition between low and H, its renaming or emptying too, makes the chunk worthless:
it is read again. The name is locked against such changes before H is asked for, so none that matters to the
definition, or to the rows, stands behind H.

A snapshot begins at the low place of its first chunk, not at H: what was taken out of a chunk has numbers
between the two, and must not be taken for what was there before the snapshot.

Rows that are inserted behind the last key of the last chunk, or below the cursor, come by the binlog, which
is read from a place before the first chunk on. A run that ends in between takes up the cursor; a chunk that
was sent and not yet noted is read again, at a later H, so its rows get larger numbers and are not older than
the first ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pymysql
from pymysql import converters
from pymysql.cursors import SSCursor

from metaq.pipelines.binlog_sync.columns import Column, Definition, Unsuitable
from metaq.pipelines.binlog_sync.database import NO_SUCH_TABLE, TABLE_CHANGED, Source
from metaq.pipelines.binlog_sync.flavours import Flavour, Moment, flavour_at
from metaq.pipelines.binlog_sync.json_binary import text_of_text
from metaq.pipelines.binlog_sync.progress import Position
from metaq.pipelines.binlog_sync.rows import Row
from metaq.pipelines.binlog_sync.sequence import NOWHERE, BinlogError
from metaq.pipelines.binlog_sync.state import Cursor
from metaq.pipelines.binlog_sync.stream import StreamLost
from metaq.pipelines.binlog_sync.values import Value

TRIES_MAX: Final = 50
PAUSE_S: Final = 0.02
ANYWHERE: Final = Position(NOWHERE, "")
"""For those who read tables alone."""
# Values come as the text that the server prints; what goes there is quoted as ever.
_RAW: Final = {key: convert for key, convert in converters.conversions.items() if not isinstance(key, int)}


@dataclass(slots=True)
class Chunk:
    """Rows of one table at one moment."""

    database: str
    table: str
    moment: Moment
    definition: Definition
    rows: list[Row]
    last: tuple[Any, ...]
    """The key of the last row, as a cursor keeps it; that of the chunk before where there is none."""
    is_last: bool
    _by_key: dict[tuple[Any, ...], Row] | None = None
    """Once something was taken out."""

    def take_out(self, change: Row) -> None:
        """The binlog tells what became of the row with the key of that change."""
        key = self.definition.key
        if self._by_key is None:
            self._by_key = {tuple(row[name] for name in key): row for row in self.rows}
        self._by_key.pop(tuple(change[name] for name in key), None)

    def left(self) -> Iterable[Row]:
        """All that was not taken out."""
        return self.rows if self._by_key is None else self._by_key.values()


class Chunks:
    """Reads chunks over a connection of its own. One has at most so many rows, and ends with the row that
    makes it larger than so many bytes."""

    def __init__(self, source: Source, chunk_rows: int, chunk_bytes: int) -> None:
        self._source = source
        self._chunk_rows = chunk_rows
        self._chunk_bytes = chunk_bytes
        self._limits: dict[tuple[str, str], int] = {}
        """Rows to ask for, of tables of which fewer fit."""
        self._connection: Any = None
        self._flavour: Flavour | None = None
        """Of the server that the connection is to."""

    def close(self) -> None:
        if self._connection is not None:
            self._connection._force_close()
            self._connection = None

    def read(
        self,
        database: str,
        table: str,
        cursor: Cursor | None,
        reached: Position,
        committed: Set[str] = frozenset(),
    ) -> Chunk | None:
        """The next chunk, at `reached` or later, with these XA transactions; None where the table is gone.

        Begins anew where the primary key is no longer that of the cursor. Raises CommandError, BinlogError,
        Unsuitable, StreamLost where another server answers, and NotYet where it can be read later.
        """
        is_behind = False
        for _ in range(TRIES_MAX):
            try:
                with self._source.errors():
                    return self._try(database, table, cursor, reached, committed)
            except (_Again, NotYet) as reason:
                is_behind = isinstance(reason, NotYet)
                time.sleep(PAUSE_S)
            except Unsuitable:
                raise
            except BaseException:
                self.close()
                raise
        if is_behind:
            raise NotYet
        raise BinlogError(f"{database}.{table} changes so often that no chunk of it can be read")

    def _try(
        self, database: str, table: str, cursor: Cursor | None, reached: Position, committed: Set[str]
    ) -> Chunk | None:
        if self._connection is None:
            self._connection = pymysql.connect(
                **{**self._source.settings(), "conv": _RAW, "read_timeout": 600}
            )
            with self._connection.cursor() as query:
                query.execute("SET SESSION time_zone = '+00:00', SESSION sql_mode = ''")
                query.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            self._flavour = flavour_at(self._connection)
            if not self._source.is_expected(self._connection):
                raise StreamLost("another server answers where tables are read")
        connection, flavour = self._connection, self._flavour
        assert flavour is not None
        if not flavour.has_reached(connection, reached, committed):
            raise NotYet
        with connection.cursor() as query:
            query.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            try:
                # From here to the end of the transaction nobody can change the definition.
                query.execute(f"SELECT 1 FROM {_quoted(database)}.{_quoted(table)} LIMIT 0", ())
                moment = flavour.moment(connection, reached)
                if moment is None:
                    raise NotYet
                definition = self._source.definition(connection, database, table)
                last = cursor.last if cursor is not None and cursor.key == definition.key else ()
                limit = self._limits.get((database, table), self._chunk_rows)
                statement, values = chunk_query(database, table, definition, last, limit)
                found, is_whole = self._rows(statement, values)
            except pymysql.MySQLError as error:
                code = error.args[0] if error.args else 0
                if code in TABLE_CHANGED:
                    raise _Again from None
                if code == NO_SUCH_TABLE:
                    return None
                raise
            finally:
                if connection.open:
                    query.execute("COMMIT")
        self._adapt((database, table), len(found), is_whole)
        rows, last = _converted(definition, found, last)
        return Chunk(database, table, moment, definition, rows, last, is_whole and len(rows) < limit)

    def _rows(self, statement: str, values: tuple[object, ...]) -> tuple[list[tuple[Any, ...]], bool]:
        """Those that fit, and whether these are all that were asked for."""
        found: list[tuple[Any, ...]] = []
        size = 0
        query = self._connection.cursor(SSCursor)
        query.execute(statement, values)
        while (cells := query.fetchone()) is not None:
            found.append(cells)
            size += sum(len(cell) for cell in cells if cell is not None)
            if size > self._chunk_bytes:
                # The server may have gigabytes left for it, which both would insist on reading.
                query._result.unbuffered_active, query.connection = False, None
                self.close()
                return found, False
        query.close()
        return found, True

    def _adapt(self, table: tuple[str, str], rows: int, is_whole: bool) -> None:
        """So that the next chunk of it is not asked for more than it can take, and grows again."""
        if not is_whole:
            self._limits[table] = max(1, rows - 1)
        elif (limit := self._limits.pop(table, None)) is not None and 2 * limit < self._chunk_rows:
            self._limits[table] = 2 * limit


class NotYet(Exception):
    """The server has still to commit what its binlog has."""


class _Again(Exception):
    pass


def chunk_query(
    database: str, table: str, definition: Definition, last: tuple[Any, ...], rows: int
) -> tuple[str, tuple[object, ...]]:
    """The rows behind a key, in its order. Behind the columns comes what a cursor keeps of the key."""
    by_name = {column.name: column for column in definition.columns}
    key = [by_name[name] for name in definition.key]
    selected = [_expression(column) for column in definition.columns]
    selected += [f"{_quoted(column.name)} + 0" for column in key if column.type in ("enum", "set")]
    statement = f"SELECT {', '.join(selected)} FROM {_quoted(database)}.{_quoted(table)}"
    values: list[object] = []
    if last:
        literals = [_literal(column, value) for column, value in zip(key, last, strict=True)]
        names = [_quoted(column.name) for column in key]
        # The first condition alone lets the server use the index; the others part what is equal there.
        conditions = []
        for depth in range(len(key)):
            equal = [f"{name} = %s" for name in names[:depth]]
            conditions.append(f"({' AND '.join([*equal, f'{names[depth]} > %s'])})")
            values += literals[: depth + 1]
        statement += f" WHERE {names[0]} >= %s AND ({' OR '.join(conditions)})"
        values.insert(0, literals[0])
    order = ", ".join(_quoted(name) for name in definition.key)
    return f"{statement} ORDER BY {order} LIMIT {rows}", tuple(values)


def _expression(column: Column) -> str:
    name = _quoted(column.name)
    if column.type in ("float", "double"):
        # A FLOAT alone is printed with six digits, which are not enough for its value.
        return f"{name} * 1e0"
    if column.type.startswith("bit("):
        return f"CAST({name} AS UNSIGNED)"
    return name


def _literal(column: Column, value: Any) -> object:
    """So that it is compared as the column is, and neither as text nor as a float."""
    return Decimal(value) if column.type.startswith("decimal(") else value


def _quoted(name: str) -> str:
    # What is quoted goes through the formatting of pymysql.
    return "`" + name.replace("`", "``").replace("%", "%%") + "`"


def _converted(
    definition: Definition, found: list[tuple[Any, ...]], before: tuple[Any, ...]
) -> tuple[list[Row], tuple[Any, ...]]:
    convert = [_of_text(column.type) for column in definition.columns]
    names = [column.name for column in definition.columns]
    rows: list[Row] = []
    for cells in found:
        rows.append(
            {
                name: None if cell is None else value_of(cell)
                for name, value_of, cell in zip(names, convert, cells, strict=False)
            }
        )
    if not rows:
        return rows, before
    types = {column.name: column.type for column in definition.columns}
    numbers = iter(found[-1][len(names) :])
    last = tuple(
        int(next(numbers)) if types[name] in ("enum", "set") else rows[-1][name] for name in definition.key
    )
    return rows, last


def _of_text(kind: str) -> Callable[[Any], Value]:
    if kind.startswith(("int", "bit(", "year")):
        return int
    if kind in ("float", "double"):
        return float
    if kind == "json":
        return text_of_text
    return lambda text: text
