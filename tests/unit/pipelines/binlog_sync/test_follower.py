"""The loop of binlog-sync, fed with items, without a database or a broker."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Set
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from metaq.client.session.routes import Queue
from metaq.errors import CommandError, InvalidMessage
from metaq.pipelines.binlog_sync.config import BinlogConfig
from metaq.pipelines.binlog_sync.coordinates import NOWHERE, Coordinates, Position
from metaq.pipelines.binlog_sync.errors import BinlogError, Unsuitable
from metaq.pipelines.binlog_sync.follower import Follower
from metaq.pipelines.binlog_sync.reading.binlog_items import Begin, Commit, Idle, Item, Prepared, Query, Rows
from metaq.pipelines.binlog_sync.reading.chunks import Chunk, NotYet
from metaq.pipelines.binlog_sync.reading.database import DatabaseServer, SourceTable
from metaq.pipelines.binlog_sync.reading.flavours import Moment, flavour_of
from metaq.pipelines.binlog_sync.reading.sql_tokens import USUAL, Dialect, dialect_of
from metaq.pipelines.binlog_sync.values.columns import Column, Definition
from metaq.pipelines.binlog_sync.values.rows import Row
from metaq.pipelines.binlog_sync.writing.outbox import Lane, Outbox
from metaq.pipelines.binlog_sync.writing.state import Cursor, StateFile, SyncState, TableState

START = Coordinates("b.000001", 400)
ITEMS_MAX = 1_000


class FedStream:
    """A stream of the given items, and then of nothing."""

    coordinates = START
    committed_s = 0

    def __init__(self, *items: Item) -> None:
        self._items = items

    def forget_unwanted(self) -> None:
        pass

    def items(self) -> Iterator[Item]:
        yield from self._items
        for _ in range(ITEMS_MAX):
            yield Idle()


def stream(*items: Item) -> Any:
    return FedStream(*items)


class RefusingProducer:
    """A producer whose broker refuses every message."""

    def send_soon(self, topic: str, body: bytes, *, tag: str, queue: Any) -> Any:
        raise InvalidMessage("too large")


def make_follower(
    config: BinlogConfig, producer: Any, state: SyncState, chunks: Any = None, **source: Any
) -> tuple[Follower, Outbox]:
    outbox = Outbox(producer, message_bytes=1000, buffer_bytes=10**6, is_stopping=lambda: False)
    follower = Follower(
        config,
        state,
        StateFile(config.state_file),
        outbox,
        chunks,
        lambda progress: None,
        threading.Event(),
        {},
        **source,
    )
    return follower, outbox


def make_refused(config: BinlogConfig) -> tuple[Follower, Outbox]:
    """Returns a follower without queues, whose producer refuses every message."""
    return make_follower(config, RefusingProducer(), SyncState("changes", "s", 1, START, "", []))


@pytest.mark.parametrize("session", ["shop", "other", ""])
def test_a_change_logged_as_a_statement_fails_whatever_database_the_session_is_in(
    config: BinlogConfig, session: str
) -> None:
    follower, _ = make_refused(config)
    with pytest.raises(BinlogError, match=r"a change of rows before .* as a statement") as failure:
        follower.follow(
            stream(Begin(START, "0-1-2", False), Query(session, "UPDATE shop.orders SET price = 0"))
        )
    assert session in str(failure.value)


def test_a_refused_message_ends_the_run_of_an_idle_source(config: BinlogConfig) -> None:
    follower, outbox = make_refused(config)
    outbox.put(Lane(Queue("changes", "b", 0), "shop.orders", b""), 0, [b"{}"])
    with pytest.raises(CommandError, match="too large"):
        follower.follow(stream())


def test_a_renamed_table_is_known_after_a_kill(config: BinlogConfig) -> None:
    definition = Definition((Column("id", "int32", False),), ("id",))
    state = SyncState("changes", "s", 1, START, "", [])
    state.tables["shop.new"] = TableState(0, Definition((), ()), Cursor("", ()))
    follower, _ = make_follower(config, RefusingProducer(), state)
    follower.register([SourceTable("shop", "new", definition, 1)])
    table = follower.tables["shop.new"]
    assert (table.schema, table.definition) == (1, definition)
    assert follower.snapshot.pending == ("shop.new",)


@pytest.mark.parametrize(("lowers_names", "is_found"), [(True, True), (False, False)])
def test_names_in_statements_get_the_case_that_the_server_stores(
    config: BinlogConfig, lowers_names: bool, is_found: bool
) -> None:
    producer = RecordingProducer()
    follower, _ = make_follower(config, producer, SyncState("changes", "s", 1, START, "", [("b", 0)]))
    follower.reconnected(DatabaseServer(flavour_of("11.4-MariaDB"), "11.4-MariaDB", "s", lowers_names), None)
    follower.follow(stream(Begin(START, "0-1-2", True), Query("Shop", "TRUNCATE Orders")))
    names = [body["names"] for body in producer.bodies if body["kind"] == "ddl"]
    assert names == ([[["shop", "orders"]]] if is_found else [])


# Chunks

SERVER = "34d5a371-e1bb-11f1-ae18-02fc00000001"
DEFINITION = Definition((Column("id", "int32", False), Column("v", "text", True)), ("id",))
LOW, HIGH = Coordinates("b.000001", 400), Coordinates("b.000001", 900)


class SentChanges:
    """A follower whose tables are read, and everything that it sends."""

    def __init__(self, config: BinlogConfig, **source: Any) -> None:
        self.producer = RecordingProducer()
        state = SyncState("changes", "s", 1, START, "0-1-1", [("b", 0)])
        self.follower, _ = make_follower(
            config, self.producer, state, OneChunk(Moment(START, START, True)), **source
        )
        self._number = 1

    def register(self, *names: str) -> None:
        """Adds tables that were read before."""
        for name in names:
            known = TableState(1, DEFINITION, Cursor("", ("id",), done=True))
            self.follower.tables.put("shop", name, known)

    def follow(self, *statements: str, dialect: Dialect = USUAL) -> None:
        for statement in statements:
            self._number += 1
            begin = Begin(START, f"0-1-{self._number}", True)
            self.follower._begin(begin)
            fed: Any = FedStream()
            self.follower._query(Query("shop", statement, dialect), fed)

    def kinds(self, kind: str) -> list[dict[str, Any]]:
        return [body for body in self.producer.bodies if body["kind"] == kind]


@pytest.mark.parametrize(
    ("statement", "pending"),
    [
        ("FROBNICATE TABLE orders", {"shop.orders", "shop.others"}),
        ("DROP TABLE orders WITH CARE", {"shop.orders"}),
        ("DROP TABLE elsewhere.orders WITH CARE", {"shop.orders"}),
        ("DROP TABLE crm.people WITH CARE", set()),
        ("CREATE USER u IDENTIFIED BY 'orders'", set()),
        ('ALTER TABLE "orders" ADD c INT', {"shop.orders", "shop.others"}),
    ],
)
def test_a_statement_that_is_not_understood_makes_tables_be_read_again(
    config: BinlogConfig, caplog: pytest.LogCaptureFixture, statement: str, pending: set[str]
) -> None:
    sent = SentChanges(config)
    sent.register("orders", "others")
    sent.follow(statement, dialect=dialect_of(None, is_mariadb=True))
    assert set(sent.follower.snapshot.pending) == pending
    assert ("was not understood" in caplog.text) == bool(pending)
    assert all(name in caplog.text for name in pending)
    assert "'orders'" not in caplog.text, "texts may be secrets"
    assert not sent.kinds("ddl")


def test_a_statement_that_is_not_understood_stops_the_run_if_so_wanted(config: BinlogConfig) -> None:
    sent = SentChanges(replace(config, unknown_statements="stop"))
    sent.register("orders")
    sent.follow("DROP TABLE crm.people WITH CARE", "GRANT ALL ON *.* TO u")
    with pytest.raises(BinlogError, match=r"not understood .* shop\.orders: FROBNICATE orders") as stopped:
        sent.follow("FROBNICATE orders")
    assert stopped.value.hint is not None and "source.unknown_statements" in stopped.value.hint


def test_an_unknown_statement_may_have_created_tables(config: BinlogConfig) -> None:
    new = SourceTable("shop", "new", DEFINITION, 3)
    sent = SentChanges(config, source_tables=lambda: ([new], {"shop.old": "it is system-versioned"}))
    sent.follow("FROBNICATE INTO new")
    assert sent.follower.snapshot.pending == ("shop.new",)
    assert sent.follower.selection.left_out == {"shop.old": "it is system-versioned"}


def test_an_unknown_statement_may_have_made_a_table_suitable(config: BinlogConfig) -> None:
    orders = SourceTable("shop", "orders", DEFINITION, 3)
    sent = SentChanges(config, source_tables=lambda: ([orders], {}))
    sent.register("orders")
    sent.follower.selection.refuse("shop", "orders", "it is system-versioned")
    sent.follow("FROBNICATE people")
    assert not sent.follower.selection.left_out
    assert sent.follower.snapshot.pending == ("shop.orders",)


def test_a_prefix_or_a_mode_does_not_hide_a_statement(config: BinlogConfig) -> None:
    sent = SentChanges(config)
    sent.register("orders", "others")
    sent.follow("SET STATEMENT max_statement_time=100 FOR TRUNCATE TABLE orders")
    (truncated,) = sent.kinds("ddl")
    assert (truncated["action"], truncated["empties"], truncated["gone"]) == ("truncate", True, [])
    sent.follow("SET STATEMENT a=1 FOR RENAME TABLE others TO crm.others")
    assert sent.kinds("ddl")[1]["gone"] == [["shop", "others"]]
    statement = r"ALTER TABLE orders COMMENT 'path C:\', ADD COLUMN c INT DEFAULT 7"
    sent.follow(statement, dialect=dialect_of(1 << 20, is_mariadb=True))
    assert sent.follower.snapshot.pending == ("shop.orders",)


def test_a_statement_on_tables_is_not_rolled_back(config: BinlogConfig) -> None:
    state = SyncState("changes", "s", 1, LOW, "0-1-4", [("b", 0)])
    producer = RecordingProducer()
    follower, _ = make_follower(config, producer, state, OneChunk())
    begin = Begin(LOW, "0-1-5", False)
    dropped = Query("shop", "DROP TABLE IF EXISTS orders /* Generated to handle failed CREATE OR REPLACE */")
    rollback = Query("shop", "ROLLBACK")
    moving: Any = MovingStream((450, begin), (500, dropped), (550, rollback))
    follower.follow(moving)
    assert follower.position.gtid == "0-1-5"
    assert [body["gone"] for body in producer.bodies if body["kind"] == "ddl"] == [[["shop", "orders"]]]
    moving = MovingStream((600, begin), (650, changes("insert", {"id": 1, "v": "x"})), (700, rollback))
    with pytest.raises(BinlogError, match="rolls rows back"):
        follower.follow(moving)


def test_a_renamed_view_is_not_read(config: BinlogConfig) -> None:
    table = SourceTable("shop", "new", DEFINITION, 0)
    sent = SentChanges(config, source_table=lambda database, name: table if name == "new" else None)
    sent.follow("RENAME TABLE orders TO new, some_view TO other_view")
    assert sent.follower.snapshot.pending == ("shop.new",)


def test_a_new_table_is_announced_before_its_first_row(config: BinlogConfig) -> None:
    table = SourceTable("shop", "new", DEFINITION, 0)
    sent = SentChanges(config, source_table=lambda database, name: table if name == "new" else None)
    sent.follow("CREATE TABLE new (id INT PRIMARY KEY, v TEXT)")
    (announced,) = sent.kinds("schema")
    assert (announced["table"], announced["seq"] >= sent.kinds("ddl")[0]["seq"]) == ("new", True)
    assert not sent.follower.snapshot.pending
    # Many programs do this at every start.
    sent.follow("CREATE TABLE IF NOT EXISTS new (id INT PRIMARY KEY, v TEXT)")
    assert len(sent.kinds("schema")) == 1
    sent.follow("DROP TABLE new", "CREATE TABLE new (id INT PRIMARY KEY, v TEXT)")
    assert len(sent.kinds("schema")) == 2
    # Logged by statement, its rows are not in the binlog.
    sent.follow("CREATE OR REPLACE TABLE new (id INT PRIMARY KEY) AS SELECT 1 AS id")
    assert sent.follower.snapshot.pending == ("shop.new",)


def test_a_table_that_becomes_unsuitable_is_left_out_and_taken_back(config: BinlogConfig) -> None:
    is_versioned = True

    def look_up(database: str, name: str) -> SourceTable:
        if is_versioned:
            raise Unsuitable("it is system-versioned: its rows include its history")
        return SourceTable(database, name, DEFINITION, 4)

    sent = SentChanges(config, source_table=look_up)
    sent.register("orders", "others")
    sent.follow(
        "ALTER TABLE orders ADD SYSTEM VERSIONING", "CREATE TABLE fresh (id INT) WITH SYSTEM VERSIONING"
    )
    follower = sent.follower
    assert set(follower.selection.left_out) == {"shop.orders", "shop.fresh"}
    assert not follower.wants("shop", "orders") and follower.wants("shop", "others")
    assert not sent.kinds("ddl") and not follower.snapshot.pending
    # The next run must not take it for complete.
    cursor = follower.tables["shop.orders"].cursor
    assert cursor is not None and not cursor.done
    is_versioned = False
    sent.follow("ALTER TABLE orders DROP SYSTEM VERSIONING", "DROP TABLE fresh")
    assert not follower.selection.left_out
    assert follower.snapshot.pending == ("shop.orders",)


def test_a_table_that_became_unsuitable_between_two_runs_is_read_when_it_comes_back(
    config: BinlogConfig,
) -> None:
    state = SyncState("changes", "s", 1, START, "", [])
    state.tables["shop.orders"] = TableState(1, DEFINITION, Cursor("", ("id",), done=True))
    follower, _ = make_follower(config, RefusingProducer(), state)
    follower.selection.refuse("shop", "orders", "it is system-versioned")
    follower.register([])
    cursor = follower.tables["shop.orders"].cursor
    assert cursor is not None and not cursor.done


class FakeReader:
    """A reader of the given rows."""

    database, table, definition = "shop", "orders", DEFINITION

    def images(self, rows: Any) -> Iterator[Row]:
        return iter(rows)


class OneChunk:
    """Returns rows 1 to 4, as seen somewhere between two coordinates, as often as it is asked."""

    def __init__(self, moment: Moment = Moment(LOW, HIGH, False)) -> None:  # noqa: B008
        self.moment = moment
        self.asked: list[Position] = []

    def estimate(self, database: str, table: str) -> int:
        return 4

    def read(
        self, database: str, table: str, cursor: Cursor | None, reached: Position, committed: Set[str]
    ) -> Chunk:
        self.asked.append(reached)
        self.committed = set(committed)
        rows: list[Row] = [{"id": number, "v": "seen"} for number in range(1, 5)]
        return Chunk(database, table, self.moment, DEFINITION, rows, (4,), True)


class MovingStream(FedStream):
    """A stream whose items come with the coordinates after them."""

    def __init__(self, *items: tuple[int, Item]) -> None:
        self._moves = items
        self.coordinates = LOW

    def items(self) -> Iterator[Item]:
        for position, item in self._moves:
            self.coordinates = Coordinates("b.000001", position)
            yield item


class RecordingProducer:
    """A producer that accepts and records every message."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    def send_soon(self, topic: str, body: bytes, *, tag: str, queue: Any) -> Any:
        self.bodies.append(json.loads(body))
        future: Future[None] = Future()
        future.set_result(None)
        return future


