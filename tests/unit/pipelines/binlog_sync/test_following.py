"""What the loop of binlog-sync does with what comes, without a database or a broker."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Set
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pymysql
import pytest

from metaq.client.session.routes import Queue
from metaq.errors import CommandError, InvalidMessage
from metaq.pipelines.binlog_sync import flavours
from metaq.pipelines.binlog_sync.columns import Column, Definition, Unsuitable
from metaq.pipelines.binlog_sync.config import BinlogConfig, _own_server_id, read_config
from metaq.pipelines.binlog_sync.database import Server, Source, Table
from metaq.pipelines.binlog_sync.flavours import Moment, flavour_of
from metaq.pipelines.binlog_sync.outbox import Lane, Outbox
from metaq.pipelines.binlog_sync.progress import Position
from metaq.pipelines.binlog_sync.rows import Row
from metaq.pipelines.binlog_sync.sequence import BinlogError, Place
from metaq.pipelines.binlog_sync.snapshot import Chunk, NotYet
from metaq.pipelines.binlog_sync.state import Cursor, State, StateFile, TableState
from metaq.pipelines.binlog_sync.stream import Begin, Commit, Idle, Item, Prepared, Query, Rows
from metaq.pipelines.binlog_sync.sync import Sync

PLACE = Place("b.000001", 400)
ITEMS_MAX = 1_000


@pytest.fixture
def config(tmp_path: Path) -> BinlogConfig:
    (tmp_path / "secret").write_text("pass\n")
    path = tmp_path / "sync.toml"
    path.write_text(
        '[source]\nuser = "metaq"\npassword_file = "secret"\ntables = ["shop.*"]\n'
        '[topic]\nname = "changes"\n[state]\nfile = "state.json"\n'
    )
    return read_config(path)


class Fed:
    """A stream of what the test says, then of nothing."""

    place = PLACE
    committed = 0

    def __init__(self, *items: Item) -> None:
        self._items = items

    def items(self) -> Iterator[Item]:
        yield from self._items
        for _ in range(ITEMS_MAX):
            yield Idle()


class Refusing:
    """A producer whose broker wants nothing."""

    def send_soon(self, topic: str, body: bytes, *, tag: str, queue: Any) -> Any:
        raise InvalidMessage("too large")


def make(config: BinlogConfig) -> tuple[Sync, Outbox]:
    outbox = Outbox(Refusing(), message_bytes=1000, buffer_bytes=10**6, is_stopping=lambda: False)
    state = State("changes", "s", 1, PLACE, "", [])
    chunks: Any = None
    return (
        Sync(
            config,
            state,
            StateFile(config.state_file),
            outbox,
            chunks,
            lambda progress: None,
            threading.Event(),
            set(),
        ),
        outbox,
    )


@pytest.mark.parametrize("session", ["shop", "other", ""])
def test_a_change_as_a_statement_is_loud_whatever_database_the_session_was_in(
    config: BinlogConfig, session: str
) -> None:
    sync, _ = make(config)
    stream: Any = Fed(Begin(PLACE, "0-1-2", False), Query(session, "UPDATE shop.orders SET price = 0"))
    with pytest.raises(BinlogError, match=r"a change of rows before .* as a statement") as failure:
        sync.follow(stream)
    assert session in str(failure.value)


def test_a_refused_message_ends_the_run_of_an_idle_source(config: BinlogConfig) -> None:
    sync, outbox = make(config)
    outbox.put(Lane(Queue("changes", "b", 0), "shop.orders", b""), 0, [b"{}"])
    stream: Any = Fed()
    with pytest.raises(CommandError, match="too large"):
        sync.follow(stream)


@pytest.mark.parametrize(
    ("code", "is_retriable"),
    [(1040, True), (1053, True), (1927, True), (3032, True), (2013, True), (1045, False), (1064, False)],
)
def test_which_errors_of_the_server_pass(config: BinlogConfig, code: int, is_retriable: bool) -> None:
    failure = Source(config).told(pymysql.OperationalError(code, "a text"))
    assert failure.retriable is is_retriable
    assert f"({code})" in str(failure)


def test_a_renamed_table_is_known_after_a_kill(config: BinlogConfig) -> None:
    sync, _ = make(config)
    definition = Definition((Column("id", "int32", False),), ("id",))
    sync._state.tables["shop.new"] = TableState(0, Definition((), ()), Cursor("", ()))
    sync.register([Table("shop", "new", definition, 1)])
    table = sync._tables["shop.new"]
    assert (table.schema, table.definition) == (1, definition)
    assert list(sync._pending) == ["shop.new"]


@pytest.mark.parametrize(("lowers_names", "is_found"), [(True, True), (False, False)])
def test_names_as_the_server_takes_them(
    config: BinlogConfig, monkeypatch: pytest.MonkeyPatch, lowers_names: bool, is_found: bool
) -> None:
    sync, _ = make(config)
    sync.require_era(Server(flavour_of("11.4-MariaDB"), "11.4-MariaDB", "s", lowers_names))
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(sync, "_barrier", lambda kind, tag, number, document: told.append(document))
    stream: Any = Fed(Begin(PLACE, "0-1-2", True), Query("Shop", "TRUNCATE Orders"))
    sync._begin(Begin(PLACE, "0-1-2", True))
    sync._query(Query("Shop", "TRUNCATE Orders"), stream)
    assert [document["names"] for document in told] == ([[("shop", "orders")]] if is_found else [])


# A chunk whose place is not known exactly

SERVER = "34d5a371-e1bb-11f1-ae18-02fc00000001"
DEFINITION = Definition((Column("id", "int32", False), Column("v", "text", True)), ("id",))
LOW, HIGH = Place("b.000001", 400), Place("b.000001", 900)


class Image:
    """A reader of rows that are given to it."""

    database, table, definition = "shop", "orders", DEFINITION

    def images(self, rows: Any) -> Iterator[Row]:
        return iter(rows)


class OneChunk:
    """Gives rows 1 to 4 as seen somewhere between two places, as often as it is asked."""

    def __init__(self, moment: Moment = Moment(LOW, HIGH, False)) -> None:  # noqa: B008
        self.moment = moment
        self.asked: list[Position] = []

    def read(
        self, database: str, table: str, cursor: Cursor | None, reached: Position, committed: Set[str]
    ) -> Chunk:
        self.asked.append(reached)
        self.committed = set(committed)
        rows: list[Row] = [{"id": number, "v": "seen"} for number in range(1, 5)]
        return Chunk(database, table, self.moment, DEFINITION, rows, (4,), True)


class Moving(Fed):
    """A stream whose items each come with the place behind them."""

    def __init__(self, *items: tuple[int, Item]) -> None:
        self._moves = items
        self.place = LOW

    def items(self) -> Iterator[Item]:
        for position, item in self._moves:
            self.place = Place("b.000001", position)
            yield item


class Recording:
    """Takes everything that is sent."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    def send_soon(self, topic: str, body: bytes, *, tag: str, queue: Any) -> Any:
        self.bodies.append(json.loads(body))
        future: Future[None] = Future()
        future.set_result(None)
        return future


