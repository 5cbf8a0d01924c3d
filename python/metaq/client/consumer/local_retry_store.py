"""Messages that a consumer keeps on its own disk because its handler fails at them.

One SQLite file per group, which any number of processes of that group on this machine may share. Every change
is committed with `synchronous=FULL` before the call returns, and the broker is told only afterwards: a
message is at any time at the broker (not acknowledged), here, or both. If the power goes between the two, the
broker delivers it again and `park` recognises it by its queue, offset and id: the id too, because a topic
that was made anew counts from zero again.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import quote, unquote

from metaq.errors import CommandError

if TYPE_CHECKING:
    from metaq.client.message import Message

SUFFIX: Final = ".parked.sqlite"
BUSY_TIMEOUT_S: Final = 30.0
ERROR_CHARACTERS_MAX: Final = 2000

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS parked (
    number INTEGER PRIMARY KEY,
    topic TEXT NOT NULL,
    broker TEXT NOT NULL,
    queue_id INTEGER NOT NULL,
    queue_offset INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    record TEXT NOT NULL,
    body BLOB NOT NULL,
    attempts INTEGER NOT NULL,
    error TEXT NOT NULL,
    parked_ms INTEGER NOT NULL,
    due_ms INTEGER NOT NULL,
    UNIQUE (broker, topic, queue_id, queue_offset, message_id)
);
CREATE INDEX IF NOT EXISTS parked_due ON parked (due_ms);
"""
_SCHEMA_VERSION: Final = 1
"""0 had no message_id among what is unique."""
_COLUMNS: Final = (
    "number, topic, broker, queue_id, queue_offset, message_id, record, body,"
    " attempts, error, parked_ms, due_ms"
)


@dataclass(frozen=True, slots=True)
class Parked:
    """One message on the consumer's disk."""

    number: int
    queue_topic: str
    """The retry topic for what came through it."""
    broker: str
    queue_id: int
    queue_offset: int
    message_id: str
    record: dict[str, object]
    """What else the message had, as JSON."""
    body: bytes
    attempts: int
    """How often the handler failed, since it was parked or replayed."""
    error: str
    parked_ms: int
    due_ms: int

    @classmethod
    def from_row(cls, row: tuple[object, ...]) -> Self:
        values = list(row)
        try:
            record = json.loads(str(row[6]))
        except (ValueError, RecursionError):
            record = None
        # One that is unreadable must not keep the others from being listed and tried.
        values[6] = record if isinstance(record, dict) else {}
        return cls(*values)  # type: ignore[arg-type]


def parked_file(directory: Path, group: str) -> Path:
    """Where the messages of a group are parked."""
    return directory / f"{quote(group, safe='')}{SUFFIX}"


def parked_groups(directory: Path) -> dict[str, Path]:
    """The groups that have a file there."""
    found = sorted(directory.glob(f"*{SUFFIX}")) if directory.is_dir() else []
    return {unquote(path.name.removesuffix(SUFFIX)): path for path in found}


class ParkedMessages:
    """The file of one group. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        try:
            self._database = sqlite3.connect(
                path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            self._make_tables()
        except sqlite3.Error as error:
            raise CommandError(f"{path}: parked messages cannot be kept there: {error}") from None

    def _make_tables(self) -> None:
        """All or nothing, also if the power goes, and by one process at a time."""
        old = "ALTER TABLE parked RENAME TO parked_0; DROP INDEX IF EXISTS parked_due;"
        copy = f"INSERT INTO parked ({_COLUMNS}) SELECT {_COLUMNS} FROM parked_0; DROP TABLE parked_0;"
        self._database.execute("BEGIN IMMEDIATE")
        try:
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            if version < _SCHEMA_VERSION:
                (is_old,) = self._database.execute(
                    "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'parked'"
                ).fetchone()
                script = f"{old}{_SCHEMA}{copy}" if is_old else _SCHEMA
                # Not executescript, which would commit what was begun.
                for statement in filter(str.strip, script.split(";")):
                    self._database.execute(statement)
                self._database.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
            self._database.execute("COMMIT")
        except BaseException:
            self._database.execute("ROLLBACK")
            raise

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def park(self, message: Message, record: dict[str, object], error: str, now_ms: int, due_ms: int) -> bool:
        """On disk when it returns; False where it was already."""
        queue = message.queue
        assert queue is not None, "a message that was consumed has its queue"
        values = (
            *(queue.topic, queue.broker, queue.id, message.queue_offset, message.id),
            *(json.dumps(record), message.body, error[:ERROR_CHARACTERS_MAX], now_ms, due_ms),
        )
        sql = (
            "INSERT OR IGNORE INTO parked (topic, broker, queue_id, queue_offset, message_id, record, body,"
            " attempts, error, parked_ms, due_ms) VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?)"
        )
        return self._change(sql, values) == 1

    def claim(self, now_ms: int, until_ms: int, count_max: int) -> list[Parked]:
        """What is due; nobody else gets it before `until_ms`, so a process that dies only delays it."""
        sql = (
            "UPDATE parked SET due_ms = ? WHERE number IN"
            f" (SELECT number FROM parked WHERE due_ms <= ? ORDER BY due_ms LIMIT ?) RETURNING {_COLUMNS}"
        )
        return self._select(sql, (until_ms, now_ms, count_max))

    def failed(self, number: int, error: str, due_ms: int) -> None:
        sql = "UPDATE parked SET attempts = attempts + 1, error = ?, due_ms = ? WHERE number = ?"
        self._change(sql, (error[:ERROR_CHARACTERS_MAX], due_ms, number))

    def release(self, numbers: Iterable[int], due_ms: int) -> None:
        """What was claimed and not tried to the end is due then."""
        for number in numbers:
            self._change("UPDATE parked SET due_ms = ? WHERE number = ?", (due_ms, number))

    def remove(self, number: int) -> None:
        self._change("DELETE FROM parked WHERE number = ?", (number,))

    def rows(self, count_max: int = -1) -> list[Parked]:
        """The oldest first."""
        return self._select(f"SELECT {_COLUMNS} FROM parked ORDER BY number LIMIT ?", (count_max,))

    def replay(self, numbers: Iterable[int] | None = None) -> int:
        """Makes these, or all, due now with all their attempts; how many there were."""
        if numbers is None:
            return self._change("UPDATE parked SET due_ms = 0, attempts = 0", ())
        sql = "UPDATE parked SET due_ms = 0, attempts = 0 WHERE number = ?"
        return sum(self._change(sql, (number,)) for number in numbers)

    def __len__(self) -> int:
        with self._lock, closing(self._database.execute("SELECT count(*) FROM parked")) as cursor:
            return int(cursor.fetchone()[0])

    def _change(self, sql: str, values: tuple[object, ...]) -> int:
        with self._lock, closing(self._database.execute(sql, values)) as cursor:
            return cursor.rowcount

    def _select(self, sql: str, values: tuple[object, ...]) -> list[Parked]:
        with self._lock, closing(self._database.execute(sql, values)) as cursor:
            return [Parked.from_row(row) for row in cursor.fetchall()]
