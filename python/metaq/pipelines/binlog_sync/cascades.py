"""Follows the actions of foreign keys, which change rows without a trace in the binlog.

After a change of a parent's row that has such an action, the child tables are read again, and so are the
tables that refer to these in turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from metaq.pipelines.binlog_sync.config import REREAD
from metaq.pipelines.binlog_sync.envelope import DELETE, UPDATE
from metaq.pipelines.binlog_sync.reading.binlog_items import Rows
from metaq.pipelines.binlog_sync.reading.foreign_keys import ForeignKey, ForeignKeys, Name, descendants

CASCADES_HINT: Final = (
    'set source.cascades = "reread", name the tables in source.exclude, or change rows without these actions'
)
_NOTHING: Final[frozenset[Name]] = frozenset()


def cascade_warnings(found: ForeignKeys, policy: str) -> list[str]:
    """Returns what users should know about the foreign keys of their tables."""
    warnings = []
    if found.unchecked:
        warnings.append(
            f"the user may not see the foreign keys of {', '.join(found.unchecked)}: if they have actions,"
            " the topic lacks the changes of these"
        )
    if found.keys and policy == REREAD:
        warnings.append(
            "the binlog lacks the changes that foreign keys make by themselves; after such a change these"
            f" tables are read again: {found}"
        )
    elif found.keys:
        warnings.append(
            "the binlog, and so the topic, lacks the changes that these foreign keys make by themselves:"
            f" {found}"
        )
    return warnings


class Cascades:
    """The foreign keys whose parents are watched."""

    def __init__(self) -> None:
        self._keys: dict[Name, list[ForeignKey]] = {}
        """Foreign keys by child."""
        self._by_parent: dict[Name, list[ForeignKey]] = {}
        self._reached: dict[Name, set[Name]] = {}
        """The tables that a change of a child's rows may reach, once that was asked for."""
        self.read_s = 0
        """When all foreign keys were read, by the clock of the server."""

    def watch(self, found: ForeignKeys) -> None:
        """Watches these foreign keys and no others."""
        self.read_s = found.read_s
        self._keys.clear()
        self.update(found, ())

    def update(self, found: ForeignKeys, children: Iterable[Name]) -> None:
        """Replaces the foreign keys of these tables."""
        for child in children:
            self._keys.pop(child, None)
        for key in found.keys:
            self._keys.setdefault(key.child, []).append(key)
        self._by_parent.clear()
        self._reached.clear()
        for keys in self._keys.values():
            for key in keys:
                self._by_parent.setdefault(key.parent, []).append(key)

    def watches(self, database: str, table: str) -> bool:
        """Returns whether changes of a table may change rows of others."""
        return (database, table) in self._by_parent

    def affected(self, item: Rows) -> frozenset[Name] | set[Name]:
        """Returns the tables that an event may have changed beyond its own rows."""
        keys = self._by_parent.get((item.reader.database, item.reader.table))
        if keys is None:
            return _NOTHING
        if item.operation == DELETE:
            children = {key.child for key in keys if key.on_delete}
        elif item.operation == UPDATE and any(key.on_update for key in keys):
            children = _updated(item, [key for key in keys if key.on_update])
        else:
            return _NOTHING
        return set().union(*map(self._reached_from, children))

    def _reached_from(self, child: Name) -> set[Name]:
        if child not in self._reached:
            self._reached[child] = descendants(self._by_parent, child)
        return self._reached[child]


def _updated(item: Rows, keys: list[ForeignKey]) -> set[Name]:
    """Returns the children whose foreign keys refer to columns that an update changes."""
    names = {column.name.lower(): column.name for column in item.reader.definition.columns}
    columns = {key: [names.get(name.lower()) for name in key.referenced] for key in keys}
    # A column that is not there has another name by now, so nothing is known about its values.
    children = {key.child for key, found in columns.items() if None in found}
    left = {key: [name for name in found if name] for key, found in columns.items() if None not in found}
    images = item.reader.images(item.images)
    for before, after in zip(images, images, strict=True):
        for key in [key for key, found in left.items() if any(before[one] != after[one] for one in found)]:
            children.add(key.child)
            del left[key]
        if not left:
            break
    return children
