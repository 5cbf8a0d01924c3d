"""Saves how far a run has come: the last position before which brokers have acknowledged every change."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from metaq.pipelines.binlog_sync.coordinates import Position
from metaq.pipelines.binlog_sync.writing.outbox import Outbox
from metaq.pipelines.binlog_sync.writing.state import StateFile, SyncState, TableState


@dataclass(slots=True)
class _Boundary:
    change_count: int
    """The number of changes that were put before it."""
    position: Position
    tables: dict[str, TableState]
    """The tables that have changed since the previous boundary."""


@dataclass(slots=True)
class Boundaries:
    """Positions that the reader has passed and whose changes are not all acknowledged yet."""

    state: SyncState
    _open: deque[_Boundary] = field(default_factory=deque)
    _tables: dict[str, TableState] = field(default_factory=dict)

    def table_changed(self, name: str, table: TableState) -> None:
        """Records a table with the next boundary."""
        self._tables[name] = table

    def passed(self, change_count: int, position: Position) -> None:
        """Records that the reader is between two transactions, after this number of changes."""
        if self._open and self._open[-1].change_count == change_count:
            last = self._open[-1]
            last.position = position
            last.tables.update(self._tables)
        else:
            self._open.append(_Boundary(change_count, position, dict(self._tables)))
        self._tables.clear()

    def advance(self, lowest_open: int) -> bool:
        """Moves the state to the last boundary before this change; returns whether it moved."""
        has_moved = False
        while self._open and self._open[0].change_count < lowest_open:
            boundary = self._open.popleft()
            self.state.coordinates, self.state.gtid = boundary.position
            self.state.tables.update(boundary.tables)
            has_moved = True
        return has_moved


class Checkpoint:
    """Keeps the state file up to date with the acknowledgements."""

    def __init__(
        self, state: SyncState, file: StateFile, outbox: Outbox, save_interval_s: float = 0.0
    ) -> None:
        self.state = state
        self.path = file.path
        self._file = file
        self._outbox = outbox
        self._save_interval_s = save_interval_s
        self._next_save = 0.0
        self._boundaries = Boundaries(state)

    def table_changed(self, name: str, table: TableState) -> None:
        """Records a table with the next position."""
        self._boundaries.table_changed(name, table)

    def passed(self, position: Position) -> None:
        """Records a position between two transactions."""
        self._boundaries.passed(self._outbox.put_count, position)

    def wait_for_acknowledgements(self) -> None:
        """Waits until the state is at the last position that was passed; raises Stopped, MetaqError."""
        self._outbox.wait_all()
        self._boundaries.advance(self._outbox.lowest_open())

    def save_if_due(self) -> None:
        """Saves the state if the interval has passed; raises CommandError."""
        now = time.monotonic()
        if now >= self._next_save:
            self._next_save = now + self._save_interval_s
            self.save()

    def save(self, *, always: bool = False) -> None:
        """Saves the state if it has moved; raises CommandError."""
        if self._boundaries.advance(self._outbox.lowest_open()) or always:
            self._file.save(self.state)
