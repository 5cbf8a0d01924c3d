"""Foreign keys whose actions change rows that the binlog does not have.

They are read with SHOW CREATE TABLE, which needs no more than SELECT. `information_schema` hides them from
a user without further rights on MariaDB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

Name = tuple[str, str]
"""A database and a table."""

_QUOTED: Final = r"`(?:[^`]|``)+`"
_COLUMNS: Final = rf"\(({_QUOTED}(?:,\s*{_QUOTED})*)\)"
_CONSTRAINT: Final = re.compile(
    rf"^\s*CONSTRAINT ({_QUOTED}) FOREIGN KEY {_COLUMNS} REFERENCES (?:({_QUOTED})\.)?({_QUOTED}) {_COLUMNS}"
    r"([^\n]*)$",
    re.MULTILINE,
)
_ACTION: Final = re.compile(r"ON (DELETE|UPDATE) (CASCADE|SET NULL|SET DEFAULT)")


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key with an action."""

    child: Name
    name: str
    parent: Name
    referenced: tuple[str, ...]
    """Columns of the parent."""
    on_delete: bool
    """A delete of a parent's row changes or deletes rows of the child."""
    on_update: bool
    """An update of the referenced columns does."""

    def __str__(self) -> str:
        return f"{'.'.join(self.child)} ({self.name})"


@dataclass(frozen=True, slots=True)
class ForeignKeys:
    """The foreign keys with an action of all selected tables, at one time."""

    keys: tuple[ForeignKey, ...] = ()
    unchecked: tuple[str, ...] = ()
    """Tables whose definition the user may not see."""
    read_s: int = 0
    """When they were read, by the clock of the server."""

    def __str__(self) -> str:
        return ", ".join(map(str, self.keys))


def foreign_keys_of(child: Name, statement: str) -> list[ForeignKey]:
    """Returns the foreign keys with an action in the result of SHOW CREATE TABLE."""
    found = []
    for name, _, database, parent, referenced, actions in _CONSTRAINT.findall(statement):
        events = {event for event, _ in _ACTION.findall(actions)}
        if events:
            found.append(
                ForeignKey(
                    child,
                    _unquoted(name),
                    (_unquoted(database) if database else child[0], _unquoted(parent)),
                    tuple(map(_unquoted, re.findall(_QUOTED, referenced))),
                    on_delete="DELETE" in events,
                    on_update="UPDATE" in events,
                )
            )
    return found


def descendants(by_parent: Mapping[Name, Iterable[ForeignKey]], table: Name) -> set[Name]:
    """Returns a table and all that a change of its rows may reach through further foreign keys."""
    found: set[Name] = set()
    waiting = [table]
    while waiting:
        table = waiting.pop()
        if table not in found:
            found.add(table)
            waiting.extend(key.child for key in by_parent.get(table, ()))
    return found


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`")
