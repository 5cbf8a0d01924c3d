"""Locally stored messages are stored once, claimed by one process, and survive it."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from metaq._core import decode_messages
from metaq.client.compression import compress
from metaq.client.consumer.settlement.local_retry import _message, _record
from metaq.client.consumer.settlement.local_retry_store import (
    BODY_FLAG,
    PAGE_ROWS,
    LocalRetryStore,
    local_retry_file,
    local_retry_files,
)
from metaq.client.message import Message
from metaq.client.session.routes import Queue
from metaq.errors import UnusableFile
from tests.support.records import record


def message(queue_offset: int) -> Message:
    return Message("T", b"body", id=f"id-{queue_offset}", queue=Queue("T", "b", 1), queue_offset=queue_offset)


def test_a_message_is_parked_once(tmp_path: Path) -> None:
    parked = LocalRetryStore(tmp_path / "g.sqlite")
    assert parked.add(message(7), {"a": 1}, "why", 1000, 2000)
    assert not parked.add(message(7), {"a": 1}, "again", 1001, 3000)
    (row,) = parked.rows()
    assert (row.body_bytes, row.record, row.error, row.due_ms) == (4, {"a": 1, BODY_FLAG: 0}, "why", 2000)
    assert (parked.body(row.number), parked.body(99)) == (b"body", None)


def test_due_messages_are_claimed_by_one_process(tmp_path: Path) -> None:
    one, other = LocalRetryStore(tmp_path / "g.sqlite"), LocalRetryStore(tmp_path / "g.sqlite")
    for queue_offset in range(3):
        one.add(message(queue_offset), {}, "why", 0, 1000 + queue_offset)
    assert one.claim(999, 5000, 10) == []
    assert [row.queue_offset for row in one.claim(1001, 5000, 10)] == [0, 1]
    assert [row.queue_offset for row in other.claim(1002, 5000, 10)] == [2]
    other.release([3], 1500)
    assert [row.queue_offset for row in one.claim(1500, 5000, 10)] == [2], (
        "released before its claim was over"
    )
    assert len(other.claim(5000, 9000, 10)) == 3, "what a process that died had claimed comes again"


def test_it_survives_the_process_and_a_failure_counts(tmp_path: Path) -> None:
    parked = LocalRetryStore(tmp_path / "g.sqlite")
    parked.add(message(1), {}, "why", 0, 0)
    (row,) = parked.claim(0, 10, 1)
    parked.add_failure(row.number, "still", 77)
    parked.close()
    again = LocalRetryStore(tmp_path / "g.sqlite")
    (row,) = again.rows()
    assert (row.attempts, row.error, row.due_ms) == (1, "still", 77)
    assert again.replay([row.number, 999]) == 1
    (row,) = again.rows()
    assert (row.attempts, row.due_ms) == (0, 0)
    again.remove(row.number)
    assert len(again) == 0
    assert again.replay() == 0


def test_every_commit_is_synced(tmp_path: Path) -> None:
    parked = LocalRetryStore(tmp_path / "g.sqlite")
    (level,) = parked._database.execute("PRAGMA synchronous").fetchone()
    assert level == 2, "FULL: a message is acknowledged only after it is on the disk"


def test_groups_are_found_by_their_files(tmp_path: Path) -> None:
    for group in ("a%b", "plain"):
        LocalRetryStore(local_retry_file(tmp_path, group)).close()
    assert list(local_retry_files(tmp_path)) == ["a%b", "plain"]
    assert local_retry_files(tmp_path / "nowhere") == {}


def test_a_file_that_is_not_a_database_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "g.sqlite").write_bytes(b"this is text" * 100)
    with pytest.raises(UnusableFile, match="cannot be opened"):
        LocalRetryStore(tmp_path / "g.sqlite")


def other(queue_offset: int) -> Message:
    """A message at the same offset, after the topic was deleted and created again."""
    return Message("T", b"new", id="other", queue=Queue("T", "b", 1), queue_offset=queue_offset)


def test_another_message_at_the_same_place_is_parked_too(tmp_path: Path) -> None:
    parked = LocalRetryStore(tmp_path / "g.sqlite")
    assert parked.add(message(7), {}, "why", 0, 0)
    assert parked.add(other(7), {}, "why", 0, 0)
    assert [parked.body(row.number) for row in parked.rows()] == [b"body", b"new"]


def test_a_file_of_the_first_layout_is_taken_over(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "g.sqlite")) as database:
        database.executescript(
            "CREATE TABLE parked (number INTEGER PRIMARY KEY, topic TEXT NOT NULL, broker TEXT NOT NULL,"
            " queue_id INTEGER NOT NULL, queue_offset INTEGER NOT NULL, message_id TEXT NOT NULL,"
            " record TEXT NOT NULL, body BLOB NOT NULL, attempts INTEGER NOT NULL, error TEXT NOT NULL,"
            " parked_ms INTEGER NOT NULL, due_ms INTEGER NOT NULL,"
            " UNIQUE (broker, topic, queue_id, queue_offset));"
            "CREATE INDEX parked_due ON parked (due_ms);"
            "INSERT INTO parked VALUES (3, 'T', 'b', 1, 7, 'id-7', '{\"a\": 1}', x'6f6c64', 2, 'why', 5, 6);"
        )
    for _ in range(2):
        with closing(LocalRetryStore(tmp_path / "g.sqlite")) as parked:
            assert not parked.add(message(7), {}, "again", 0, 0)
            parked.add(other(7), {}, "why", 0, 0)
            old, new = parked.rows()
            assert (old.number, parked.body(3), old.record, old.attempts) == (3, b"old", {"a": 1}, 2)
            assert parked.body(new.number) == b"new"


def test_a_store_that_another_one_opens_at_the_same_moment_is_waited_for(tmp_path: Path) -> None:
    """While one connection writes, no other can change the mode of the journal, and SQLite does not wait."""
    path = local_retry_file(tmp_path, "g")
    path.touch(0o600)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    opened = threading.Thread(target=lambda: LocalRetryStore(path).close())
    opened.start()
    opened.join(0.2)
    assert opened.is_alive()
    other.execute("ROLLBACK")
    opened.join(60)
    other.close()
    with closing(LocalRetryStore(path)) as store:
        assert len(store) == 0


def received(body: bytes, queue_offset: int = 7) -> Message:
    """A message whose body its sender has compressed."""
    stored, system_flag = compress(body, 0, "zlib")
    queue = Queue("orders", "b", 3)
    ((message,), _) = decode_messages(
        record(stored, system_flag=system_flag, queue_offset=queue_offset), queue
    )
    return message


def test_a_body_is_parked_as_it_was_sent(tmp_path: Path) -> None:
    """From a few KB, 64 MiB went to the disk."""
    parked = LocalRetryStore(tmp_path / "g.sqlite")
    parked.add(received(bytes(16_000_000)), {}, "why", 0, 0)
    (row,) = parked.claim(0, 1, 16)
    assert row.body_bytes == len(received(bytes(16_000_000)).stored_body[0]) < 20_000
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 200_000


def test_a_parked_message_has_the_body_that_was_sent(tmp_path: Path) -> None:
    parked = LocalRetryStore(tmp_path / "g.sqlite")
    for number, message in enumerate((received(b"x" * 900), received(b"x" * 900, 8).__replace__(flag=5))):
        parked.add(message, _record(message), "why", 0, 0)
        row = list(parked.rows())[number]
        body = parked.body(row.number)
        assert body is not None
        again = _message(row, body)
        assert (again.body, again.flag, again.reconsume_times) == (b"x" * 900, message.flag, 1)


def test_a_full_store_refuses_messages_and_says_why(tmp_path: Path) -> None:
    parked = LocalRetryStore(tmp_path / "g.sqlite", bytes_max=200_000)
    large = Message("T", b"x" * 100_000, id="1", queue=Queue("T", "b", 1), queue_offset=1)
    assert parked.add(large, {}, "why", 0, 0)
    with pytest.raises(UnusableFile, match="and local_bytes_max is 200000"):
        parked.add(large.__replace__(queue_offset=2), {}, "why", 0, 0)
    assert [row.queue_offset for row in parked.rows()] == [1]
    # The broker delivers a message again if its acknowledgement was lost.
    assert not parked.add(large, {}, "again", 0, 0)
    # A removed message makes room, although the file keeps its length.
    (row,) = parked.claim(0, 1, 16)
    parked.remove(row.number)
    assert parked.add(large.__replace__(queue_offset=3), {}, "why", 0, 0)


def test_all_pages_are_listed(tmp_path: Path) -> None:
    parked = LocalRetryStore(tmp_path / "g.sqlite")
    with parked._lock:
        parked._database.execute("PRAGMA synchronous=OFF")
    for queue_offset in range(2 * PAGE_ROWS + 1):
        parked.add(message(queue_offset), {}, "why", 0, 0)
    assert [row.queue_offset for row in parked.rows()] == list(range(2 * PAGE_ROWS + 1))
