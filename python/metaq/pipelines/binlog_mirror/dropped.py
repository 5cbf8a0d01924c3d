"""Finds the tables that a statement takes away from the source."""

from __future__ import annotations

from metaq.pipelines.binlog_sync.envelope import DdlBarrier
from metaq.pipelines.binlog_sync.reading import ddl


def dropped_tables(barrier: DdlBarrier) -> set[tuple[str, str]]:
    """Returns the named tables that no longer exist after a statement: dropped ones, and old names."""
    statement = ddl.parse(barrier.statement, barrier.database)
    if ddl.drops(barrier.statement):
        return set(barrier.names)
    # A chain such as `a TO b, c TO a` gives a name to another table.
    gone = {old for old, _ in statement.renamed} - {new for _, new in statement.renamed}
    lowered = {(database.lower(), table.lower()) for database, table in gone}
    # The server may store names in lower case, and then the barrier has them so.
    return set(barrier.names) & (gone | lowered)


def drops_database(barrier: DdlBarrier) -> bool:
    return barrier.action == str(ddl.Kind.DATABASE)
