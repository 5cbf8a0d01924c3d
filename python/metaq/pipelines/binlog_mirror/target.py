"""The interface of a target: what a batch needs of the store that holds the mirrors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from pyspark.sql import DataFrame

from metaq.pipelines.binlog_mirror.columns import Evolution
from metaq.pipelines.binlog_mirror.decode import ValueConverter
from metaq.pipelines.binlog_mirror.left_out import LeftOut
from metaq.pipelines.binlog_mirror.notes import Notes, TableName
from metaq.pipelines.binlog_mirror.refusals import Refusal
from metaq.pipelines.binlog_sync.envelope import RangeBarrier


class MirrorTable(Protocol):
    """An existing table, with its notes and columns as they are on disk."""

    name: TableName
    notes: Notes
    columns: dict[str, str]
    """The columns of the source, with Spark's names for their types."""
    convert: ValueConverter
    """Converts the texts of messages to the values that `merge` takes."""

    def save_notes(self) -> None:
        """Saves the notes, before the rows of the same batch."""

    def evolve(self, evolution: Evolution) -> None:
        """Changes the columns. If the run ends in between, the next one completes it. Raises Unmirrored."""

    def drop_below_floor(self) -> None:
        """Deletes rows and tombstones below the floor."""

    def drop_range(self, barrier: RangeBarrier) -> None:
        """Deletes rows of a range of keys that were not read again, and keeps tombstones for them. Those in
        the quarantine are forgotten."""

    def ensure_index(self) -> None:
        """Makes queries by the source's primary key fast, if the store has indexes."""

    def merge(self, changes: DataFrame, query_id: str, batch_id: int, *, quarantines: bool = False) -> int:
        """Applies one change for each key if its sequence number is larger than the stored one.

        Applies all changes or none; applying them again changes nothing. The ids of the query and the batch
        are only recorded for people. Rows that the store refuses go to the quarantine, and their number is
        returned; if `quarantines` is false, the first one is raised as RefusedRow. A newer change of a row
        takes it out of the quarantine.
        """

    def quarantined(self) -> tuple[int, list[Refusal]]:
        """Returns the number of rows in the quarantine, and at most `LISTED_MAX` of them."""

    def archive(self, sequence: str) -> None:
        """Copies the rows with smaller sequence numbers to a place for dropped tables; may be repeated."""

    def discard(self) -> None:
        """Deletes the mirror and everything that is known about it; may be repeated."""

    def rows(self) -> DataFrame:
        """Returns the rows with the source's columns and their key."""


class Target(Protocol):
    """The store of all mirrors. Its methods raise MirrorError, or the errors of Spark."""

    def is_begun(self) -> bool:
        """Returns whether there is, or was, any mirror: all of them may have been dropped since."""

    def native_types(self) -> frozenset[str]:
        """Returns the types of columns that the store has in addition to those of Spark."""

    def tables(self) -> list[TableName]:
        """Returns all tables that have a mirror."""

    def table_names(self, database: str) -> list[str]:
        """Returns the mirrored tables of a database."""

    def require(self, name: TableName, columns: Collection[str]) -> None:
        """Raises Unmirrored if the store allows no table or no columns of these names."""

    def left_out(self) -> dict[TableName, LeftOut]:
        """Returns the tables that have no mirror because the store cannot hold them."""

    def save_left_out(self, tables: Mapping[TableName, LeftOut]) -> None:
        """Replaces what `left_out` returns, durably."""

    def open(self, name: TableName) -> MirrorTable | None:
        """Returns the mirror of a table; None if there is none yet."""

    def create(self, name: TableName, notes: Notes, columns: Mapping[str, str]) -> MirrorTable:
        """Creates a mirror, also if a previous run ended in the middle of that. Raises Unmirrored."""
