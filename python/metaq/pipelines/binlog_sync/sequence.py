"""Sequence numbers of changes: text that sorts in the order in which the source committed.

    era      file     position row      reading
    6919a3c0-00000003-0000303a-00000007
    6919a3c0-00000003-0000303a-00000000-019dbb7c5e1      eight hexadecimal digits each, and eleven

- `era` grows whenever binlog files and positions start again: at the first start, and when another server or
  another series of binlog files answers. It is a time in seconds, so that an era is never used twice, even if
  the state file was lost.
- `file` and `position` are the coordinates at which the *transaction* begins. A server begins no transaction
  beyond `max_binlog_size`, which is 1 GiB at most. So eight digits are enough, even if one transaction makes
  a file larger than 4 GiB.
- `row` counts the changes of the transaction from 1. Row 0 is used for rows that were read from the tables at
  these coordinates, between the previous transaction and the next one.
- `reading` is there if a table is read again. The binlog may not have moved since it was read the last time,
  and newer rows need larger numbers. It is a time in milliseconds. A text sorts before a longer one that
  begins with it, so these numbers are still below those of the next transaction.

Reading the same binlog again gives the same numbers, so readers recognise a change that was sent twice.
"""

from __future__ import annotations

from typing import Final

from metaq.pipelines.binlog_sync.coordinates import NUMBER_MAX, Coordinates
from metaq.pipelines.binlog_sync.errors import BinlogError

ROW_MAX: Final = NUMBER_MAX


def transaction_prefix(era: int, coordinates: Coordinates) -> str:
    """Returns the part that all sequence numbers of one transaction share; raises BinlogError."""
    number, position = coordinates.order
    if not 0 <= era <= NUMBER_MAX or not 0 <= position <= NUMBER_MAX:
        raise BinlogError(f"era {era} and position {position} must be between 0 and {NUMBER_MAX}")
    return f"{era:08x}-{number:08x}-{position:08x}-"


def sequence_number(era: int, coordinates: Coordinates, row: int) -> str:
    """Returns the number of one change; raises BinlogError."""
    if not 0 <= row <= ROW_MAX:
        raise BinlogError(f"a transaction of more than {ROW_MAX} rows cannot be numbered")
    return f"{transaction_prefix(era, coordinates)}{row:08x}"


def reading_begun(era: int, coordinates: Coordinates, reading: int) -> str:
    """Returns the number at which the reading of a table begins; raises BinlogError."""
    return sequence_number(era, coordinates, 0) + _suffix(reading)


def _suffix(reading: int) -> str:
    return f"-{reading:011x}" if reading else ""


class ChangeCounter:
    """Numbers the changes of one transaction after another."""

    __slots__ = ("_prefix", "_suffix", "row")

    def __init__(self, era: int, coordinates: Coordinates) -> None:
        self.begin(era, coordinates)

    def begin(self, era: int, coordinates: Coordinates, reading: int = 0) -> None:
        """Starts to count from 1 for the transaction at these coordinates; raises BinlogError.

        `reading` is the number of a repeated reading whose rows are sent there.
        """
        self._prefix = transaction_prefix(era, coordinates)
        self._suffix = _suffix(reading)
        self.row = 0

    def next(self) -> str:
        """Returns the number of the next change."""
        self.row += 1
        return f"{self._prefix}{self.row:08x}"

    @property
    def current(self) -> str:
        """Returns the number of the last change."""
        return f"{self._prefix}{self.row:08x}{'' if self.row else self._suffix}"
