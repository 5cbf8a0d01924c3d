"""What is known of a mirror table besides its rows: definitions, its floor, and snapshots that are ending.

All of it only grows, so that a batch that is applied again, or one that comes late, changes nothing. It is
kept as a property of the Delta table, so it cannot be apart from its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from metaq.pipelines.binlog_mirror.errors import MirrorError
from metaq.pipelines.binlog_sync import ddl
from metaq.pipelines.binlog_sync.columns import Definition

PROPERTY: Final = "metaq.mirror"
VERSION: Final = 1

TableName = tuple[str, str]
"""Database and table."""


@dataclass(slots=True)
class Notes:
    """Of one table."""

    table: str
    floor: str = ""
    """Changes with a smaller number do not count."""
    definitions: dict[tuple[str, int], Definition] = field(default_factory=dict)
    """By the number that they were told with, and their version. A version alone does not say enough: where
    the reader's state was lost, or was not yet saved, it is given again, perhaps to another definition."""
    ends: dict[str, set[int]] = field(default_factory=dict)
    """Queues in which a snapshot has ended, by the number of its beginning."""

    def define(self, sequence: str, version: int, definition: Definition) -> bool:
        """Whether it is new: with every start the reader tells them again."""
        told = self.told(version)
        if [known for number, known in told if number <= sequence][-1:] == [definition]:
            return False
        self.definitions[sequence, version] = definition
        return True

    def told(self, version: int) -> list[tuple[str, Definition]]:
        """What a version looks like, and from which number on, in their order."""
        return [(key[0], self.definitions[key]) for key in sorted(self.definitions) if key[1] == version]

    @property
    def newest(self) -> Definition | None:
        return self.definitions[max(self.definitions)] if self.definitions else None

    def raise_floor(self, sequence: str) -> bool:
        if sequence <= self.floor:
            return False
        self.floor = sequence
        # A snapshot from before it has nothing to say any more.
        self.ends = {begun: queues for begun, queues in self.ends.items() if begun > sequence}
        return True

    def end_snapshot(self, begun: str, queue: int, queues: int) -> bool:
        """Whether it is news; the floor is raised when it has come from each queue."""
        if begun <= self.floor:
            return False
        seen = self.ends.setdefault(begun, set())
        is_new = queue not in seen
        seen.add(queue)
        return self.raise_floor(begun) if len(seen) >= queues else is_new

    def unite(self, other: Notes) -> None:
        """Takes what another one knows."""
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
                raise ValueError(f"they are of version {document['version']!r}, not {VERSION}")
            return cls(
                str(document["table"]),
                str(document["floor"]),
                {
                    (str(told["seq"]), int(told["schema"])): Definition.of_document(told)
                    for told in document["definitions"]
                },
                {str(begun): set(map(int, queues)) for begun, queues in document["ends"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise MirrorError(f"the notes of a mirror table cannot be read: {error}") from None


@dataclass(slots=True)
class Barriers:
    """What the barriers of one batch say of one table."""

    definitions: list[tuple[str, int, Definition]] = field(default_factory=list)
    floors: list[str] = field(default_factory=list)
    ends: list[tuple[str, int, int]] = field(default_factory=list)

    def note(self, notes: Notes) -> bool:
        """Whether they say anything new; raises MirrorError."""
        news = [notes.define(*told) for told in self.definitions]
        news += [notes.raise_floor(sequence) for sequence in self.floors]
        news += [notes.end_snapshot(*told) for told in self.ends]
        return any(news)

    @property
    def may_empty(self) -> bool:
        """Whether rows below the floor may have to go, in a batch that is applied again too."""
        return bool(self.floors or self.ends)


def barriers_by_table(
    messages: Iterable[Mapping[str, Any]], tables_of: Callable[[str], Iterable[str]]
) -> dict[TableName, Barriers]:
    """`tables_of` gives the tables of a database that have mirrors. Raises MirrorError."""
    found: dict[TableName, Barriers] = {}

    def of(database: str, table: str) -> Barriers:
        return found.setdefault((database, table), Barriers())

    try:
        # Definitions first: a database may be dropped in the same batch.
        for message in sorted(messages, key=lambda told: told["kind"] != "schema"):
            kind = message["kind"]
            if kind == "schema":
                definition = Definition.of_document(message)
                of(message["database"], message["table"]).definitions.append(
                    (message["seq"], int(message["schema"]), definition)
                )
            elif kind == "snapshot" and message["state"] == "end":
                of(message["database"], message["table"]).ends.append(
                    (message["begun"], int(message["queue"]), int(message["queues"]))
                )
            elif kind == "ddl" and ddl.empties(message["statement"]):
                # Before there were names, their dots were ambiguous.
                names = {tuple(pair) for pair in message.get("names", ())} or {
                    tuple(name.split(".", 1)) for name in message["tables"]
                }
                if message["action"] == str(ddl.Kind.DATABASE):
                    database = message["database"]
                    names = {(database, name) for name in tables_of(database)}
                    names |= {name for name in found if name[0] == database}
                for database, table in names:
                    of(database, table).floors.append(message["seq"])
    except (KeyError, TypeError, ValueError) as error:
        raise MirrorError(f"a message of the topic is not as binlog-sync writes it: {error!r}") from None
    return found
