"""Tracks how far the binlog was read."""

from __future__ import annotations

from metaq.pipelines.binlog_sync.coordinates import Coordinates, Position
from metaq.pipelines.binlog_sync.reading.gtids import gtids_of


class ReadPosition:
    """The position that was reached, and the one to read on from after a lost connection."""

    def __init__(self, flavour: str, start: Position) -> None:
        self.flavour = flavour
        self.move(start)

    def move(self, position: Position) -> None:
        """Continues from another position."""
        self.reached = self.restart = position
        self._gtids = gtids_of(self.flavour, position.gtid)

    def passed(self, coordinates: Coordinates, gtid: str, oldest_open: Position | None) -> None:
        """Records the end of a transaction.

        Reading restarts before the oldest XA transaction that is open (`oldest_open`), because its rows must
        be read again.
        """
        if gtid:
            self._gtids.passed(gtid)
        self.reached = Position(coordinates, str(self._gtids))
        self.restart = oldest_open or self.reached

    def reach(self, coordinates: Coordinates) -> None:
        """Records that everything before these coordinates was passed, without a further transaction."""
        if coordinates.order <= self.reached.coordinates.order:
            return
        before, self.reached = self.reached, Position(coordinates, self.reached.gtid)
        if self.restart == before:
            self.restart = self.reached

    def rewind(self) -> None:
        """Goes back to the position from which the binlog is read again."""
        self.move(self.restart)
