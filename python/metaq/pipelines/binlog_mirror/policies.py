"""The policies of a table: for rows that the target refuses, and for its mirror when the source drops it."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

STOP, QUARANTINE, SKIP = "stop", "quarantine", "skip"
REFUSED: Final = (STOP, QUARANTINE, SKIP)
"""If the target refuses a row: end the run, put the row into the quarantine, or leave the table out."""
EMPTY, KEEP, DROP, ARCHIVE = "empty", "keep", "drop", "archive"
DROPPED: Final = (EMPTY, KEEP, DROP, ARCHIVE)
"""If the source drops a table, its mirror loses its rows, stays as it is, is dropped, or is archived."""


@dataclass(frozen=True, slots=True)
class TablePolicy:
    """The policies of one table."""

    refused: str = STOP
    dropped: str = EMPTY


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of all tables: those of [mirror], and sections for tables whose names match a pattern."""

    default: TablePolicy = TablePolicy()
    sections: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)

    def of(self, name: tuple[str, str]) -> TablePolicy:
        """Returns the policies of a table: the first matching section that has a key decides it."""
        full_name = ".".join(name)
        matching = [
            values for pattern, values in self.sections.items() if fnmatch.fnmatchcase(full_name, pattern)
        ]

        def choose(key: str, default: str) -> str:
            return next((value for values in matching if (value := values[key]) is not None), default)

        return TablePolicy(choose("refused", self.default.refused), choose("dropped", self.default.dropped))
