"""Which places are safe to begin at: those before which everything is acknowledged."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from metaq.pipelines.binlog_sync.sequence import Place
from metaq.pipelines.binlog_sync.state import State, TableState


class Position(NamedTuple):
    """A place between two transactions, as file and position and as GTIDs."""

    place: Place
    gtid: str


@dataclass(slots=True)
class _Boundary:
    number: int
    """How many changes were put before it."""
    position: Position
    tables: dict[str, TableState]
    """What became different since the boundary before."""


@dataclass(slots=True)
class Boundaries:
    """Places that the reader has passed, until they are safe."""

    state: State
    _open: deque[_Boundary] = field(default_factory=deque)
    _tables: dict[str, TableState] = field(default_factory=dict)

    def changed(self, name: str, table: TableState) -> None:
        """Counts from the next boundary on."""
        self._tables[name] = table

    def passed(self, number: int, position: Position) -> None:
        """The reader is between two transactions, after so many changes."""
        if self._open and self._open[-1].number == number:
            last = self._open[-1]
            last.position = position
            last.tables.update(self._tables)
        else:
            self._open.append(_Boundary(number, position, dict(self._tables)))
        self._tables.clear()

    def settle(self, lowest_open: int) -> bool:
        """Takes into the state what is before the change with that number; whether there was anything."""
        settled = False
        while self._open and self._open[0].number < lowest_open:
            boundary = self._open.popleft()
            self.state.place, self.state.gtid = boundary.position
            self.state.tables.update(boundary.tables)
            settled = True
        return settled
