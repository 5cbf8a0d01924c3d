"""Sequence numbers of changes: fixed-width text whose order is the order in which the source committed.

    era      file     position row
    6919a3c0-00000003-0000303a-00000007      each eight hexadecimal digits

- `era` grows whenever files and positions begin anew: with the first start, and when another server or
  another series of binlog files answers. It is a time in seconds, so that one that was forgotten is not used
  again.
- `file` and `position` are where the *transaction* begins in the binlog. A server begins no transaction
  beyond `max_binlog_size`, which is 1 GiB at most, so eight digits are enough even where one transaction
  makes a file larger than 4 GiB.
- `row` counts the changes of the transaction from 1 on. Row 0 is what was read from the tables at that
  place, between the transaction before it and the one after it.

Reading the same binlog again gives the same numbers, so what is sent twice can be told by them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from metaq.errors import MetaqError

WIDTH: Final = 8
ROW_MAX: Final = 16**WIDTH - 1
_FILE: Final = re.compile(r"(.+)\.(\d+)")


class BinlogError(MetaqError):
    """The binlog holds, or lacks, something that keeps the pipeline from going on."""


class Place(NamedTuple):
    """A place in the binlog of one server."""

    file: str
    position: int

    @property
    def order(self) -> tuple[int, int]:
        """What places are compared by; raises BinlogError."""
        return file_number(self.file), self.position

    def __str__(self) -> str:
        return f"{self.file}:{self.position}"


NOWHERE: Final = Place("none.0", 0)
"""Before every place, of a server whose files are not known yet."""


@lru_cache(64)
def file_number(file: str) -> int:
    """The number at the end of the name of a binlog file; raises BinlogError."""
    found = _FILE.fullmatch(file)
    if found is None or int(found[2]) > ROW_MAX:
        raise BinlogError(f"{file} is no name of a binlog file: it does not end in a number")
    return int(found[2])


def file_series(file: str) -> str:
    """The name without the number."""
    found = _FILE.fullmatch(file)
    return file if found is None else found[1]


def transaction_prefix(era: int, place: Place) -> str:
    """What the sequence numbers of a transaction that begins there have in common; raises BinlogError."""
    number, position = place.order
    if not 0 <= era <= ROW_MAX or not 0 <= position <= ROW_MAX:
        raise BinlogError(f"era {era} and position {position} are out of their limits")
    return f"{era:08x}-{number:08x}-{position:08x}-"


def sequence(era: int, place: Place, row: int) -> str:
    """Raises BinlogError."""
    if not 0 <= row <= ROW_MAX:
        raise BinlogError(f"a transaction of more than {ROW_MAX} rows cannot be numbered")
    return f"{transaction_prefix(era, place)}{row:08x}"


def xid_text(global_id: bytes, branch: bytes, format_id: int) -> str:
    """The id of an XA transaction, as it is compared."""
    return f"x'{global_id.hex()}',x'{branch.hex()}',{format_id}"
