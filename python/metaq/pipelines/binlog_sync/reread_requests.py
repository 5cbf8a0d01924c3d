"""Requests to read a table, or a range of its keys, again: files beside the state.

`metaq pipeline reread` writes a file, and the run takes it. The file stays until what it asks for is in the
state, or done. So a request outlives any end of the run, and one that was carried out twice does no harm.
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from metaq.durable import replace_file
from metaq.errors import CommandError
from metaq.pipelines.binlog_sync.reading.chunks import KeyRange
from metaq.pipelines.binlog_sync.snapshot import Snapshot
from metaq.pipelines.binlog_sync.tables import SyncedTable, SyncedTables
from metaq.pipelines.binlog_sync.values.columns import Definition

_log = logging.getLogger(__name__)

POLL_S: Final = 0.5
_SUFFIX: Final = ".json"


@dataclass(frozen=True, slots=True)
class RereadRequest:
    """One request."""

    table: str
    """DATABASE.TABLE."""
    first: int | None
    """The first value of the first column of the key; None if that end is open."""
    last: int | None
    path: Path

    @property
    def is_range(self) -> bool:
        return self.first is not None or self.last is not None


class RereadRequests:
    """The folder of the requests of one state file."""

    def __init__(self, state_file: Path) -> None:
        self._folder = state_file.with_name(state_file.name + ".rereads")
        self._next_poll = 0.0
        self._taken: set[Path] = set()

    def put(self, table: str, first: int | None, last: int | None) -> None:
        """Writes a request durably; raises CommandError."""
        content = msgspec.json.encode({"table": table, "first": first, "last": last})
        # Names sort by time.
        path = self._folder / f"{time.time_ns():020}-{uuid.uuid4().hex[:8]}{_SUFFIX}"
        try:
            replace_file(path, content)
        except OSError as error:
            raise CommandError(f"the request {path} cannot be written: {error.strerror}") from None

    def poll(self) -> list[RereadRequest]:
        """Returns the requests that are new, in order; looks for them at most every `POLL_S`."""
        now = time.monotonic()
        if now < self._next_poll:
            return []
        self._next_poll = now + POLL_S
        try:
            paths = sorted(self._folder.glob(f"*{_SUFFIX}"))
        except OSError:
            return []
        return [
            request for path in paths if path not in self._taken and (request := self._read(path)) is not None
        ]

    def done(self, request: RereadRequest) -> None:
        """Removes a request that is carried out, or recorded in the saved state."""
        request.path.unlink(missing_ok=True)

    def _read(self, path: Path) -> RereadRequest | None:
        self._taken.add(path)
        try:
            document = msgspec.json.decode(path.read_bytes())
            first, last = document["first"], document["last"]
            if not all(value is None or isinstance(value, int) for value in (first, last)):
                raise ValueError("its range is not of whole numbers")
            return RereadRequest(str(document["table"]), first, last, path)
        except (OSError, KeyError, TypeError, ValueError) as error:
            _log.warning("the request %s cannot be read and is ignored: %s", path, error)
            return None


class TableRequests:
    """Carries out the requests of one run."""

    def __init__(self, requests: RereadRequests, tables: SyncedTables, snapshot: Snapshot) -> None:
        self._requests = requests
        self._tables = tables
        self._snapshot = snapshot
        self._open: list[tuple[RereadRequest, SyncedTable]] = []
        """Requests for whole tables, which are not read yet."""

    def take(self) -> None:
        """Begins what new requests ask for, and removes the requests that are carried out."""
        for request, table in list(self._open):
            now = self._tables.get(table.full_name)
            if now is None or now.cursor is None or now.cursor.done:
                # Everything is acknowledged: the end of the reading was a barrier.
                self._requests.done(request)
                self._open.remove((request, table))
        for request in self._requests.poll():
            named = self._tables.get(request.table)
            fault = "there is no such table" if named is None else self._begin(request, named)
            if fault:
                _log.warning("the request to read %s again is ignored: %s", request.table, fault)
                self._requests.done(request)

    def _begin(self, request: RereadRequest, table: SyncedTable) -> str:
        """Begins to read; returns why that is impossible, or nothing."""
        if not request.is_range:
            self._snapshot.restart(table, "it was requested")
            self._open.append((request, table))
            return ""
        column = range_column(table.definition)
        if column is None:
            return "its primary key does not begin with a whole number"
        keys = KeyRange(column, request.first, request.last)
        self._snapshot.read_range(table, keys, lambda: self._requests.done(request))
        return ""


def range_column(definition: Definition) -> str | None:
    """Returns the column that a range of keys refers to; None if keys are not ordered by a whole number.

    Texts have another order in the source than in a mirror.
    """
    if definition.is_keyless or not definition.key:
        return None
    kinds = {column.name: column.type for column in definition.columns}
    return definition.key[0] if kinds[definition.key[0]].startswith("int") else None
