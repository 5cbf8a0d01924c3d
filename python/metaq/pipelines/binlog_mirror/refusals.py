"""Rows that a target refuses, and the quarantine that they go to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from metaq.pipelines.binlog_mirror.errors import MirrorError

QUARANTINE_COLUMNS: Final = (
    "database_name",
    "table_name",
    "key",
    "seq",
    "column_name",
    "value",
    "reason",
    "row",
)
"""The columns of the quarantine. `value` and `row` are JSON, because the text itself may be refused."""
VALUE_CHARACTERS_MAX: Final = 200
"""The length up to which an error shows a value."""
LISTED_MAX: Final = 100_000
"""The number of rows in quarantine that are listed for a table."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that the target refuses."""

    table: str
    key: str
    """The values of the primary key, as a JSON array."""
    column: str
    """The column whose value is refused; empty if the row as a whole is."""
    value: str
    """The value as JSON; empty without a column."""
    reason: str

    def __str__(self) -> str:
        where = f"row {self.key} of {self.table}"
        if not self.column:
            return f"{where} is refused: {self.reason}"
        value = self.value
        if len(value) > VALUE_CHARACTERS_MAX:
            value = f"{value[:VALUE_CHARACTERS_MAX]}… ({len(value):,} characters)"
        return f"column {self.column} of {where} is refused: {self.reason}; its value is {value}"

    @property
    def summary(self) -> str:
        return f"column {self.column}: {self.reason}" if self.column else self.reason


class RefusedRow(MirrorError):
    """The target refuses a row, and the policy of its table is not to put it into the quarantine."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(
            str(refusal),
            hint=f'to go on, set refused = "quarantine" or "skip" in [tables."{refusal.table}"]; a later'
            " change of the row takes it out of the quarantine",
        )
        self.refusal = refusal
