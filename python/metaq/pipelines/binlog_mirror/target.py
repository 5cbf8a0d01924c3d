"""Where mirrors are: what a batch needs of a place that holds tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pyspark.sql import DataFrame

from metaq.pipelines.binlog_mirror.columns import Evolution
from metaq.pipelines.binlog_mirror.decode import Value
from metaq.pipelines.binlog_mirror.notes import Notes, TableName


class MirrorTable(Protocol):
    """A table that is there, with its notes and columns as they are on disk."""

    notes: Notes
    columns: dict[str, str]
    """Of the source alone, with their types as Spark calls them."""
    value: Value
    """What it takes for a column."""

    def save_notes(self) -> None:
        """Before rows of the batch that they come from."""

    def evolve(self, evolution: Evolution) -> None:
        """Where it ends in between, the next run finds what is left to do."""

    def drop_below_floor(self) -> None:
        """Rows that do not count any more go, and so do tombstones."""

    def merge(self, changes: DataFrame, app: str, version: int) -> None:
        """One change for each key, which counts if its number is larger than that of what is there. All of
        them or none; the same ones again change nothing. Query and batch are for people: nothing is decided
        by them."""

    def rows(self) -> DataFrame:
        """As the source has them, beside their key."""


class Target(Protocol):
    """Raises MirrorError, or what Spark raises."""

    def tables(self) -> list[TableName]:
        """All that have a mirror."""

    def table_names(self, database: str) -> list[str]:
        """Those of a database."""

    def open(self, name: TableName) -> MirrorTable | None:
        """None where there is none yet."""

    def create(self, name: TableName, notes: Notes, columns: Mapping[str, str]) -> MirrorTable:
        """Also where a run before has ended in the middle of it."""
