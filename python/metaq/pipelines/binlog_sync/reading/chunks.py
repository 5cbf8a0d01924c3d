"""Reads tables in chunks along their primary keys, each between two known positions of the binlog.

Why nothing is missing and no stale row wins, without a lock:

A chunk is read in a transaction that sees one moment of the database. Two positions of the binlog are known
for that moment: the transaction sees everything before the low one, and nothing after the high one, H. The
reader of the binlog is at the low position when the chunk is read. It reads on until it has sent everything
before H. Then the rows of the chunk are sent with the sequence number (H, row 0). Then it continues after H.

MariaDB reports H (`binlog_snapshot_file` and `_position`), and the transaction sees everything before it. For
every key of the chunk, changes sent before H are already included in its row and have a smaller number;
changes after H have a larger one. In its queue, the row is between the two. XA transactions are the only
exception: their commit is in the binlog, and counts as seen, before the tables have it. So MariaDB is asked
whether those whose commit the reader has passed are still open (`XA RECOVER`), and the keys of those on the
way to H are taken out of the chunk, as on MySQL.

MySQL does not report H. The low position is where the reader of the binlog is; it has passed a set G of
GTIDs. A transaction is in the binlog before it is committed, and in `gtid_executed` after it is committed. So
the server must first have executed G; then the snapshot is opened, which therefore sees all of G. Then the
server is asked for the end of its binlog: this is H, and everything that the snapshot sees is before it. For
transactions between the two it is unknown whether the snapshot sees them. But the reader passes all of them
before the chunk is sent, and takes each key that they touch out of the chunk: the binlog has supplied its
row, or its deletion, with a number below H. A key that none of them touches is at H as the snapshot saw it.

Keys are compared as values: the values of row images in the binlog, before and after the change, and the
values of a row of the chunk. Both have a key as it is stored, whatever spelling a statement used to find it
under a collation that treats several spellings as equal. If a statement changes the spelling, the two images
have both. The choice of a queue relies on the same property: both sides give the same value for the same
stored key.

If the table's definition changes between low and H, or the table is renamed or emptied, the chunk is
worthless and is read again. The table is locked against such changes before H is asked for. So no such change
that matters to the definition, or to the rows, is after H.

A snapshot begins at the low position of its first chunk, not at H: changes that took keys out of the chunk
have numbers between the two, and must not count as older than the snapshot.

A table without a primary key has no order that a second chunk could continue in. It is read as a whole, in
one transaction, which is opened when the reader of the binlog is near its end and is read from when the
reader has reached H.

Rows that are inserted after the last key of the last chunk, or below the cursor, come through the binlog,
which is read from a position before the first chunk. A run that ends in between resumes at the cursor. A
chunk that was sent but not yet recorded is read again at a later H. So its rows get larger numbers, and are
not older than the first time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import pymysql
from pymysql import converters
from pymysql.cursors import SSCursor

from metaq.pipelines.binlog_sync.coordinates import NOWHERE, Coordinates, Position
from metaq.pipelines.binlog_sync.errors import BinlogError, StreamLost, Unsuitable
from metaq.pipelines.binlog_sync.reading.database import (
    NO_SUCH_TABLE,
    NO_TABLESPACE,
    TABLE_CHANGED,
    SourceDatabase,
    quoted_name,
)
from metaq.pipelines.binlog_sync.reading.flavours import Flavour, Moment, flavour_at, rows_of
from metaq.pipelines.binlog_sync.values.columns import Column, Definition
from metaq.pipelines.binlog_sync.values.json_binary import text_of_text
from metaq.pipelines.binlog_sync.values.rows import Row
from metaq.pipelines.binlog_sync.values.value_readers import Value
from metaq.pipelines.binlog_sync.writing.state import Cursor
from metaq.retry import Retry, steady

TRIES_MAX: Final = 50
PAUSE_S: Final = 0.02
NEAR_BYTES: Final = 4 * 1024 * 1024
ANYWHERE: Final = Position(NOWHERE, "")
"""A position that every snapshot includes, for readers that do not follow the binlog."""
# Values arrive as the text that the server prints; parameters are quoted as usual.
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
    """The key of the last row as a cursor keeps it; without rows, the one of the previous chunk."""
    is_last: bool
    _by_key: dict[tuple[Any, ...], Row] | None = None
    """The rows that are left, once one was taken out."""

    def take_out(self, change: Row) -> None:
        """Removes the row with the key of a change: the binlog has supplied its newer state."""
        key = self.definition.key
        if self._by_key is None:
            self._by_key = {tuple(row[name] for name in key): row for row in self.rows}
        self._by_key.pop(tuple(change[name] for name in key), None)

    def portions(self) -> Iterator[Iterable[Row]]:
        """Yields the rows that were not taken out, in portions that fit into memory."""
        yield self.rows if self._by_key is None else self._by_key.values()

    def close(self) -> None:
        """Releases what a chunk that is not sent holds."""


@dataclass(slots=True)
class WholeTable(Chunk):
    """All rows of a table without a primary key, at one moment. They are read while they are sent."""

    read: Callable[[], Iterator[list[Row]]] = field(kw_only=True)
    release: Callable[[], None] = field(kw_only=True)
    _taken: set[tuple[Any, ...]] = field(default_factory=set)

    def take_out(self, change: Row) -> None:
        self._taken.add(tuple(change[name] for name in self.definition.key))

    def portions(self) -> Iterator[Iterable[Row]]:
        taken, key = self._taken, self.definition.key
        for rows in self.read():
            yield [row for row in rows if tuple(row[name] for name in key) not in taken] if taken else rows

    def close(self) -> None:
        self.release()

    def is_near(self, coordinates: Coordinates) -> bool:
        """Returns whether the reader of the binlog gets from here to its moment soon: its transaction stays
        open meanwhile."""
        high = self.moment.high
        return coordinates.file == high.file and high.position - coordinates.position <= NEAR_BYTES


@dataclass(frozen=True, slots=True)
class KeyRange:
    """A range of the first column of a primary key. An end that is None is open."""

    column: str
    first: int | None
    last: int | None

    def conditions(self) -> list[str]:
        """Returns the conditions of a query for its rows."""
        limits = ((self.first, ">="), (self.last, "<="))
        return [f"{quoted_name(self.column)} {sign} {limit}" for limit, sign in limits if limit is not None]

    def __str__(self) -> str:
        return " and ".join(self.conditions())


class ChunkReader:
    """Reads chunks over its own connection. A chunk has at most `chunk_rows` rows, and ends with the row that
    makes it larger than `chunk_bytes`."""

    def __init__(self, source: SourceDatabase, chunk_rows: int, chunk_bytes: int) -> None:
        self._source = source
        self._chunk_rows = chunk_rows
        self._chunk_bytes = chunk_bytes
        self._limits: dict[tuple[str, str], int] = {}
        """The number of rows to ask for, for tables whose rows are too large for `chunk_rows`."""
        self._connection: Any = None
        self._flavour: Flavour | None = None
        """The flavour of the connected server."""

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
        keys: KeyRange | None = None,
    ) -> Chunk | None:
        """Reads the next chunk at `reached` or later, including these XA transactions (`committed`).

        Returns None if the table no longer exists. Starts again from the first row if the primary key has
        changed. Raises CommandError, BinlogError, Unsuitable, StreamLost if another server answers, and
        NotYet if the chunk can be read later.
        """
        tries = Retry(None, steady(PAUSE_S), tries_max=TRIES_MAX)
        while True:
            try:
                with self._source.errors():
                    return self._try(database, table, cursor, reached, committed, keys)
            except (_Again, NotYet) as reason:
                if tries.pause_blocking():
                    continue
                if isinstance(reason, NotYet):
                    raise
                raise BinlogError(
                    f"{database}.{table} changes too often: no chunk of it could be read"
                ) from None
            except Unsuitable:
                raise
            except BaseException:
                self.close()
                raise

    def estimate(self, database: str, table: str) -> int:
        """Returns the server's estimate of the number of rows; raises CommandError."""
        with self._source.connect() as connection, self._source.errors():
            return self._source.estimate(connection, database, table)

    def _try(
        self,
        database: str,
        table: str,
        cursor: Cursor | None,
        reached: Position,
        committed: Set[str],
        keys: KeyRange | None,
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
                raise StreamLost("another server answers on the connection that reads tables")
        connection, flavour = self._connection, self._flavour
        assert flavour is not None
        if not flavour.has_reached(connection, reached, committed):
            raise NotYet
        is_held = False
        with connection.cursor() as query:
            query.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            try:
                # This locks the definition until the end of the transaction.
                query.execute(f"SELECT 1 FROM {quoted_name(database)}.{quoted_name(table)} LIMIT 0", ())
                moment = flavour.moment(connection, reached)
                if moment is None:
                    raise NotYet
                definition = self._source.definition(connection, database, table)
                if definition.is_keyless:
                    is_held = True
                    return self._whole(database, table, moment, definition)
                last = cursor.last if cursor is not None and cursor.key == definition.key else ()
                limit = self._limits.get((database, table), self._chunk_rows)
                statement, values = chunk_query(database, table, definition, last, limit, keys)
                found, is_whole = self._rows(statement, values)
            except pymysql.MySQLError as error:
                code = error.args[0] if error.args else 0
                if code in TABLE_CHANGED:
                    raise _Again from None
                if code == NO_SUCH_TABLE:
                    return None
                if code in NO_TABLESPACE:
                    raise Unsuitable("its tablespace is discarded or missing") from None
                raise
            finally:
                if connection.open and not is_held:
                    query.execute("COMMIT")
        self._adapt((database, table), len(found), is_whole)
        rows, last = _converted(definition, found, last)
        return Chunk(database, table, moment, definition, rows, last, is_whole and len(rows) < limit)

    def _whole(self, database: str, table: str, moment: Moment, definition: Definition) -> Chunk:
        """Returns all rows of a table without a primary key, in the open transaction.

        There is no order in which a later chunk could continue: equal texts of a collation may differ.
        """
        connection = self._connection
        statement, _ = chunk_query(database, table, definition, (), None)

        def read() -> Iterator[list[Row]]:
            with self._source.errors():
                query = connection.cursor(SSCursor)
                query.execute(statement, ())
                found: list[tuple[Any, ...]] = []
                size = 0
                while (cells := query.fetchone()) is not None:
                    found.append(cells)
                    size += sum(len(cell) for cell in cells if cell is not None)
                    if len(found) >= self._chunk_rows or size > self._chunk_bytes:
                        yield _converted(definition, found, ())[0]
                        found, size = [], 0
                yield _converted(definition, found, ())[0]
                query.close()
            release()

        def release() -> None:
            if self._connection is connection and connection.open:
                with contextlib.suppress(pymysql.MySQLError, OSError), connection.cursor() as query:
                    query.execute("COMMIT")

        return WholeTable(
            database, table, moment, definition, [], (), is_last=True, read=read, release=release
        )

    def _rows(self, statement: str, values: tuple[object, ...]) -> tuple[list[tuple[Any, ...]], bool]:
        """Returns the rows that fit, and whether these are all the rows of the query."""
        found: list[tuple[Any, ...]] = []
        size = 0
        query = self._connection.cursor(SSCursor)
        query.execute(statement, values)
        while (cells := query.fetchone()) is not None:
            found.append(cells)
            size += sum(len(cell) for cell in cells if cell is not None)
            if size > self._chunk_bytes:
                # Closing the cursor properly would read all remaining rows, perhaps gigabytes.
                query._result.unbuffered_active, query.connection = False, None
                self.close()
                return found, False
        query.close()
        return found, True

    def _adapt(self, table: tuple[str, str], rows: int, is_whole: bool) -> None:
        """Asks for fewer rows next time if not all fitted, and for more again if they did."""
        if not is_whole:
            self._limits[table] = max(1, rows - 1)
        elif (limit := self._limits.pop(table, None)) is not None and 2 * limit < self._chunk_rows:
            self._limits[table] = 2 * limit


class NotYet(Exception):
    """The server has not committed everything that is in its binlog yet."""


class _Again(Exception):
    pass


def chunk_query(
    database: str,
    table: str,
    definition: Definition,
    last: tuple[Any, ...],
    rows: int | None,
    keys: KeyRange | None = None,
) -> tuple[str, tuple[object, ...]]:
    """Returns the query for the rows after a key, in key order; for all rows in any order if `rows` is None.

    After the columns it selects the numbers of ENUM and SET columns of the key, which a cursor keeps.
    """
    by_name = {column.name: column for column in definition.columns}
    selected = [_expression(column) for column in definition.columns]
    if rows is None:
        return f"SELECT {', '.join(selected)} FROM {quoted_name(database)}.{quoted_name(table)}", ()
    key = [by_name[name] for name in definition.key]
    selected += [f"{quoted_name(column.name)} + 0" for column in key if column.type in ("enum", "set")]
    statement = f"SELECT {', '.join(selected)} FROM {quoted_name(database)}.{quoted_name(table)}"
    values: list[object] = []
    wheres: list[str] = []
    if last:
        literals = [_literal(column, value) for column, value in zip(key, last, strict=True)]
        names = [quoted_name(column.name) for column in key]
        # The first condition lets the server use the index; the others decide between equal first columns.
        conditions = []
        for depth in range(len(key)):
            equal = [f"{name} = %s" for name in names[:depth]]
            conditions.append(f"({' AND '.join([*equal, f'{names[depth]} > %s'])})")
            values += literals[: depth + 1]
        wheres.append(f"{names[0]} >= %s AND ({' OR '.join(conditions)})")
        values.insert(0, literals[0])
    if keys is not None:
        wheres += keys.conditions()
    if wheres:
        statement += f" WHERE {' AND '.join(wheres)}"
    order = ", ".join(quoted_name(name) for name in definition.key)
    return f"{statement} ORDER BY {order} LIMIT {rows}", tuple(values)


def range_count(connection: Any, database: str, table: str, keys: KeyRange) -> int:
    """Returns the number of rows in a range of keys."""
    statement = f"SELECT COUNT(*) AS found FROM {quoted_name(database)}.{quoted_name(table)}"
    (row,) = rows_of(connection, f"{statement} WHERE {' AND '.join(keys.conditions())}")
    return int(row["found"])


def _expression(column: Column) -> str:
    name = quoted_name(column.name)
    if column.type in ("float", "double"):
        # The server prints a FLOAT with six digits, which do not give its exact value.
        return f"{name} * 1e0"
    if column.type.startswith("bit("):
        return f"CAST({name} AS UNSIGNED)"
    return name


def _literal(column: Column, value: Any) -> object:
    """Returns a value that the server compares as the column's type, not as text or float."""
    return Decimal(value) if column.type.startswith("decimal(") else value


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
