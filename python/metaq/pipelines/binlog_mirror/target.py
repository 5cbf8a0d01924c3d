"""The interface of a target: what a batch needs of the store that holds the mirrors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pyspark.sql import DataFrame

from metaq.pipelines.binlog_mirror.columns import Evolution
from metaq.pipelines.binlog_mirror.decode import ValueConverter
from metaq.pipelines.binlog_mirror.notes import Notes, TableName


class MirrorTable(Protocol):
    """An existing table, with its notes and columns as they are on disk."""

    notes: Notes
    columns: dict[str, str]
    """The columns of the source, with Spark's names for their types."""
    convert: ValueConverter
    """Converts the texts of messages to the values that `merge` takes."""

    def save_notes(self) -> None:
        """Saves the notes, before the rows of the same batch."""

    def evolve(self, evolution: Evolution) -> None:
        """Changes the columns. If the run ends in between, the next one completes it."""

    def drop_below_floor(self) -> None:
        """Deletes rows and tombstones below the floor."""

    def merge(self, changes: DataFrame, query_id: str, batch_id: int) -> None:
        """Applies one change for each key if its sequence number is larger than the stored one.

        Applies all changes or none; applying them again changes nothing. The ids of the query and the batch
        are only recorded for people.
        """

    def rows(self) -> DataFrame:
        """Returns the rows with the source's columns and their key."""


class Target(Protocol):
    """The store of all mirrors. Its methods raise MirrorError, or the errors of Spark."""

    def tables(self) -> list[TableName]:
        """Returns all tables that have a mirror."""

    def table_names(self, database: str) -> list[str]:
        """Returns the mirrored tables of a database."""

    def open(self, name: TableName) -> MirrorTable | None:
        """Returns the mirror of a table; None if there is none yet."""

    def create(self, name: TableName, notes: Notes, columns: Mapping[str, str]) -> MirrorTable:
        """Creates a mirror, also if a previous run ended in the middle of that."""
