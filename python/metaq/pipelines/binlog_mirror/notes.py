"""The notes of a mirror table: its definitions, its floor, and snapshots and drops that are on their way.

Notes only grow. So a batch that is applied twice, or late, changes nothing. They are stored with the table
(for Delta as a table property), so that they cannot get separated from its rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from metaq.pipelines.binlog_mirror.dropped import dropped_tables, drops_database, empties
from metaq.pipelines.binlog_mirror.errors import MirrorError
from metaq.pipelines.binlog_mirror.policies import EMPTY
from metaq.pipelines.binlog_sync.envelope import (
    Barrier,
    DdlBarrier,
    RangeBarrier,
    SchemaBarrier,
    SnapshotBarrier,
)
from metaq.pipelines.binlog_sync.values.columns import Definition, is_name

PROPERTY: Final = "metaq.mirror"
VERSION: Final = 1
RANGES_MAX: Final = 100
"""How many ranges of keys are remembered, so that a batch that is applied again finds them complete."""

_log = logging.getLogger(__name__)

TableName = tuple[str, str]
"""A database and a table."""


@dataclass(slots=True)
class Drop:
    """A statement that dropped the table, and the queues that have brought it."""

    queues: int
    """The number of queues that bring it."""
    seen: set[int] = field(default_factory=set)

    @property
    def is_complete(self) -> bool:
        """Whether no queue can bring an older change any more."""
        return len(self.seen) >= self.queues


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
    range_ends: dict[str, set[int]] = field(default_factory=dict)
    """The queues in which the reading of a range of keys has ended, by the sequence number of its begin."""
    drops: dict[str, Drop] = field(default_factory=dict)
    """Drops that the mirror has not followed yet, by sequence number. The drop of a mirror that is kept stays
    here until the source creates the table again."""
    skipped: str = ""
    """The largest sequence number of the changes that were left out since the table is skipped; empty if it
    is not."""
    skip_reason: str = ""

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

    def keys(self) -> set[str]:
        """Returns the columns of all primary keys that the table has had, in lower case."""
        return {name.lower() for definition in self.definitions.values() for name in definition.key}

    def raise_floor(self, sequence: str) -> bool:
        """Raises the floor; returns whether it was lower."""
        if sequence <= self.floor:
            return False
        self.floor = sequence
        # Snapshots that began before the floor no longer matter.
        self.ends = {begun: queues for begun, queues in self.ends.items() if begun > sequence}
        self.range_ends = {begun: queues for begun, queues in self.range_ends.items() if begun > sequence}
        self.drops = {number: drop for number, drop in self.drops.items() if number > sequence}
        self.resume(sequence)
        return True

    def begin_drop(self, sequence: str, queue: int, queues: int) -> bool:
        """Records that a queue has brought a drop; returns whether that is new."""
        if sequence <= self.floor:
            return False
        drop = self.drops.setdefault(sequence, Drop(queues))
        is_new = queue not in drop.seen
        drop.seen.add(queue)
        return is_new

    @property
    def dropped(self) -> str:
        """The sequence number of the last drop that the mirror has not followed; empty if there is none."""
        return max(self.drops, default="")

    def skip(self, sequence: str, reason: str = "") -> None:
        """Records that changes up to a sequence number were left out."""
        self.skipped = max(self.skipped, sequence)
        self.skip_reason = self.skip_reason or reason

    def resume(self, sequence: str) -> bool:
        """Ends the skipping if everything from a sequence number on is known; returns whether it did.

        That holds at a floor, and at the begin of a snapshot. Changes that were left out must be older.
        """
        if not self.skipped or sequence <= self.skipped:
            return False
        self.skipped = self.skip_reason = ""
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

    def end_range(self, begun: str, queue: int) -> bool:
        """Records the end of a range in one queue; returns whether it is new."""
        if begun <= self.floor:
            return False
        seen = self.range_ends.setdefault(begun, set())
        is_new = queue not in seen
        seen.add(queue)
        for oldest in sorted(self.range_ends)[:-RANGES_MAX]:
            del self.range_ends[oldest]
        return is_new

    def merge(self, other: Notes) -> None:
        """Adds the notes that another run has made."""
        self.definitions = other.definitions | self.definitions
        for begun, queues in other.ends.items():
            self.ends.setdefault(begun, set()).update(queues)
        for begun, queues in other.range_ends.items():
            self.range_ends.setdefault(begun, set()).update(queues)
        for sequence, drop in other.drops.items():
            self.drops.setdefault(sequence, Drop(drop.queues)).seen.update(drop.seen)
        self.floor = max(self.floor, other.floor)
        self.ends = {begun: queues for begun, queues in self.ends.items() if begun > self.floor}
        self.drops = {number: drop for number, drop in self.drops.items() if number > self.floor}

    def encode(self) -> str:
        document: dict[str, object] = {
            "version": VERSION,
            "table": self.table,
            "floor": self.floor,
            "definitions": [
                {"seq": sequence, "schema": version, **definition.document()}
                for (sequence, version), definition in sorted(self.definitions.items())
            ],
            "ends": {begun: sorted(queues) for begun, queues in self.ends.items()},
        }
        if self.range_ends:
            document["range_ends"] = {begun: sorted(queues) for begun, queues in self.range_ends.items()}
        if self.drops:
            document["drops"] = {
                sequence: {"queues": drop.queues, "seen": sorted(drop.seen)}
                for sequence, drop in self.drops.items()
            }
        if self.skipped:
            document |= {"skipped": self.skipped, "skip_reason": self.skip_reason}
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
                _definitions(str(document["table"]), document["definitions"]),
                {str(begun): set(map(int, queues)) for begun, queues in document["ends"].items()},
                {
                    str(begun): set(map(int, queues))
                    for begun, queues in document.get("range_ends", {}).items()
                },
                {
                    str(sequence): Drop(int(drop["queues"]), set(map(int, drop["seen"])))
                    for sequence, drop in document.get("drops", {}).items()
                },
                str(document.get("skipped", "")),
                str(document.get("skip_reason", "")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise MirrorError(f"the notes of a mirror table cannot be read: {error}") from None


def _definitions(table: str, entries: Iterable[Any]) -> dict[tuple[str, int], Definition]:
    """Reads definitions; leaves those out that no source can have, which older versions took."""
    found: dict[tuple[str, int], Definition] = {}
    for entry in entries:
        key = str(entry["seq"]), int(entry["schema"])
        try:
            found[key] = Definition.decode(entry)
        except ValueError as error:
            _log.warning(
                "%s: the definition of version %d at %s is left out: %s", table, key[1], key[0], error
            )
    return found


@dataclass(slots=True)
class Barriers:
    """The barriers of one batch for one table."""

    definitions: list[tuple[str, int, Definition]] = field(default_factory=list)
    floors: list[str] = field(default_factory=list)
    begins: list[str] = field(default_factory=list)
    """The sequence numbers at which snapshots of the whole table begin."""
    ends: list[tuple[str, int, int]] = field(default_factory=list)
    ranges: list[tuple[RangeBarrier, int]] = field(default_factory=list)
    """Ranges of keys that were read again, each with the queue that says so."""
    drops: list[tuple[str, int, int]] = field(default_factory=list)
    """Drops of the table: sequence number, queue, and the number of queues that bring it."""

    def add_to(self, notes: Notes, dropped: str = EMPTY) -> bool:
        """Adds the barriers to the notes; returns whether anything was new. Raises MirrorError.

        `dropped` is the policy for dropped tables.
        """
        news = [notes.define(*definition) for definition in self.definitions]
        if dropped == EMPTY:
            news += [notes.raise_floor(sequence) for sequence, _, _ in self.drops]
        else:
            news += [notes.begin_drop(*drop) for drop in self.drops]
        news += [notes.raise_floor(sequence) for sequence in self.floors]
        news += [notes.resume(begun) for begun in self.begins]
        news += [notes.end_snapshot(*end) for end in self.ends]
        news += [notes.end_range(barrier.begun, queue) for barrier, queue in self.ranges]
        return any(news)

    def complete_ranges(self, notes: Notes) -> list[RangeBarrier]:
        """Returns the ranges whose end every queue has brought, also in a batch that is applied again."""
        by_begun = {barrier.begun: barrier for barrier, _ in self.ranges}
        return [
            barrier
            for begun, barrier in sorted(by_begun.items())
            if len(notes.range_ends.get(begun, ())) >= barrier.queues
        ]

    @property
    def may_empty(self) -> bool:
        """Whether rows below the floor may have to be deleted, also in a batch that is applied again."""
        return bool(self.floors or self.ends or self.drops)

    def recreates(self, sequence: str) -> bool:
        """Returns whether the table was created again after it was dropped at a sequence number."""
        return any(number > sequence for number, _, _ in self.definitions)

    def drops_after(self, sequence: str) -> bool:
        """Returns whether the table is dropped after a sequence number."""
        return any(number > sequence for number, _, _ in self.drops)


def barriers_by_table(
    received: Iterable[tuple[Barrier, int]], tables_of: Callable[[str], Iterable[str]]
) -> dict[TableName, Barriers]:
    """Groups the barriers of a batch, each with its queue, by table.

    `tables_of` returns the tables of a database that have mirrors.
    """
    found: dict[TableName, Barriers] = {}

    def of(database: str, table: str) -> Barriers:
        return found.setdefault((database, table), Barriers())

    # Definitions come first: the same batch may drop their database.
    for barrier, queue in sorted(received, key=lambda each: not isinstance(each[0], SchemaBarrier)):
        if isinstance(barrier, SchemaBarrier):
            of(barrier.database, barrier.table).definitions.append(
                (barrier.sequence, barrier.schema, barrier.definition)
            )
        elif isinstance(barrier, SnapshotBarrier):
            barriers = of(barrier.database, barrier.table)
            if barrier.state == SnapshotBarrier.END:
                barriers.ends.append((barrier.begun, queue, barrier.queues))
            else:
                barriers.begins.append(barrier.begun)
        elif isinstance(barrier, RangeBarrier):
            of(barrier.database, barrier.table).ranges.append((barrier, queue))
        elif isinstance(barrier, DdlBarrier) and is_name(barrier.database) and empties(barrier):
            names, gone = set(barrier.names), dropped_tables(barrier)
            if drops_database(barrier):
                names = {(barrier.database, name) for name in tables_of(barrier.database)}
                names |= {name for name in found if name[0] == barrier.database}
                gone = names
            # No table can have another name, and files or queries with it may fail.
            for name in filter(_is_table, names - gone):
                of(*name).floors.append(barrier.sequence)
            for name in filter(_is_table, gone):
                of(*name).drops.append((barrier.sequence, queue, barrier.queues))
    return found


def _is_table(name: TableName) -> bool:
    return all(map(is_name, name))
