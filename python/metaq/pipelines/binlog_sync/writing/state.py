"""The state file: how far the pipeline has come. It may be ended at any moment, even by a power failure.

The file is always replaced as a whole (written beside it, synced, renamed), and records only what brokers
have acknowledged. So after any end the next run begins at or before the end of the topic: some messages are
sent again, with the same sequence numbers, and none is missing.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from metaq.errors import CommandError
from metaq.held_file import HeldFile, lock_beside
from metaq.metadata import MetadataFile
from metaq.pipelines.binlog_sync.coordinates import NOWHERE, Coordinates
from metaq.pipelines.binlog_sync.reading.gtids import MARIADB, MYSQL, gtids_of
from metaq.pipelines.binlog_sync.values.columns import Definition
from metaq.pipelines.remarks import REMARK

_log = logging.getLogger(__name__)

VERSION: Final = 1

QueueName = tuple[str, int]
"""A broker and the number of its queue."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The progress of a table's snapshot."""

    begun: str
    """The sequence number at its beginning."""
    key: tuple[str, ...]
    """The columns of the primary key that it follows."""
    last: tuple[Any, ...] = ()
    """The last key that was read; empty before the first."""
    done: bool = False
    reading: int = 0
    """The number of this reading if the table was read before; see `sequence.py`."""
    is_stale: bool = False
    """Rows that were read may have changed without a trace in the binlog: it must be read once more."""


@dataclass(slots=True)
class TableState:
    """The state of one table."""

    schema: int
    """The version of its definition, counted from 1."""
    definition: Definition
    cursor: Cursor | None = None
    """The progress of its snapshot; None if it never had one and needs none."""
    dropped: tuple[str, ...] = ()
    """Columns that were dropped, in lower case. Readers may have old values for them."""


@dataclass(slots=True)
class SyncState:
    """Everything that the next run needs."""

    topic: str
    server: str
    era: int
    coordinates: Coordinates
    """The coordinates between two transactions: the next one begins there or later."""
    gtid: str
    """The same position as GTIDs."""
    queues: list[QueueName]
    flavour: str = MARIADB
    """The kind of server that `gtid` belongs to."""
    tables: dict[str, TableState] = field(default_factory=dict)

    def require_flavour(self, flavour: str, path: Path) -> None:
        """Raises CommandError if the state belongs to the other kind of server, whose GTIDs differ."""
        if self.flavour != flavour:
            raise CommandError(
                f"{path} belongs to another kind of server, {self.flavour}, not {flavour}",
                hint="name another state.file and another topic, which begin with a snapshot",
            )

    def begin_era(self, server: str) -> None:
        """Moves the state to another server, or to another series of binlog files.

        File names and positions start again there, so sequence numbers need a larger era. The GTIDs stay:
        the new server is asked for the transactions after them.
        """
        _log.warning("another server answers: %s, previously %s", server, self.server, extra=REMARK)
        self.server = server
        self.era = max(self.era + 1, int(time.time()))
        self.coordinates = NOWHERE

    def encode(self) -> bytes:
        document = {
            "version": VERSION,
            "topic": self.topic,
            "flavour": self.flavour,
            "server": self.server,
            "era": self.era,
            "file": self.coordinates.file,
            "position": self.coordinates.position,
            "gtid": self.gtid,
            "queues": self.queues,
            "tables": {name: _encode_table(table) for name, table in self.tables.items()},
        }
        return msgspec.json.format(msgspec.json.encode(document), indent=1)

    @classmethod
    def decode(cls, content: bytes) -> SyncState:
        """Raises ValueError."""
        try:
            document = msgspec.json.decode(content)
            if document["version"] != VERSION:
                raise ValueError(f"its version is {document['version']!r}, not {VERSION}")
            # The first versions knew only MariaDB.
            flavour = document.get("flavour", MARIADB)
            if flavour not in (MARIADB, MYSQL):
                raise ValueError(f"its server is of an unknown kind, {flavour!r}")
            gtids_of(flavour, str(document["gtid"]))
            return cls(
                topic=str(document["topic"]),
                server=str(document["server"]),
                era=int(document["era"]),
                coordinates=Coordinates(str(document["file"]), int(document["position"])),
                gtid=str(document["gtid"]),
                flavour=flavour,
                queues=[(str(broker), int(number)) for broker, number in document["queues"]],
                tables={name: _decode_table(table) for name, table in document["tables"].items()},
            )
        except (KeyError, TypeError, AttributeError, msgspec.DecodeError) as error:
            raise ValueError(f"it is not a state of binlog-sync: {error}") from None


def _encode_table(table: TableState) -> dict[str, object]:
    document: dict[str, object] = {"schema": table.schema, "definition": table.definition.document()}
    if table.dropped:
        document["dropped"] = table.dropped
    if table.cursor is not None:
        cursor = table.cursor
        document["snapshot"] = {
            "begun": cursor.begun,
            "key": cursor.key,
            "last": [_encode_value(value) for value in cursor.last],
            "done": cursor.done,
            "reading": cursor.reading,
            "stale": cursor.is_stale,
        }
    return document


def _decode_table(document: Any) -> TableState:
    cursor = None
    if (snapshot := document.get("snapshot")) is not None:
        cursor = Cursor(
            str(snapshot["begun"]),
            tuple(snapshot["key"]),
            tuple(map(_decode_value, snapshot["last"])),
            bool(snapshot["done"]),
            int(snapshot.get("reading", 0)),
            bool(snapshot.get("stale", False)),
        )
    # A table that was renamed has none until its first row or chunk reveals it.
    is_known = bool(document["definition"]["columns"])
    definition = Definition.decode(document["definition"]) if is_known else Definition((), ())
    return TableState(int(document["schema"]), definition, cursor, tuple(document.get("dropped", ())))


def _encode_value(value: object) -> object:
    return {"hex": value.hex()} if isinstance(value, bytes) else value


def _decode_value(value: Any) -> object:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value


class StateFile:
    """The file, which one process at a time may hold."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MetadataFile(path)
        self._held: HeldFile | None = None

    def load(self) -> SyncState | None:
        """Reads the state; returns None if there is none yet, raises MetaqError if the file is damaged."""
        return self._file.load(SyncState.decode)

    def lock(self) -> None:
        """Locks the file until the process ends; raises CommandError if another process holds it."""
        try:
            self._held = HeldFile(lock_beside(self.path))
        except BlockingIOError:
            raise CommandError(f"another process uses the state file {self.path}") from None
        except OSError as error:
            raise CommandError(f"the state file {self.path} cannot be locked: {error.strerror}") from None

    def unlock(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def save(self, state: SyncState) -> None:
        """Returns once the state would survive a power failure; raises CommandError."""
        try:
            self._file.write(state.encode())
        except OSError as error:
            raise CommandError(f"the state file {self.path} cannot be written: {error.strerror}") from None
