"""A mirror of tables in memory, which follows the rules of docs/pipelines.md for readers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.support.reading import stored

Key = tuple[Any, ...]


@dataclass
class Mirror:
    """Rows by table and key, each with its sequence number; None stands for a deleted row."""

    tables: dict[str, dict[Key, tuple[str, dict[str, Any] | None]]] = field(default_factory=dict)
    floors: dict[str, str] = field(default_factory=dict)
    """Rows with a smaller sequence number are gone."""
    keys: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    definitions: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    statements: list[str] = field(default_factory=list)
    changes: int = 0
    duplicates: int = 0
    _ends: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    _ranges: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Ranges of keys that were read again: older rows of them are gone."""
    _seen: set[tuple[str, Key, str]] = field(default_factory=set)
    _database_floors: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_topic(cls, nameserver: str, topic: str, queues: int) -> Mirror:
        """Reads queue by queue, so a mirror that relies on an order between queues fails."""
        mirror = cls()
        by_queue: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for message in stored(nameserver, topic):
            by_queue.setdefault((message.queue.broker, message.queue.id), []).append(json.loads(message.body))
        for messages in by_queue.values():
            mirror.check_order(messages)
            for message in messages:
                mirror.apply(message, queues)
        return mirror

    def check_order(self, messages: Iterable[dict[str, Any]]) -> None:
        """Asserts that numbers of a key grow within a queue, and that statements separate changes."""
        newest: dict[tuple[str, Key], str] = {}
        seen: set[tuple[str, Key, str]] = set()
        barrier = ""
        for message in messages:
            if message["kind"] == "ddl":
                assert all(number < message["seq"] for number in newest.values()) or message["seq"] <= barrier
                barrier = max(barrier, message["seq"])
            if message["kind"] == "schema":
                self._take_schema(message)
            if message["kind"] != "rows":
                continue
            table = f"{message['database']}.{message['table']}"
            for change in message["changes"]:
                key = self._key(table, message["schema"], change["row"])
                if (table, key, change["seq"]) in seen:
                    continue
                seen.add((table, key, change["seq"]))
                assert change["seq"] > newest.get((table, key), ""), f"{table} {key} is out of order"
                assert change["seq"] >= barrier, f"{table} {key} is on the wrong side of a statement"
                newest[table, key] = change["seq"]

    def apply(self, message: dict[str, Any], queues: int) -> None:
        kind = message["kind"]
        if kind == "rows":
            self._apply_rows(message)
        elif kind == "schema":
            self._take_schema(message)
        elif kind == "ddl":
            if message["statement"] not in self.statements:
                self.statements.append(message["statement"])
            if message["empties"]:
                for table in message["tables"]:
                    self._raise_floor(table, message["seq"])
                if message["action"] == "database":
                    self._database_floors[message["database"]] = message["seq"]
        elif kind == "snapshot" and message["state"] == "end":
            table = f"{message['database']}.{message['table']}"
            ends = self._ends.setdefault((table, message["begun"]), set())
            ends.add(message["queue"])
            if len(ends) == queues:
                self._raise_floor(table, message["begun"])
        elif kind == "range":
            table = f"{message['database']}.{message['table']}"
            ends = self._ends.setdefault((table, f"range {message['begun']}"), set())
            ends.add(message["queue"])
            if len(ends) == queues:
                self._ranges.append((table, message))

    def rows(self, table: str) -> dict[Key, dict[str, Any]]:
        of_database = self._database_floors.get(table.partition(".")[0], "")
        floor = max(self.floors.get(table, ""), of_database)
        ranges = [message for name, message in self._ranges if name == table]
        return {
            key: row
            for key, (number, row) in self.tables.get(table, {}).items()
            if row is not None
            and number >= floor
            and not any(number < one["begun"] and _is_in(one, row) for one in ranges)
        }

    def _apply_rows(self, message: dict[str, Any]) -> None:
        table = f"{message['database']}.{message['table']}"
        rows = self.tables.setdefault(table, {})
        for change in message["changes"]:
            self.changes += 1
            key = self._key(table, message["schema"], change["row"])
            identity = (table, key, change["seq"])
            if identity in self._seen:
                self.duplicates += 1
            self._seen.add(identity)
            if key not in rows or change["seq"] > rows[key][0]:
                rows[key] = (change["seq"], None if change["op"] == "delete" else change["row"])

    def _take_schema(self, message: dict[str, Any]) -> None:
        version = (f"{message['database']}.{message['table']}", message["schema"])
        definition = {"columns": message["columns"], "key": message["key"]}
        assert self.definitions.setdefault(version, definition) == definition, (
            f"{version} has two definitions"
        )
        self.keys[version] = message["key"]

    def _key(self, table: str, schema: int, row: dict[str, Any]) -> Key:
        return tuple(row[name] for name in self.keys[table, schema])

    def _raise_floor(self, table: str, number: str) -> None:
        self.floors[table] = max(self.floors.get(table, ""), number)


def _is_in(message: dict[str, Any], row: dict[str, Any]) -> bool:
    value, first, last = row[message["column"]], message["first"], message["last"]
    return (first is None or value >= first) and (last is None or value <= last)
