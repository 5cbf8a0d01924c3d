"""The file in which a name server remembers for how long brokers have had their places.

After a restart of the name server, the first who registers gets a place. A broker that had the place for
longer wins it back, at once if it has a key (`metaq.nameserver.claims`). Without this file, a stranger who
comes first after a restart could keep the place of a living broker.

The file is a help and holds nothing that anybody waits for: if it is damaged, the name server says so and
starts without it. It is replaced as a whole, at an interval and at the end.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec

from metaq.durable import replace_file
from metaq.nameserver.claims import TENURES_MAX, Tenure

_log = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 8 * 1024 * 1024
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1_024)]


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    place: _Text
    owner: _Text
    source: _Text
    held_ms: Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class TenureFile:
    """The tenures of one name server on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: bytes | None = None
        self._one_at_a_time = threading.Lock()

    def load(self) -> list[Tenure]:
        """Returns what was kept, and nothing if the file is missing or cannot be read."""
        try:
            with self._path.open("rb") as file:
                content = file.read(FILE_BYTES_MAX + 1)
            if len(content) > FILE_BYTES_MAX:
                raise ValueError(f"it has more than {FILE_BYTES_MAX} bytes")
            lines = msgspec.json.decode(content, type=list[_Line])
        except FileNotFoundError:
            return []
        except (OSError, ValueError, msgspec.DecodeError, RecursionError) as error:
            _log.warning(
                "%s cannot be read, so brokers get their places as if they had never had them: %s",
                *(self._path, error),
            )
            return []
        return [Tenure(line.place, line.owner, line.source, line.held_ms) for line in lines[:TENURES_MAX]]

    def save(self, tenures: Sequence[Tenure]) -> None:
        """Replaces the file, unless it would stay the same. An error is logged: the next try may succeed."""
        longest = sorted(tenures, key=lambda tenure: tenure.held_ms, reverse=True)[:TENURES_MAX]
        content = msgspec.json.encode(
            [_Line(tenure.place, tenure.owner, tenure.source, tenure.held_ms) for tenure in longest]
        )
        with self._one_at_a_time:
            if content == self._written:
                return
            try:
                replace_file(self._path, content)
            except OSError as error:
                _log.warning("%s cannot be written: %s", self._path, error)
            else:
                self._written = content
