"""Positions in a binlog, as file coordinates and as GTIDs."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from metaq.pipelines.binlog_sync.errors import BinlogError

NUMBER_MAX: Final = 2**32 - 1
_FILE: Final = re.compile(r"(.+)\.(\d+)")


class Coordinates(NamedTuple):
    """A byte position in a binlog file of one server."""

    file: str
    position: int

    @property
    def order(self) -> tuple[int, int]:
        """Returns a sort key; raises BinlogError if the file name has no number."""
        return file_number(self.file), self.position

    def __str__(self) -> str:
        return f"{self.file}:{self.position}"


NOWHERE: Final = Coordinates("none.0", 0)
"""Coordinates that sort before all others, for a server whose files are not known yet."""


class Position(NamedTuple):
    """A position between two transactions, as coordinates and as GTIDs."""

    coordinates: Coordinates
    gtid: str


@lru_cache(64)
def file_number(file: str) -> int:
    """Returns the number at the end of a binlog file's name; raises BinlogError."""
    found = _FILE.fullmatch(file)
    if found is None or int(found[2]) > NUMBER_MAX:
        raise BinlogError(f"{file} is not a valid name of a binlog file: it must end in a number")
    return int(found[2])
