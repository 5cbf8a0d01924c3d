"""What the loop of binlog-sync does with what comes, without a database or a broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from metaq.client.routes import Queue
from metaq.errors import CommandError, InvalidMessage
from metaq.pipelines.binlog.columns import Column, Definition
from metaq.pipelines.binlog.config import BinlogConfig, read_config
from metaq.pipelines.binlog.outbox import Lane, Outbox
from metaq.pipelines.binlog.sequence import BinlogError, Place
from metaq.pipelines.binlog.source import Server, Source, Table
from metaq.pipelines.binlog.state import Cursor, State, StateFile, TableState
from metaq.pipelines.binlog.stream import Begin, Idle, Item, Query
from metaq.pipelines.binlog.sync import Sync

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
    [(1040, True), (1053, True), (1927, True), (2013, True), (1045, False), (1064, False)],
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
    sync.require_era(Server("11.4-MariaDB", "s", lowers_names))
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(sync, "_barrier", lambda kind, tag, number, document: told.append(document))
    stream: Any = Fed(Begin(PLACE, "0-1-2", True), Query("Shop", "TRUNCATE Orders"))
    sync._begin(Begin(PLACE, "0-1-2", True))
    sync._query(Query("Shop", "TRUNCATE Orders"), stream)
    assert [document["names"] for document in told] == ([[("shop", "orders")]] if is_found else [])