class Given(tuple[Row, ...]):
    """Rows as a part of an event."""

    data = b""


def changes(operation: str, *rows: Row) -> Rows:
    reader: Any = Image()
    images: Any = Given(rows)
    return Rows(reader, operation, images, 0)


def follow(
    config: BinlogConfig, chunks: OneChunk, *items: tuple[int, Item]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The changes and the barriers of snapshots that come of it."""
    producer = Recording()
    outbox = Outbox(producer, message_bytes=1000, buffer_bytes=10**6, is_stopping=lambda: False)
    state = State("changes", "s", 1, LOW, f"{SERVER}:1-4", [("b", 0)], flavour="mysql")
    told: Any = chunks
    file = StateFile(config.state_file)
    sync = Sync(config, state, file, outbox, told, lambda progress: None, threading.Event(), set())
    sync.register([Table("shop", "orders", DEFINITION, 4)])
    stream: Any = Moving((400, Idle()), *items)
    sync.follow(stream)
    sent = [change for body in producer.bodies if body["kind"] == "rows" for change in body["changes"]]
    return sent, [body for body in producer.bodies if body["kind"] == "snapshot"]


def test_keys_that_the_binlog_touches_are_not_told_by_the_chunk(config: BinlogConfig) -> None:
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
    told = {change["row"]["id"]: (change["op"], change["row"].get("v")) for change in sent}
    assert told == {
        1: ("update", "newer"), 2: ("delete", None), 3: ("delete", None), 9: ("insert", "moved"),
        4: ("snapshot", "seen"),
    }  # fmt: skip
    # What the binlog told must not be taken for older than the snapshot.
    assert [barrier["state"] for barrier in barriers] == ["begin", "end"]
    for barrier in barriers:
        assert all(barrier["begun"] <= change["seq"] for change in sent)


@pytest.mark.parametrize(
    "statement",
    ["TRUNCATE TABLE orders", "ALTER TABLE shop.orders COMMENT = 'x'", "RENAME TABLE orders TO other.x",
     "DROP DATABASE shop"],
)  # fmt: skip
def test_a_statement_on_its_table_makes_a_chunk_worthless(config: BinlogConfig, statement: str) -> None:
    chunks = OneChunk()
    begin = Begin(LOW, f"{SERVER}:5", True)
    # The stream is behind the statement when it tells that it begins.
    sent, _ = follow(config, chunks, (900, begin), (900, Query("shop", statement)))
    # It is read again, by then with the statement.
    assert [reached.gtid for reached in chunks.asked] == [f"{SERVER}:1-4", f"{SERVER}:1-5"]
    assert [change["row"]["id"] for change in sent] == [1, 2, 3, 4]


def test_another_statement_leaves_it(config: BinlogConfig) -> None:
    chunks = OneChunk()
    begin = Begin(LOW, f"{SERVER}:5", True)
    follow(config, chunks, (900, begin), (900, Query("shop", "ALTER TABLE others COMMENT = 'x'")))
    assert len(chunks.asked) == 1


def test_an_exact_chunk_tells_all_its_rows(config: BinlogConfig) -> None:
    begin = Begin(LOW, f"{SERVER}:5", False)
    update = changes("update", {"id": 1, "v": "old"}, {"id": 1, "v": "seen"})
    exact = OneChunk(Moment(LOW, HIGH, True))
    sent, _ = follow(config, exact, (450, begin), (500, update), (900, Commit()))
    assert [change["op"] for change in sent] == ["update", *["snapshot"] * 4]


def test_what_xa_transactions_touch_is_not_told_by_an_exact_chunk_either(config: BinlogConfig) -> None:
    begin = Begin(LOW, f"{SERVER}:5", False, is_xa=True)
    update = changes("update", {"id": 1, "v": "seen"}, {"id": 1, "v": "newer"})
    sent, barriers = follow(
        config,
        OneChunk(Moment(LOW, HIGH, True)),
        (450, begin),
        (500, update),
        (900, Prepared("x'61',x'',1", is_committed=True)),
    )
    told = {change["row"]["id"]: change["op"] for change in sent}
    assert told == {1: "update", 2: "snapshot", 3: "snapshot", 4: "snapshot"}
    # What the binlog told must not be taken for older than the snapshot.
    assert [barrier["state"] for barrier in barriers] == ["begin", "end"]
    assert all(barrier["begun"] <= change["seq"] for barrier in barriers for change in sent)


class Behind(OneChunk):
    """Of a server that has still to commit what its binlog has, when it is asked at first."""

    times = 1

    def read(
        self, database: str, table: str, cursor: Cursor | None, reached: Position, committed: Set[str]
    ) -> Chunk:
        chunk = super().read(database, table, cursor, reached, committed)
        if len(self.asked) <= self.times:
            raise NotYet
        return chunk


def test_the_binlog_is_read_on_while_the_server_has_still_to_commit(config: BinlogConfig) -> None:
    chunks = Behind()
    begin = Begin(LOW, f"{SERVER}:5", False)
    insert = changes("insert", {"id": 9, "v": "new"})
    sent, _ = follow(config, chunks, (450, begin), (500, insert), (900, Commit()))
    assert [change["row"]["id"] for change in sent] == [9, 1, 2, 3, 4]
    assert len(chunks.asked) == 2


class Unfit(OneChunk):
    def read(
        self, database: str, table: str, cursor: Cursor | None, reached: Position, committed: Set[str]
    ) -> Chunk:
        raise Unsuitable("it has no primary key")


def test_a_table_that_becomes_unsuitable_in_its_snapshot_is_loud(config: BinlogConfig) -> None:
    with pytest.raises(BinlogError, match=r"shop\.orders cannot be synchronised: it has no primary key"):
        follow(config, Unfit())


def test_a_chunk_is_told_which_xa_transactions_it_has_to_see(config: BinlogConfig) -> None:
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


def test_an_xa_transaction_without_an_end_is_loud(config: BinlogConfig) -> None:
    begun = (450, Begin(LOW, f"{SERVER}:5", False, is_xa=True)), (900, Begin(HIGH, f"{SERVER}:6", False))
    with pytest.raises(BinlogError, match="without an end"):
        follow(config, OneChunk(), *begun)


def test_a_state_of_the_other_server_is_refused(config: BinlogConfig) -> None:
    sync, _ = make(config)
    with pytest.raises(CommandError, match="another kind of server, mariadb, not mysql") as refused:
        sync.require_era(Server(flavour_of("9.7.4"), "9.7.4", "s"))
    assert "another topic" in refused.value.hint


@pytest.mark.parametrize(
    ("variables", "running", "is_refused"),
    [
        ({"log_slave_updates": "OFF"}, "1", True),
        ({"log_slave_updates": "OFF"}, "0", False),
        ({"log_slave_updates": "ON"}, "1", False),
    ],
)
def test_a_replica_whose_binlog_lacks_what_it_replicates(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], running: str, is_refused: bool
) -> None:
    status = [{"Variable_name": "Slaves_running", "Value": running}]
    monkeypatch.setattr(flavours, "rows_of", lambda *asked: status)
    refused = pytest.raises(CommandError, match="log_slave_updates") if is_refused else nullcontext()
    with refused:
        flavour_of("11.4-MariaDB").require_complete(None, "db", variables)


def test_readers_on_other_machines_and_of_other_topics_have_other_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = {_own_server_id(Path("state.json"), topic) for topic in ("a", "b")}
    monkeypatch.setattr("metaq.pipelines.binlog_sync.config.gethostname", lambda: "elsewhere")
    numbers.add(_own_server_id(Path("state.json"), "a"))
    assert len(numbers) == 3
    assert all(2**31 <= number < 2**32 for number in numbers)
