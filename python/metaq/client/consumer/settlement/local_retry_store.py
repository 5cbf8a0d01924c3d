"""Messages whose handler keeps failing, stored on the consumer's own disk.

Each group has one SQLite file, which all its processes on this machine may share. Every change is committed
with `synchronous=FULL` before the call returns, and only then is the message acknowledged to the broker. So a
message is always at the broker (not acknowledged), here, or both. If the power fails between the two steps,
the broker delivers it again and `add` recognises it by queue, offset and id. The id is part of this because a
topic that was deleted and created again counts from zero.

The command line calls these messages parked, and so do the names on disk.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import quote, unquote

from metaq.errors import UnusableFile
from metaq.private_files import make_private_directory, open_private, whose

if TYPE_CHECKING:
    from metaq.client.message import Message

SUFFIX: Final = ".parked.sqlite"
BUSY_TIMEOUT_S: Final = 30.0
ERROR_CHARACTERS_MAX: Final = 2000
PAGE_ROWS: Final = 100
BODY_FLAG: Final = "body_flag"
"""The field of a record that says how its body is compressed. Older records lack it; their bodies are not."""

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
"""Version 0 had no message_id in the unique constraint."""
_COLUMNS: Final = (
    "number, topic, broker, queue_id, queue_offset, message_id, record, body,"
    " attempts, error, parked_ms, due_ms"
)
_LISTED: Final = _COLUMNS.replace(" body,", " length(body),")
_RECORD_COLUMN: Final = 6


@dataclass(frozen=True, slots=True)
class StoredRetry:
    """One message in the store."""

    number: int
    queue_topic: str
    """The topic of the queue; the retry topic if the message came through it."""
    broker: str
    queue_id: int
    queue_offset: int
    id: str
    """The unique id of the message."""
    record: dict[str, object]
    """The other fields of the message, as JSON."""
    body_bytes: int
    """The size of the body as it is stored. `LocalRetryStore.body` returns it."""
    attempts: int
    """The number of failed attempts since the message was stored or replayed."""
    error: str
    stored_ms: int
    due_ms: int

    @classmethod
    def from_row(cls, row: tuple[object, ...]) -> Self:
        values = list(row)
        try:
            record = json.loads(str(row[_RECORD_COLUMN]))
        except (ValueError, RecursionError):
            record = None
        # An unreadable row must not keep the others from being listed and tried.
        values[_RECORD_COLUMN] = record if isinstance(record, dict) else {}
        return cls(*values)  # type: ignore[arg-type]


def local_retry_file(directory: Path, group: str) -> Path:
    """Returns the path of a group's store."""
    return directory / f"{quote(group, safe='')}{SUFFIX}"


def local_retry_files(directory: Path) -> dict[str, Path]:
    """Returns every group that has a store in a directory, and its path."""
    found = sorted(directory.glob(f"*{SUFFIX}")) if directory.is_dir() else []
    return {unquote(path.name.removesuffix(SUFFIX)): path for path in found}


def _use_write_ahead_log(database: sqlite3.Connection) -> None:
    """SQLite does not wait if another connection changes the mode at the same moment, so this waits."""
    until_s = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            database.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() >= until_s:
                raise
            time.sleep(0.01)


