"""The state file of binlog-sync: it survives a round trip, and anything else is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from metaq.errors import CommandError, MetaqError
from metaq.pipelines.binlog_sync.coordinates import Coordinates
from metaq.pipelines.binlog_sync.values.columns import Column, Definition
from metaq.pipelines.binlog_sync.writing.state import Cursor, StateFile, SyncState, TableState

DEFINITION = Definition((Column("id", "bytes", False), Column("kind", "enum", True, ("a", "b"))), ("id",))
KEYLESS = Definition(DEFINITION.columns, ("id", "kind"), True)
STATE = SyncState(
    topic="t",
    server="7/x",
    era=1,
    coordinates=Coordinates("binlog.000003", 77),
    gtid="0-7-9",
    queues=[("broker-a", 0), ("broker-b", 1)],
    tables={
        "d.a": TableState(2, DEFINITION, Cursor("00", ("id",), (b"\x00\xff", 5, "x"), False)),
        "d.b": TableState(1, DEFINITION, None, ("old",)),
        # Renamed, and not read yet.
        "d.new": TableState(0, Definition((), ()), Cursor("", (), reading=7)),
        "d.c": TableState(1, KEYLESS, Cursor("00", ("id",), (), False, 1_790_000_000_000, True)),
    },
)


def test_round_trip(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "new" / "state.json")
    assert file.load() is None
    file.lock()
    file.save(STATE)
    assert StateFile(file.path).load() == STATE
    with pytest.raises(CommandError, match="another process"):
        StateFile(file.path).lock()
    file.unlock()
    StateFile(file.path).lock()


def test_the_flavour_of_the_gtids() -> None:
    mysql = replace(STATE, flavour="mysql", gtid="34d5a371-e1bb-11f1-ae18-02fc00000001:1-5:blue:1")
    assert SyncState.decode(mysql.encode()) == mysql
    # Files of the first version lack the flavour.
    assert SyncState.decode(STATE.encode().replace(b'"flavour": "mariadb",', b"")) == STATE
    for wrong in (b'"mysql"', b'"oracle"', b"5"):
        with pytest.raises(ValueError, match=r"GTIDs|unknown kind"):
            SyncState.decode(STATE.encode().replace(b'"flavour": "mariadb"', b'"flavour": ' + wrong))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"version": 2}', b'{"version": 1}', b"\xff"])
def test_invalid_content_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    with pytest.raises(MetaqError, match=r"state\.json"):
        StateFile(path).load()
