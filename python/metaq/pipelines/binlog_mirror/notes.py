"""The notes of a mirror table: its definitions, its floor, and snapshots that are ending.

Notes only grow. So a batch that is applied twice, or late, changes nothing. They are stored with the table
(for Delta as a table property), so that they cannot get separated from its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from metaq.pipelines.binlog_mirror.errors import MirrorError
from metaq.pipelines.binlog_sync.envelope import (
    DdlBarrier,
    Field,
    Kind,
    SchemaBarrier,
    SnapshotBarrier,
    decode_barrier,
    queue_of,
)
from metaq.pipelines.binlog_sync.reading import ddl
from metaq.pipelines.binlog_sync.values.columns import Definition

PROPERTY: Final = "metaq.mirror"
VERSION: Final = 1

TableName = tuple[str, str]
"""A database and a table."""


@dataclass(slots=True)
class Notes:
    """The notes of one table."""

    table: str
    floor: str = ""
    """Changes with a smaller sequence number do not count."""
    definitions: dict[tuple[str, int], Definition] = field(default_factory=dict)
    """Definitions by the sequence number of their barrier and by version. A version alone is not enough: if
    binlog-sync lost its state, or had not saved it, it may give the same version to another definition."""
    ends: dict[str, set[int]] = field(default_factory=dict)
    """The queues in which a snapshot has ended, by the sequence number of its begin."""

    def define(self, sequence: str, version: int, definition: Definition) -> bool:
        """Adds a definition; returns whether it is new. binlog-sync repeats definitions at every start."""
        known = [known for number, known in self.definitions_of(version) if number <= sequence]
        if known[-1:] == [definition]:
            return False
        self.definitions[sequence, version] = definition
        return True

    def definitions_of(self, version: int) -> list[tuple[str, Definition]]:
        """Returns the definitions of a version in order, each with the first number that it applies to."""
        return [(key[0], self.definitions[key]) for key in sorted(self.definitions) if key[1] == version]

    @property
    def newest(self) -> Definition | None:
        return self.definitions[max(self.definitions)] if self.definitions else None

    def raise_floor(self, sequence: str) -> bool:
        """Raises the floor; returns whether it was lower."""
        if sequence <= self.floor:
            return False
        self.floor = sequence
        # Snapshots that began before the floor no longer matter.
        self.ends = {begun: queues for begun, queues in self.ends.items() if begun > sequence}
        return True

    def end_snapshot(self, begun: str, queue: int, queues: int) -> bool:
        """Records the end of a snapshot in one queue; returns whether it is new.

        The floor is raised once every queue has reported it.
        """
        if begun <= self.floor:
            return False
        seen = self.ends.setdefault(begun, set())
        is_new = queue not in seen
        seen.add(queue)
        return self.raise_floor(begun) if len(seen) >= queues else is_new

    def merge(self, other: Notes) -> None:
        """Adds the notes that another run has made."""
        self.definitions = other.definitions | self.definitions
        for begun, queues in other.ends.items():
            self.ends.setdefault(begun, set()).update(queues)
        self.floor = max(self.floor, other.floor)
        self.ends = {begun: queues for begun, queues in self.ends.items() if begun > self.floor}

    def encode(self) -> str:
        document = {
            "version": VERSION,
            "table": self.table,
            "floor": self.floor,
            "definitions": [
                {"seq": sequence, "schema": version, **definition.document()}
                for (sequence, version), definition in sorted(self.definitions.items())
            ],
            "ends": {begun: sorted(queues) for begun, queues in self.ends.items()},
        }
        return msgspec.json.encode(document).decode()

    @classmethod
    def decode(cls, text: str) -> Notes:
        """Raises MirrorError."""
        try:
            document = msgspec.json.decode(text)
            if document["version"] != VERSION:
                raise ValueError(f"their version is {document['version']!r}, not {VERSION}")
            return cls(
                str(document["table"]),
                str(document["floor"]),
                {
                    (str(entry["seq"]), int(entry["schema"])): Definition.decode(entry)
                    for entry in document["definitions"]
                },
                {str(begun): set(map(int, queues)) for begun, queues in document["ends"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise MirrorError(f"the notes of a mirror table cannot be read: {error}") from None


@dataclass(slots=True)
class Barriers:
    """The barriers of one batch for one table."""

    definitions: list[tuple[str, int, Definition]] = field(default_factory=list)
    floors: list[str] = field(default_factory=list)
    ends: list[tuple[str, int, int]] = field(default_factory=list)

    def add_to(self, notes: Notes) -> bool:
        """Adds the barriers to the notes; returns whether anything was new. Raises MirrorError."""
        news = [notes.define(*definition) for definition in self.definitions]
        news += [notes.raise_floor(sequence) for sequence in self.floors]
        news += [notes.end_snapshot(*end) for end in self.ends]
        return any(news)

    @property
    def may_empty(self) -> bool:
        """Whether rows below the floor may have to be deleted, also in a batch that is applied again."""
        return bool(self.floors or self.ends)


def barriers_by_table(
    messages: Iterable[Mapping[str, Any]], tables_of: Callable[[str], Iterable[str]]
) -> dict[TableName, Barriers]:
    """Groups the barriers of a batch by table; raises MirrorError.

    `tables_of` returns the tables of a database that have mirrors.
    """
    found: dict[TableName, Barriers] = {}

    def of(database: str, table: str) -> Barriers:
        return found.setdefault((database, table), Barriers())

    try:
        # Definitions come first: the same batch may drop their database.
        for message in sorted(messages, key=lambda message: message[Field.KIND] != Kind.SCHEMA):
            barrier = decode_barrier(message)
            if isinstance(barrier, SchemaBarrier):
                of(barrier.database, barrier.table).definitions.append(
                    (barrier.sequence, barrier.schema, barrier.definition)
                )
            elif isinstance(barrier, SnapshotBarrier) and barrier.state == SnapshotBarrier.END:
                of(barrier.database, barrier.table).ends.append(
                    (barrier.begun, queue_of(message), barrier.queues)
                )
            elif isinstance(barrier, DdlBarrier) and ddl.empties(barrier.statement):
                names = set(barrier.names)
                if barrier.action == str(ddl.Kind.DATABASE):
                    names = {(barrier.database, name) for name in tables_of(barrier.database)}
                    names |= {name for name in found if name[0] == barrier.database}
                for database, table in names:
                    of(database, table).floors.append(barrier.sequence)
    except (KeyError, TypeError, ValueError) as error:
        raise MirrorError(f"the topic has a message that binlog-sync does not write: {error!r}") from None
    return found
