"""Finds the tables that a statement empties, or takes away from the source."""

from __future__ import annotations

from metaq.pipelines.binlog_sync.envelope import DdlBarrier
from metaq.pipelines.binlog_sync.reading import ddl


def empties(barrier: DdlBarrier) -> bool:
    """Returns whether the tables of a statement, or of its database, lose all rows that were sent."""
    if barrier.empties is None:
        # Older messages leave that to their readers.
        return ddl.parse(barrier.statement, barrier.database).empties
    return barrier.empties


def dropped_tables(barrier: DdlBarrier) -> set[tuple[str, str]]:
    """Returns the named tables that no longer exist after a statement: dropped ones, and old names."""
    if barrier.empties is not None:
        return set(barrier.names) & set(barrier.gone)
    gone = set(ddl.parse(barrier.statement, barrier.database).gone)
    lowered = {(database.lower(), table.lower()) for database, table in gone}
    # The server may store names in lower case, and then the barrier has them so.
    return set(barrier.names) & (gone | lowered)


def drops_database(barrier: DdlBarrier) -> bool:
    return barrier.action == str(ddl.Kind.DATABASE)
