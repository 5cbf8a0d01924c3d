"""Errors of binlog-mirror."""

from __future__ import annotations

from typing import Final

from metaq.errors import MetaqError


class MirrorError(MetaqError):
    """The mirror cannot be made equal to its source."""


class Unmirrored(MirrorError):
    """The target cannot hold one table. It is left out, and all others go on."""


_REFUSALS: Final = ("22", "23", "44", "45", "P0")
"""Classes of SQLSTATE that concern the values of a row: data, constraints, views with a check, triggers."""
_REFUSAL_CODES: Final = frozenset((1264, 1265, 1292, 1366, 1367, 1406, 4025))
"""Errors of MariaDB and MySQL about values, some of which have the state of unknown errors."""
TOO_LARGE_FOR_INDEX: Final = "54000"
_TABLE_STATES: Final = frozenset(("42602", "42622", "42701", "42939", "54000", "54011"))
"""States of PostgreSQL: names that it does not allow, reserved schemas, too many columns."""
_TABLE_CODES: Final = frozenset((1059, 1060, 1102, 1103, 1117, 1118, 1166))
"""Errors of MariaDB and MySQL: names that they do not allow, too many columns, too large a row."""


class DatabaseError(MirrorError):
    """The target database reports an error."""

    def __init__(self, message: str, *, hint: str = "", state: str = "", number: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.state = state
        """The SQLSTATE; empty if it is unknown."""
        self.number = number
        """The database's own number of the error."""

    @property
    def is_refusal(self) -> bool:
        """Whether the database refuses values of a row, so that another row may be fine."""
        return self.state[:2] in _REFUSALS or self.number in _REFUSAL_CODES

    @property
    def is_about_table(self) -> bool:
        """Whether the database refuses the names or columns of a table, so that another table may be fine.

        Missing rights do not count. They end the run, because the operator must grant them.
        """
        return self.state in _TABLE_STATES or self.number in _TABLE_CODES