class LocalRetryStore:
    """The store of one group. Any thread may use it."""

    def __init__(self, path: Path, bytes_max: int | None = None) -> None:
        """Raises UnusableFile if the file cannot be opened. Beyond `bytes_max`, `add` refuses messages."""
        self._path = path
        self._bytes_max = bytes_max
        try:
            make_private_directory(path.parent)
            # SQLite gives its other files the mode of this one.
            os.close(open_private(path))
        except OSError as error:
            raise UnusableFile(
                f"{path}: the store of parked messages cannot be opened: {error.strerror or error}",
                hint=whose(path, error),
            ) from None
        self._lock = threading.Lock()
        try:
            self._database = sqlite3.connect(
                path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            _use_write_ahead_log(self._database)
            self._database.execute("PRAGMA synchronous=FULL")
            self._make_tables()
        except sqlite3.Error as error:
            raise UnusableFile(f"{path}: the store of parked messages cannot be opened: {error}") from None

    def _make_tables(self) -> None:
        """Creates or upgrades the tables in one transaction, which only one process runs at a time."""
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
                # Not executescript, which would commit the open transaction.
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

    def add(self, message: Message, record: dict[str, object], error: str, now_ms: int, due_ms: int) -> bool:
        """Stores a message durably. Returns False if it was stored before. Raises UnusableFile if the store
        is full.

        The body stays as the broker stores it: a body of some KB may have 64 MiB once it is decompressed.
        """
        queue = message.queue
        assert queue is not None, "a consumed message has a queue"
        body, system_flag = message.stored_body
        text = json.dumps(record | {BODY_FLAG: system_flag})
        place = (queue.topic, queue.broker, queue.id, message.queue_offset, message.id)
        self._require_room(place, len(body) + len(text))
        values = (
            *place,
            *(text, body, error[:ERROR_CHARACTERS_MAX], now_ms, due_ms),
        )
        sql = (
            "INSERT OR IGNORE INTO parked (topic, broker, queue_id, queue_offset, message_id, record, body,"
            " attempts, error, parked_ms, due_ms) VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?)"
        )
        return self._change(sql, values) == 1

    def _require_room(self, place: tuple[str | int, ...], size_bytes: int) -> None:
        """Raises UnusableFile if the store is full and does not have the message of this place."""
        if self._bytes_max is None:
            return
        pages, free, page_bytes = (
            self._number(f"PRAGMA {name}") for name in ("page_count", "freelist_count", "page_size")
        )
        used = (pages - free) * page_bytes
        if used + size_bytes <= self._bytes_max:
            return
        known = (
            "SELECT count(*) FROM parked WHERE topic = ? AND broker = ? AND queue_id = ? AND queue_offset = ?"
            " AND message_id = ?"
        )
        if not self._number(known, place):
            raise UnusableFile(
                f"{self._path} has {used} bytes of parked messages, and local_bytes_max is {self._bytes_max}",
                hint="correct the handler, or raise local_bytes_max; `metaq parked list` shows the messages",
            )

    def claim(self, now_ms: int, until_ms: int, count_max: int) -> list[StoredRetry]:
        """Takes messages that are due. Nobody else gets them before `until_ms`, even if this process dies."""
        sql = (
            "UPDATE parked SET due_ms = ? WHERE number IN"
            f" (SELECT number FROM parked WHERE due_ms <= ? ORDER BY due_ms LIMIT ?) RETURNING {_LISTED}"
        )
        return self._select(sql, (until_ms, now_ms, count_max))

    def add_failure(self, number: int, error: str, due_ms: int) -> None:
        """Counts a failed attempt; the message is due again at `due_ms`."""
        sql = "UPDATE parked SET attempts = attempts + 1, error = ?, due_ms = ? WHERE number = ?"
        self._change(sql, (error[:ERROR_CHARACTERS_MAX], due_ms, number))

    def release(self, numbers: Iterable[int], due_ms: int) -> None:
        """Ends the claim on messages that were not tried; they are due again at `due_ms`."""
        for number in numbers:
            self._change("UPDATE parked SET due_ms = ? WHERE number = ?", (due_ms, number))

    def remove(self, number: int) -> None:
        self._change("DELETE FROM parked WHERE number = ?", (number,))

    def body(self, number: int) -> bytes | None:
        """Returns the body of a message as it is stored; None if the message is gone."""
        sql = "SELECT body FROM parked WHERE number = ?"
        with self._lock, closing(self._database.execute(sql, (number,))) as cursor:
            found = cursor.fetchone()
        return None if found is None else bytes(found[0])

    def rows(self) -> Iterator[StoredRetry]:
        """Yields the stored messages, the oldest first."""
        sql = f"SELECT {_LISTED} FROM parked WHERE number > ? ORDER BY number LIMIT ?"
        number = -1
        while page := self._select(sql, (number, PAGE_ROWS)):
            yield from page
            number = page[-1].number

    def replay(self, numbers: Iterable[int] | None = None) -> int:
        """Makes these messages, or all, due now with all attempts left. Returns how many there were."""
        if numbers is None:
            return self._change("UPDATE parked SET due_ms = 0, attempts = 0", ())
        sql = "UPDATE parked SET due_ms = 0, attempts = 0 WHERE number = ?"
        return sum(self._change(sql, (number,)) for number in numbers)

    def __len__(self) -> int:
        return self._number("SELECT count(*) FROM parked")

    def _number(self, sql: str, values: tuple[object, ...] = ()) -> int:
        with self._lock, closing(self._database.execute(sql, values)) as cursor:
            return int(cursor.fetchone()[0])

    def _change(self, sql: str, values: tuple[object, ...]) -> int:
        with self._lock, closing(self._database.execute(sql, values)) as cursor:
            return cursor.rowcount

    def _select(self, sql: str, values: tuple[object, ...]) -> list[StoredRetry]:
        with self._lock, closing(self._database.execute(sql, values)) as cursor:
            return [StoredRetry.from_row(row) for row in cursor.fetchall()]
