"""Reading again: its pace, its requests, and tables that change while they are read."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

import pytest

from metaq.pipelines.binlog_sync.config import BinlogConfig
from metaq.pipelines.binlog_sync.coordinates import Position
from metaq.pipelines.binlog_sync.follower import Follower
from metaq.pipelines.binlog_sync.pace import Pace
from metaq.pipelines.binlog_sync.reading.binlog_items import Begin, Query
from metaq.pipelines.binlog_sync.reading.chunks import Chunk, KeyRange, chunk_query
from metaq.pipelines.binlog_sync.reading.database import SourceTable
from metaq.pipelines.binlog_sync.reading.flavours import Moment
from metaq.pipelines.binlog_sync.reread_requests import RereadRequests
from metaq.pipelines.binlog_sync.values.columns import Definition, definition
from metaq.pipelines.binlog_sync.writing.state import Cursor, SyncState
from tests.unit.pipelines.binlog_sync.test_follower import (
    DEFINITION,
    LOW,
    SERVER,
    OneChunk,
    RecordingProducer,
    make_follower,
    stream,
)


def test_the_pace_is_kept_on_average() -> None:
    now = 100.0
    pace = Pace(1000, clock=lambda: now)
    read = 0
    for _ in range(100):
        # It is asked every half second, and reads small chunks for as long as it may.
        now += 0.5
        while pace.allows():
            pace.spend(30)
            read += 30
    assert 50_000 <= read <= 51_100
    assert Pace(0).allows()


def test_a_long_pause_does_not_allow_a_flood() -> None:
    now = 100.0
    pace = Pace(1000, clock=lambda: now)
    now += 3600
    read = 0
    while pace.allows():
        pace.spend(100)
        read += 100
    assert read == 1000


def test_requests_stay_until_they_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaq.pipelines.binlog_sync.reread_requests.POLL_S", 0.0)
    state = tmp_path / "state.json"
    RereadRequests(state).put("shop.a", None, None)
    RereadRequests(state).put("shop.b", 1, None)
    folder = tmp_path / "state.json.rereads"
    (folder / "9.json").write_text('{"table": "shop.c", "first": "1 OR 1", "last": null}')
    (folder / "8.json").write_text("no JSON")
    running = RereadRequests(state)
    found = running.poll()
    assert [(one.table, one.first, one.last, one.is_range) for one in found] == [
        ("shop.a", None, None, False),
        ("shop.b", 1, None, True),
    ]
    assert running.poll() == []
    running.done(found[0])
    # The run was killed: the next one finds what was not done.
    assert [one.table for one in RereadRequests(state).poll()] == ["shop.b"]


def test_a_range_limits_every_chunk() -> None:
    keys = KeyRange("id", -5, 2**63)
    statement, values = chunk_query("d", "t", DEFINITION, (7,), 10, keys)
    assert statement == (
        "SELECT `id`, `v` FROM `d`.`t` WHERE `id` >= %s AND ((`id` > %s)) AND `id` >= -5"
        " AND `id` <= 9223372036854775808 ORDER BY `id` LIMIT 10"
    )
    assert values == (7, 7)


def test_a_definition_without_a_key() -> None:
    found = definition(DEFINITION.columns, ())
    assert (found.key, found.is_keyless) == (("id", "v"), True)
    assert Definition.decode(found.document()) == found
    assert definition(DEFINITION.columns, ("id",)) == DEFINITION


class TwoChunks(OneChunk):
    """Returns a table of two rows, one in each chunk."""

    def read(
        self, database: str, table: str, cursor: Cursor | None, reached: Position, committed: Set[str]
    ) -> Chunk:
        self.asked.append(reached)
        number = 2 if cursor is not None and cursor.last == (1,) else 1
        return Chunk(
            database, table, self.moment, DEFINITION, [{"id": number, "v": None}], (number,), number == 2
        )


def register(config: BinlogConfig, chunks: OneChunk) -> tuple[Follower, RecordingProducer]:
    producer = RecordingProducer()
    state = SyncState("changes", "s", 1, LOW, f"{SERVER}:1-4", [("b", 0)], flavour="mysql")
    follower, _ = make_follower(config, producer, state, chunks)
    follower.register([SourceTable("shop", "orders", DEFINITION, 2)])
    return follower, producer


def test_a_table_that_becomes_stale_while_it_is_read_is_read_once_more(config: BinlogConfig) -> None:
    follower, producer = register(config, TwoChunks(Moment(LOW, LOW, True)))
    table = follower.tables["shop.orders"]
    snapshot = follower.snapshot
    # Before it is read, nothing is wrong yet.
    snapshot.mark_stale(table, "a test")
    assert table.cursor is not None and not table.cursor.is_stale
    reached = Position(LOW, "")
    while table.cursor is None or not table.cursor.begun:
        snapshot.advance(LOW, reached, set())
    for _ in range(3):
        snapshot.mark_stale(table, "a test")
    assert table.cursor.is_stale
    while not snapshot.is_done:
        assert snapshot.advance(LOW, reached, set())
    bodies = producer.bodies
    sent = [change for body in bodies if body["kind"] == "rows" for change in body["changes"]]
    assert [change["row"]["id"] for change in sent] == [1, 2, 1, 2]
    # The position is the same, but the numbers grow.
    first, second = sent[0]["seq"], sent[2]["seq"]
    ends = [body["begun"] for body in bodies if body["kind"] == "snapshot" and body["state"] == "end"]
    assert ends == [first, second] and first < second < f"{first[:-1]}1"


def test_changes_without_a_trace_wait_for_the_interval(config: BinlogConfig) -> None:
    follower, _ = register(config, TwoChunks(Moment(LOW, LOW, True)))
    table, snapshot = follower.tables["shop.orders"], follower.snapshot
    reached = Position(LOW, "")
    while not snapshot.is_done:
        snapshot.advance(LOW, reached, set())
    snapshot.mark_stale(table, "the first reading begins at once")
    while not snapshot.is_done:
        assert snapshot.advance(LOW, reached, set())
    snapshot.mark_stale(table, "the second one waits")
    assert not snapshot.advance(LOW, reached, set())
    assert snapshot.rereading == {"shop.orders": 4}
    # A statement does not wait.
    snapshot.restart(table, "ALTER TABLE orders MODIFY v BLOB")
    assert snapshot.advance(LOW, reached, set())


@pytest.mark.parametrize(
    ("statements", "is_read"),
    [
        (("ADD COLUMN w INT NULL",), False),
        (("DROP COLUMN v",), False),
        (("ADD COLUMN w INT NOT NULL",), True),
        (("DROP COLUMN id",), True),
        (("DROP COLUMN v", "ADD COLUMN V TEXT NULL"), True),
        (("DROP COLUMN v, ADD COLUMN v INT NULL",), True),
    ],
)
def test_which_statements_read_a_table_again(
    config: BinlogConfig, statements: tuple[str, ...], is_read: bool
) -> None:
    chunks = OneChunk(Moment(LOW, LOW, True))
    follower, _ = register(config, chunks)
    follower.follow(stream())
    before = len(chunks.asked)
    for text in statements:
        follower.follow(stream(Begin(LOW, f"{SERVER}:9", True), Query("shop", f"ALTER TABLE orders {text}")))
    assert (len(chunks.asked) > before) is is_read
