"""The tables of the topic that the target cannot hold, for instance because a name is too long.

A table whose mirror exists keeps this in its notes (`Notes.skip`). The others are listed here. The target
stores the list, so that a mirror that is created later knows which changes it lacks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from metaq.pipelines.binlog_mirror.notes import TableName
from metaq.pipelines.remarks import REMARK

_log = logging.getLogger(__name__)
TABLES_MAX: Final = 10_000
"""The number of tables that are listed: whoever may write to the topic can invent any number."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A table without a mirror."""

    sequence: str
    """The largest sequence number of what was left out."""
    reason: str


class LeftOutTables:
    """The list, as the target stores it. `save` must be called before a batch is done."""

    def __init__(
        self,
        tables: Mapping[TableName, LeftOut],
        save: Callable[[Mapping[TableName, LeftOut]], None],
    ) -> None:
        self._tables = dict(tables)
        self._save = save
        self._is_changed = False

    def get(self, name: TableName) -> LeftOut | None:
        return self._tables.get(name)

    def names(self) -> list[str]:
        return [".".join(name) for name in self._tables]

    def add(self, name: TableName, sequence: str, reason: str) -> None:
        """Notes that changes of a table up to a sequence number are left out."""
        known = self._tables.get(name)
        if known is None:
            _log.warning("%s is left out from now on: %s", ".".join(name), reason, extra=REMARK)
            if len(self._tables) >= TABLES_MAX:
                return
        found = LeftOut(max(sequence, known.sequence if known else ""), known.reason if known else reason)
        if found != known:
            self._tables[name] = found
            self._is_changed = True

    def remove(self, name: TableName) -> None:
        if self._tables.pop(name, None) is not None:
            self._is_changed = True

    def save(self, *, is_first: bool = False) -> None:
        """Stores the list if it has changed, or if it is the first thing that the target stores."""
        if self._is_changed or is_first:
            self._save(self._tables)
            self._is_changed = False
