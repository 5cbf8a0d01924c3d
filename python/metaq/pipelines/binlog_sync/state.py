"""How far the pipeline is, kept on disk so that it can be ended at any moment, by a power failure too.

The file is replaced whole (written beside it, synced, renamed), and only ever says what brokers have
acknowledged. So after any end the next run begins at or before the place where messages end: some are sent
again, with the same sequence numbers, and none is missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from metaq.errors import CommandError
from metaq.held_file import HeldFile, lock_beside
from metaq.metadata import MetadataFile
from metaq.pipelines.binlog_sync.columns import Definition
from metaq.pipelines.binlog_sync.gtids import MARIADB, MYSQL, gtids_of
from metaq.pipelines.binlog_sync.sequence import Place

VERSION: Final = 1

QueueName = tuple[str, int]
"""Broker and number."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far the snapshot of a table is."""

    begun: str
    """The sequence number at its beginning."""
    key: tuple[str, ...]
    """The columns that it goes along."""
    last: tuple[Any, ...] = ()
    """The last key that was read; empty before the first."""
    done: bool = False


@dataclass(slots=True)
class TableState:
    """What is known of one table."""

    schema: int
    """The version of its definition, counted from 1 on."""
    definition: Definition
    cursor: Cursor | None = None
    """Of its snapshot; None where it has had none, and needs none."""


@dataclass(slots=True)
class State:
    """Everything that the next run needs."""

    topic: str
    server: str
    era: int
    place: Place
    """A place between two transactions: the next one begins there or later."""
    gtid: str
    """The same place as the server's replicas say it."""
    queues: list[QueueName]
    flavour: str = MARIADB
    """Which server's GTIDs these are."""
    tables: dict[str, TableState] = field(default_factory=dict)

    def encode(self) -> bytes:
        document = {
            "version": VERSION,
            "topic": self.topic,
            "flavour": self.flavour,
            "server": self.server,
            "era": self.era,
            "file": self.place.file,
            "position": self.place.position,
            "gtid": self.gtid,
            "queues": self.queues,
            "tables": {name: _table_document(table) for name, table in self.tables.items()},
        }
        return msgspec.json.format(msgspec.json.encode(document), indent=1)

    @classmethod
    def decode(cls, content: bytes) -> State:
        """Raises ValueError."""
        try:
            document = msgspec.json.decode(content)
            if document["version"] != VERSION:
                raise ValueError(f"it is of version {document['version']!r}, not {VERSION}")
            # At first there was only one.
            flavour = document.get("flavour", MARIADB)
            if flavour not in (MARIADB, MYSQL):
                raise ValueError(f"it is of a server that is not known, {flavour!r}")
            gtids_of(flavour, str(document["gtid"]))
            return cls(
                topic=str(document["topic"]),
                server=str(document["server"]),
                era=int(document["era"]),
                place=Place(str(document["file"]), int(document["position"])),
                gtid=str(document["gtid"]),
                flavour=flavour,
                queues=[(str(broker), int(number)) for broker, number in document["queues"]],
                tables={name: _table(told) for name, told in document["tables"].items()},
            )
        except (KeyError, TypeError, AttributeError, msgspec.DecodeError) as error:
            raise ValueError(f"it is no state of binlog-sync: {error}") from None


def _table_document(table: TableState) -> dict[str, object]:
    document: dict[str, object] = {"schema": table.schema, "definition": table.definition.document()}
    if table.cursor is not None:
        cursor = table.cursor
        document["snapshot"] = {
            "begun": cursor.begun,
            "key": cursor.key,
            "last": [_cell(value) for value in cursor.last],
            "done": cursor.done,
        }
    return document


def _table(document: Any) -> TableState:
    cursor = None
    if (told := document.get("snapshot")) is not None:
        cursor = Cursor(
            str(told["begun"]), tuple(told["key"]), tuple(map(_value, told["last"])), bool(told["done"])
        )
    return TableState(int(document["schema"]), Definition.of_document(document["definition"]), cursor)


def _cell(value: object) -> object:
    return {"hex": value.hex()} if isinstance(value, bytes) else value


def _value(cell: Any) -> object:
    return bytes.fromhex(cell["hex"]) if isinstance(cell, dict) else cell


class StateFile:
    """One file, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MetadataFile(path)
        self._held: HeldFile | None = None

    def load(self) -> State | None:
        """None where there is none yet; raises MetaqError where it is damaged."""
        return self._file.load(State.decode)

    def lock(self) -> None:
        """Until the process ends; raises CommandError where another one has it."""
        try:
            self._held = HeldFile(lock_beside(self.path))
        except BlockingIOError:
            raise CommandError(f"another process runs with the state {self.path}") from None
        except OSError as error:
            raise CommandError(f"{self.path} cannot be kept there: {error.strerror}") from None

    def unlock(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def save(self, state: State) -> None:
        """Returns when it would survive a power failure; raises CommandError."""
        try:
            self._file.write(state.encode())
        except OSError as error:
            raise CommandError(f"{self.path} cannot be written: {error.strerror}") from None