class FakeImages(tuple[Row, ...]):
    """Rows in place of the images of an event."""

    data = b""


def changes(operation: str, *rows: Row) -> Rows:
    reader: Any = FakeReader()
    images: Any = FakeImages(rows)
    return Rows(reader, operation, images, 0)


def follow(
    config: BinlogConfig, chunks: OneChunk, *items: tuple[int, Item]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the changes and the snapshot barriers that the items cause."""
    producer = RecordingProducer()
    state = SyncState("changes", "s", 1, LOW, f"{SERVER}:1-4", [("b", 0)], flavour="mysql")
    follower, _ = make_follower(config, producer, state, chunks)
    follower.register([SourceTable("shop", "orders", DEFINITION, 4)])
    moving: Any = MovingStream((400, Idle()), *items)
    follower.follow(moving)
    sent = [change for body in producer.bodies if body["kind"] == "rows" for change in body["changes"]]
    return sent, [body for body in producer.bodies if body["kind"] == "snapshot"]


def test_a_chunk_omits_keys_that_the_binlog_touches(config: BinlogConfig) -> None:
    begin = Begin(LOW, f"{SERVER}:5", False)
    sent, barriers = follow(
        config,
        OneChunk(),
        (450, begin),
        (500, changes("update", {"id": 1, "v": "seen"}, {"id": 1, "v": "newer"})),
        (550, changes("delete", {"id": 2, "v": "seen"})),
        (600, changes("update", {"id": 3, "v": "seen"}, {"id": 9, "v": "moved"})),
        (900, Commit()),
    )
    by_id = {change["row"]["id"]: (change["op"], change["row"].get("v")) for change in sent}
    assert by_id == {
        1: ("update", "newer"), 2: ("delete", None), 3: ("delete", None), 9: ("insert", "moved"),
        4: ("snapshot", "seen"),
    }  # fmt: skip
    # Changes of the binlog must not count as older than the snapshot.
    assert [barrier["state"] for barrier in barriers] == ["begin", "end"]
    for barrier in barriers:
        assert all(barrier["begun"] <= change["seq"] for change in sent)


@pytest.mark.parametrize(
    "statement",
    ["TRUNCATE TABLE orders", "ALTER TABLE shop.orders COMMENT = 'x'", "RENAME TABLE orders TO other.x",
     "DROP DATABASE shop"],
)  # fmt: skip
def test_a_statement_on_its_table_discards_a_chunk(config: BinlogConfig, statement: str) -> None:
    chunks = OneChunk()
    begin = Begin(LOW, f"{SERVER}:5", True)
    # The stream is after the statement already when it yields the begin.
    sent, _ = follow(config, chunks, (900, begin), (900, Query("shop", statement)))
    # The chunk is read again, after the statement.
    assert [reached.gtid for reached in chunks.asked] == [f"{SERVER}:1-4", f"{SERVER}:1-5"]
    assert [change["row"]["id"] for change in sent] == [1, 2, 3, 4]


def test_a_statement_on_another_table_keeps_the_chunk(config: BinlogConfig) -> None:
    chunks = OneChunk()
    begin = Begin(LOW, f"{SERVER}:5", True)
    follow(config, chunks, (900, begin), (900, Query("shop", "ALTER TABLE others COMMENT = 'x'")))
    assert len(chunks.asked) == 1


def test_an_exact_chunk_sends_all_its_rows(config: BinlogConfig) -> None:
    begin = Begin(LOW, f"{SERVER}:5", False)
    update = changes("update", {"id": 1, "v": "old"}, {"id": 1, "v": "seen"})
    exact = OneChunk(Moment(LOW, HIGH, True))
    sent, _ = follow(config, exact, (450, begin), (500, update), (900, Commit()))
    assert [change["op"] for change in sent] == ["update", *["snapshot"] * 4]


def test_an_exact_chunk_omits_keys_that_xa_transactions_touch(config: BinlogConfig) -> None:
    begin = Begin(LOW, f"{SERVER}:5", False, is_xa=True)
    update = changes("update", {"id": 1, "v": "seen"}, {"id": 1, "v": "newer"})
    sent, barriers = follow(
        config,
        OneChunk(Moment(LOW, HIGH, True)),
        (450, begin),
        (500, update),
        (900, Prepared("x'61',x'',1", is_committed=True)),
    )
    by_id = {change["row"]["id"]: change["op"] for change in sent}
    assert by_id == {1: "update", 2: "snapshot", 3: "snapshot", 4: "snapshot"}
    # Changes of the binlog must not count as older than the snapshot.
    assert [barrier["state"] for barrier in barriers] == ["begin", "end"]
    assert all(barrier["begun"] <= change["seq"] for barrier in barriers for change in sent)


class Behind(OneChunk):
    """Reads from a server that has not committed everything in its binlog at the first attempts."""

    times = 1

    def read(
        self, database: str, table: str, cursor: Cursor | None, reached: Position, committed: Set[str]
    ) -> Chunk:
        chunk = super().read(database, table, cursor, reached, committed)
        if len(self.asked) <= self.times:
            raise NotYet
        return chunk


def test_the_binlog_is_read_on_while_the_server_has_not_committed(config: BinlogConfig) -> None:
    chunks = Behind()
    begin = Begin(LOW, f"{SERVER}:5", False)
    insert = changes("insert", {"id": 9, "v": "new"})
    sent, _ = follow(config, chunks, (450, begin), (500, insert), (900, Commit()))
    assert [change["row"]["id"] for change in sent] == [9, 1, 2, 3, 4]
    assert len(chunks.asked) == 2


class UnsuitableTable(OneChunk):
    def read(
        self, database: str, table: str, cursor: Cursor | None, reached: Position, committed: Set[str]
    ) -> Chunk:
        raise Unsuitable("it has no primary key")


def test_a_table_that_becomes_unsuitable_in_its_snapshot_is_left_out(
    config: BinlogConfig, caplog: pytest.LogCaptureFixture
) -> None:
    sent, _ = follow(config, UnsuitableTable())
    assert not sent
    assert "shop.orders is left out: it has no primary key" in caplog.text
    with pytest.raises(BinlogError, match=r"shop\.orders cannot be synchronised: it has no primary key"):
        follow(replace(config, unsuitable="error"), UnsuitableTable())


def test_a_chunk_must_include_committed_xa_transactions(config: BinlogConfig) -> None:
    chunks = Behind()
    chunks.times = 2
    xid = "x'61',x'',1"
    follow(
        config,
        chunks,
        (450, Begin(LOW, f"{SERVER}:5", False, is_xa=True)),
        (500, Prepared(xid, is_committed=False)),
        (510, Begin(LOW, f"{SERVER}:6", True)),
        (900, Query("", "XA COMMIT X'61',X'',1")),
    )
    assert chunks.committed == {xid}


def test_an_xa_transaction_without_an_end_fails_the_run(config: BinlogConfig) -> None:
    begun = (450, Begin(LOW, f"{SERVER}:5", False, is_xa=True)), (900, Begin(HIGH, f"{SERVER}:6", False))
    with pytest.raises(BinlogError, match="without an end"):
        follow(config, OneChunk(), *begun)


def test_a_state_of_the_other_kind_of_server_is_refused(config: BinlogConfig) -> None:
    follower, _ = make_refused(config)
    with pytest.raises(CommandError, match="another kind of server, mariadb, not mysql") as refused:
        follower.reconnected(DatabaseServer(flavour_of("9.7.4"), "9.7.4", "s"), None)
    assert "another topic" in refused.value.hint


def test_another_server_begins_a_new_era_that_is_saved_before_it_is_used(config: BinlogConfig) -> None:
    state = SyncState("changes", "s", 5, START, "0-1-4", [("b", 0)])
    follower, _ = make_follower(config, RecordingProducer(), state)
    follower.register([])
    follower.reconnected(DatabaseServer(flavour_of("11.4-MariaDB"), "11.4-MariaDB", "other"), None)
    saved = StateFile(config.state_file).load()
    assert saved is not None
    assert (saved.server, saved.coordinates, saved.gtid) == ("other", NOWHERE, "0-1-4")
    assert saved.era > 5
    assert follower.position == Position(NOWHERE, "0-1-4")
