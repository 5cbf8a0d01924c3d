"""Moves a batch from its staging table to the mirror, in one transaction.

If the database refuses rows, they are found by halving the batch: each half that is accepted stays, and a
half that is refused is halved again. So one bad row of a large batch costs about as much as the batch again.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import Final

from metaq.pipelines.binlog_mirror.columns import KEY, SEQUENCE
from metaq.pipelines.binlog_mirror.connection import Connection
from metaq.pipelines.binlog_mirror.dialects import Dialect, named
from metaq.pipelines.binlog_mirror.errors import DatabaseError
from metaq.pipelines.binlog_mirror.jdbc_schema import ID, QUARANTINE, TABLES, TOMBSTONES, full_name
from metaq.pipelines.binlog_mirror.notes import TableName
from metaq.pipelines.binlog_mirror.refusals import Refusal, RefusedRow
from metaq.pipelines.remarks import REMARK

_log = logging.getLogger(__name__)
NUL: Final = "the text contains NUL"
REFUSED_COLUMNS: Final = ("column_name", "value", "reason", "row")
"""Columns of a staging table that only refused rows have."""

Span = tuple[str, str]
"""A range of ids, from the first one up to, but without, the second one; empty for no bound."""


@dataclass(slots=True)
class StagedBatch:
    """A batch in its staging table, and the mirror that it belongs to."""

    connection: Connection
    dialect: Dialect
    name: TableName
    table_id: str
    columns: dict[str, str]
    stage: str
    quarantines: bool
    """Whether refused rows go to the quarantine; otherwise the first one is an error."""
    _select: str = field(default="SELECT", init=False)
    _guilty: str = field(default="", init=False)
    """The column that was refused last. It is tried first, because the next row often fails there too."""

    def apply(self, query_id: str, batch_id: int) -> int:
        """Applies what is newer than the mirror, under a lock on the table's record.

        Returns the number of rows that went to the quarantine. Raises RefusedRow, DatabaseError.
        """
        self._remove_old()
        deleted = f'{{s}}."id" = {{t}}."{ID}" AND {{s}}."deleted" = 1'
        self._execute(self.dialect.delete_joined(self._table, self.stage, deleted))
        for refusal in self._first_refused():
            raise RefusedRow(refusal)
        self._replace(("", ""))
        refused = self._move_refused()
        self._settle()
        self._execute(
            f'UPDATE {TABLES} SET "app" = ?, "batch" = ? WHERE "id" = ?', query_id, batch_id, self.table_id
        )
        return refused

    @property
    def _table(self) -> str:
        return full_name(self.name)

    def _execute(self, statement: str, *parameters: str | int) -> None:
        self.connection.execute(statement, *parameters)

    def _remove_old(self) -> None:
        """Removes changes from the staging table that are below the floor or not newer than the mirror."""
        ((floor,),) = self.connection.query(
            f'SELECT "floor" FROM {TABLES} WHERE "id" = ? FOR UPDATE', self.table_id
        )
        joined, stage = self.dialect.delete_joined, self.stage
        self._execute(f'DELETE FROM {stage} WHERE "seq" < ?', str(floor or ""))
        newer = f'{{s}}."{ID}" = {{t}}."id" AND {{s}}."{SEQUENCE}" >= {{t}}."seq"'
        self._execute(joined(stage, self._table, newer))
        newer = f'{self._own("s")} AND {{s}}."id" = {{t}}."id" AND {{s}}."seq" >= {{t}}."seq"'
        self._execute(joined(stage, TOMBSTONES, newer))
        ((rows, ids),) = self.connection.query(f'SELECT COUNT(*), COUNT(DISTINCT "id") FROM {stage}')
        if rows != ids:
            # A task that Spark retried has written its rows twice.
            self._select = "SELECT DISTINCT"

    def _own(self, side: str) -> str:
        return f"{{{side}}}.\"table_id\" = '{self.table_id}'"

    # Rows

    def _replace(self, span: Span) -> None:
        """Replaces the rows of a span of ids; marks those that the database refuses. Raises RefusedRow."""
        try:
            with self.connection.attempt():
                self._put(span, self.columns)
        except DatabaseError as error:
            if not error.is_refusal:
                raise
            failure = error
        else:
            return
        ((count,),) = self.connection.query(
            f'SELECT COUNT(DISTINCT "id") FROM {self.stage} WHERE {self._to_insert(span)}'
        )
        if int(count or 0) <= 1:
            self._mark(span, failure)
            return
        ((middle,),) = self.connection.query(
            f'SELECT DISTINCT "id" FROM {self.stage} WHERE {self._to_insert(span)}'
            f' ORDER BY "id" LIMIT 1 OFFSET {int(count or 0) // 2}'
        )
        self._replace((span[0], str(middle)))
        self._replace((str(middle), span[1]))

    def _to_insert(self, span: Span, prefix: str = "") -> str:
        """Returns the condition for the rows of a span that can be inserted."""
        # Ids have only hexadecimal digits, so they need no quoting.
        parts = [f'{prefix}"deleted" = 0', f'{prefix}"reason" IS NULL']
        parts += [f"{prefix}\"id\" >= '{span[0]}'"] if span[0] else []
        parts += [f"{prefix}\"id\" < '{span[1]}'"] if span[1] else []
        return " AND ".join(parts)

    def _insert(self, span: Span, columns: dict[str, str]) -> None:
        names = ", ".join(named(name) for name in (ID, KEY, SEQUENCE, *columns))
        numbers = {name: number for number, name in enumerate(self.columns)}
        values = [self.dialect.read(f'"c{numbers[name]}"', kind) for name, kind in columns.items()]
        selected = ", ".join(('"id"', '"key"', '"seq"', *values))
        self._execute(
            f"INSERT INTO {self._table} ({names}) {self._select} {selected}"
            f" FROM {self.stage} WHERE {self._to_insert(span)}"
        )

    def _mark(self, span: Span, failure: DatabaseError) -> None:
        """Marks the only row of a span as refused; raises RefusedRow if refused rows are an error."""
        texts = ", ".join(f'"c{number}"' for number in range(len(self.columns)))
        found = self.connection.query(
            f'SELECT "id", "key", {texts} FROM {self.stage} WHERE {self._to_insert(span)} LIMIT 1'
        )
        if not found:
            raise failure
        (row_id, key, *values) = found[0]
        row = {name: value for name, value in zip(self.columns, values, strict=True) if value is not None}
        column, failure = self._guilty_column(span, row, failure)
        refusal = Refusal(
            ".".join(self.name),
            str(key),
            column,
            json.dumps(row[column], ensure_ascii=False) if column else "",
            str(failure),
        )
        if not self.quarantines:
            raise RefusedRow(refusal)
        self._execute(
            f'UPDATE {self.stage} SET "column_name" = ?, "value" = ?, "reason" = ?, "row" = ? WHERE "id" = ?',
            *(column, refusal.value, refusal.reason, json.dumps(row, ensure_ascii=False), str(row_id)),
        )

    def _guilty_column(
        self, span: Span, row: dict[str, str], failure: DatabaseError
    ) -> tuple[str, DatabaseError]:
        """Returns the column that the database refuses on its own, and its error; an empty name if the row is
        refused as a whole."""
        if self._tried(span, {}) is not None:
            return "", failure
        for name in sorted(row, key=lambda name: name != self._guilty):
            if (found := self._tried(span, {name: self.columns[name]})) is not None:
                self._guilty = name
                return name, found
        return "", failure

    def _put(self, span: Span, columns: dict[str, str]) -> None:
        """Deletes the rows of a span of ids and inserts their newest state, with these columns."""
        join = f'{{s}}."id" = {{t}}."{ID}" AND {self._to_insert(span, "{s}.")}'
        self._execute(self.dialect.delete_joined(self._table, self.stage, join))
        self._insert(span, columns)

    def _tried(self, span: Span, columns: dict[str, str]) -> DatabaseError | None:
        """Returns the error for a row that has only some columns; leaves the mirror as it was."""
        self._execute("SAVEPOINT trial")
        try:
            with self.connection.attempt():
                self._put(span, columns)
            found = None
        except DatabaseError as error:
            if not error.is_refusal:
                raise
            found = error
        self._execute("ROLLBACK TO SAVEPOINT trial")
        return found

    # Refused rows

    def _first_refused(self) -> list[Refusal]:
        """Returns a row that was refused before it was staged, if refused rows are an error."""
        if self.quarantines:
            return []
        found = self.connection.query(
            f'SELECT "key", "column_name", "value", "reason" FROM {self.stage}'
            ' WHERE "reason" IS NOT NULL ORDER BY "id" LIMIT 1'
        )
        return [Refusal(".".join(self.name), *(str(part or "") for part in parts)) for parts in found]

    def _move_refused(self) -> int:
        """Moves refused rows to the quarantine, unless it has newer changes of them; returns their number."""
        ((count,),) = self.connection.query(
            f'SELECT COUNT(DISTINCT "id") FROM {self.stage} WHERE "reason" IS NOT NULL'
        )
        if not int(count or 0):
            return 0
        joined = self.dialect.delete_joined
        older = f'{self._own("t")} AND {{s}}."id" = {{t}}."id" AND {{s}}."reason" IS NOT NULL'
        self._execute(joined(QUARANTINE, self.stage, f'{older} AND {{s}}."seq" >= {{t}}."seq"'))
        newer = f'{self._own("s")} AND {{s}}."id" = {{t}}."id" AND {{t}}."reason" IS NOT NULL'
        self._execute(joined(self.stage, QUARANTINE, newer))
        listed = ", ".join(f'"{name}"' for name in ("id", "key", "seq", *REFUSED_COLUMNS))
        self._execute(
            f'INSERT INTO {QUARANTINE} ("table_id", "database_name", "table_name", {listed})'
            f" SELECT DISTINCT '{self.table_id}', {self._literals()}, {listed}"
            f' FROM {self.stage} WHERE "reason" IS NOT NULL'
        )
        self._execute(f'DELETE FROM {self.stage} WHERE "reason" IS NOT NULL')
        _log.warning(
            "%s: %s rows are refused and go to the quarantine", ".".join(self.name), count, extra=REMARK
        )
        return int(count or 0)

    def _literals(self) -> str:
        return ", ".join("'" + part.replace("'", "''") + "'" for part in self.name)

    def _settle(self) -> None:
        """Notes deleted rows, and takes rows out of the quarantine that have changed since."""
        joined = self.dialect.delete_joined
        same = f'{self._own("t")} AND {{s}}."id" = {{t}}."id"'
        self._execute(joined(TOMBSTONES, self.stage, same))
        self._execute(
            f'INSERT INTO {TOMBSTONES} ("table_id", "id", "seq")'
            f' SELECT DISTINCT \'{self.table_id}\', "id", "seq" FROM {self.stage} WHERE "deleted" = 1'
        )
        self._execute(joined(QUARANTINE, self.stage, f'{same} AND {{s}}."seq" >= {{t}}."seq"'))
