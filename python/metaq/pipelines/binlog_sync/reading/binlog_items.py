"""The items that a stream of the binlog yields."""

from __future__ import annotations

from dataclasses import dataclass

from metaq.pipelines.binlog_sync.coordinates import Coordinates
from metaq.pipelines.binlog_sync.reading.sql_tokens import USUAL, Dialect
from metaq.pipelines.binlog_sync.values.rows import Images, TableReader


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction, or a statement without one, begins."""

    coordinates: Coordinates
    gtid: str
    stands_alone: bool
    """It is one statement, and no commit follows."""
    is_xa: bool = False
    """It may end when it is prepared; a later statement commits it or rolls it back."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Changes of rows of one table."""

    reader: TableReader
    operation: str
    images: Images
    committed_s: int


@dataclass(frozen=True, slots=True)
class Query:
    """A statement."""

    database: str
    text: str
    dialect: Dialect = USUAL


@dataclass(frozen=True, slots=True)
class Commit:
    """The transaction has ended."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """An XA transaction was prepared."""

    xid: str
    is_committed: bool
    """It was committed at the same time, in one phase."""


@dataclass(frozen=True, slots=True)
class Idle:
    """The server has nothing more to send for now."""


Item = Begin | Rows | Query | Commit | Prepared | Idle


def xid_text(global_id: bytes, branch: bytes, format_id: int) -> str:
    """Returns the id of an XA transaction in the form that all modules compare."""
    return f"x'{global_id.hex()}',x'{branch.hex()}',{format_id}"
