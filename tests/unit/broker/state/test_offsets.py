"""The file of offsets, and the offsets that protect messages from retention."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from typing import Any, ClassVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq._core import BrokerPlane, Store
from metaq.broker.state.offsets import (
    RECORD_BYTES_MIN,
    Offsets,
    decode_offsets,
    encode_offsets,
    lowest_offsets,
)
from metaq.journal.journal import NotWritten
from metaq.protocol.bodies import DataVersion
from metaq.protocol.errors import ProtocolError, Refused

# Pretty and with bare integers as keys, as Apache's broker writes it.
APACHE_FILE = b"""{
\t"dataVersion":{
\t\t"counter":7,
\t\t"stateVersion":0,
\t\t"timestamp":1700000000000
\t},
\t"offsetTable":{
\t\t"orders@billing":{0:5,1:6,
\t\t\t2:7
\t\t},
\t\t"%RETRY%billing@billing":{0:0
\t\t}
\t}
}"""

TABLE = {
    "orders@billing": {0: 5, 1: 6},
    "orders@audit": {0: 3, 2: 9},
    "%RETRY%billing@billing": {0: 0},
}


def test_apaches_file_is_read() -> None:
    stored = decode_offsets(APACHE_FILE)
    assert stored.offset_table == {
        "orders@billing": {0: 5, 1: 6, 2: 7},
        "%RETRY%billing@billing": {0: 0},
    }
    assert stored.data_version is not None and stored.data_version.counter == 7


def test_a_file_with_quoted_keys_is_read_too() -> None:
    assert decode_offsets(b'{"offsetTable":{"t@g":{"0":5}}}').offset_table == {"t@g": {0: 5}}


def test_ours_has_bare_keys_as_apache_writes_them() -> None:
    content = encode_offsets(TABLE, DataVersion(counter=2, timestamp=1))
    assert b'"orders@billing":{0:5,1:6}' in content
    with pytest.raises(ValueError, match="property name"):
        json.loads(content)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"offsetTable":{"t@g":{0:}}}', b"\x00" * 40])
def test_damage_is_noticed(content: bytes) -> None:
    with pytest.raises((ProtocolError, ValueError)):
        decode_offsets(content)


key = st.from_regex(r"[%|a-zA-Z0-9_-]{1,20}@[%|a-zA-Z0-9_-]{1,20}", fullmatch=True)
queues = st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), max_size=8)


@given(table=st.dictionaries(key, queues, max_size=8), counter=st.integers(0, 2**62))
def test_any_table_reads_back_as_it_was(table: dict[str, dict[int, int]], counter: int) -> None:
    version = DataVersion(counter=counter, timestamp=3)
    stored = decode_offsets(encode_offsets(table, version))
    assert stored.offset_table == table
    assert stored.data_version == version


def test_resets_under_way_are_kept_beside_the_offsets() -> None:
    stored = decode_offsets(encode_offsets(TABLE, DataVersion(), {"orders@billing": {1: 2}}))
    assert (stored.offset_table, stored.reset_table) == (TABLE, {"orders@billing": {1: 2}})
    assert b"resetTable" not in encode_offsets(TABLE, DataVersion(), {}), "as Apache writes it, mostly"


@given(content=st.binary(max_size=60))
def test_no_bytes_do_harm(content: bytes) -> None:
    with contextlib.suppress(ProtocolError, ValueError):
        decode_offsets(content)


def test_the_slowest_group_decides_what_is_kept() -> None:
    assert lowest_offsets(TABLE, {"billing", "audit"}) == {
        ("orders", 0): 3,
        ("orders", 1): 6,
        ("orders", 2): 9,
        ("%RETRY%billing", 0): 0,
    }
    assert ("orders", 2) not in lowest_offsets(TABLE, {"billing"}), "a deleted group holds nothing back"


class FakePlane:
    def offsets(self) -> dict[str, dict[int, int]]:
        return {"orders@TOOLS_CONSUMER": {0: 5}, "orders@deleted": {0: 1}}

    def delay_offsets(self) -> dict[int, int]:
        return {3: 9}

    def transaction_offsets(self) -> tuple[int, int]:
        return 11, 12


class FakeStore:
    def __init__(self) -> None:
        self.protected: dict[tuple[str, int], int] = {}
        self.disk_used_percent = 80

    def figures(self) -> FakeStore:
        return self

    def queue_ids(self, topic: str) -> list[int]:
        return [3] if topic == "BenchmarkTest" else []

    def max_offset(self, topic: str, queue_id: int) -> int:
        return 77

    def protect(self, consumed: dict[tuple[str, int], int]) -> None:
        self.protected = consumed


def test_the_store_learns_what_is_consumed_and_what_nobody_needs(tables: Any) -> None:
    store = FakeStore()
    offsets = Offsets(
        cast(BrokerPlane, FakePlane()), cast(Store, store), tables.clock, tables.journal, tables.groups
    )
    asyncio.run(offsets.protect())
    assert store.protected == {
        ("orders", 0): 5,
        ("BenchmarkTest", 3): 77,
        ("SCHEDULE_TOPIC_XXXX", 2): 9,
        ("RMQ_SYS_TRANS_HALF_TOPIC", 0): 11,
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0): 12,
    }


def test_nobody_looks_at_all_offsets_while_the_disk_has_room(tables: Any) -> None:
    class Plane(FakePlane):
        looks = 0

        def offsets(self) -> Any:
            self.looks += 1
            return super().offsets()

    plane, store = Plane(), FakeStore()
    offsets = Offsets(
        cast(BrokerPlane, plane),
        cast(Store, store),
        tables.clock,
        tables.journal,
        tables.groups,
        protect_from_percent=lambda: 75,
    )
    store.disk_used_percent = 74
    asyncio.run(offsets.protect())
    assert (plane.looks, store.protected) == (0, {})
    store.disk_used_percent = 75
    asyncio.run(offsets.protect())
    assert plane.looks == 1 and store.protected


def test_a_new_master_takes_over_only_offsets_that_its_log_is_long_enough_for(tables: Any) -> None:
    class Plane:
        taken: ClassVar[list[tuple[str, str, int, int]]] = []

        def advance_offset(self, *offset: Any) -> None:
            self.taken.append(offset)

    class Log(FakeStore):
        def end_offset(self) -> int:
            return 10_000

        def confirmed_offset(self) -> int:
            return 10_000 - 3 * RECORD_BYTES_MIN

    plane = Plane()
    offsets = Offsets(
        cast(BrokerPlane, plane), cast(Store, Log()), tables.clock, tables.journal, tables.groups
    )
    offsets.advance([("g", "t", 0, offset) for offset in (5, 77, 80, 81, 2**62)])
    assert [offset for *_, offset in plane.taken] == [5, 77, 80], "three messages may be hidden"


class ChangingPlane:
    """Keeps offsets and resets as the data plane does, and gives every change out once."""

    def __init__(self) -> None:
        self.changed: dict[str, tuple[dict[int, int], dict[int, int]]] = {}
        self.loaded: dict[str, dict[int, int]] = {}
        self.resets: list[tuple[str, str, int, int]] = []
        self.asked: list[tuple[str, dict[str, list[int]]]] = []
        self.reset_fault: str | None = None

    def check_resets(self, group: str, wanted: dict[str, list[int]]) -> str | None:
        self.asked.append((group, wanted))
        return self.reset_fault

    def take_changed_offsets(self) -> tuple[dict[str, tuple[dict[int, int], dict[int, int]]], bool]:
        changed, self.changed = self.changed, {}
        return changed, False

    def load_offsets(self, offsets: dict[str, dict[int, int]]) -> None:
        self.loaded = offsets

    def reset_offset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        self.resets.append((group, topic, queue_id, queue_offset))


class Kept:
    """Offsets over a plane, and what a restart finds of them."""

    def __init__(self, tables: Any) -> None:
        self.tables = tables
        self.plane = ChangingPlane()
        self.offsets = self.made(self.plane)

    def made(self, plane: ChangingPlane) -> Offsets:
        store = cast(Store, FakeStore())
        return Offsets(
            cast(BrokerPlane, plane), store, self.tables.clock, self.tables.journal, self.tables.groups
        )

    def persist(self, **changed: tuple[dict[int, int], dict[int, int]]) -> bool:
        self.plane.changed.update({key.replace("_at_", "@"): value for key, value in changed.items()})
        return asyncio.run(self.offsets.persist())

    def restarted(self) -> ChangingPlane:
        plane = ChangingPlane()
        self.made(plane).load()
        return plane


@pytest.fixture
def kept(tables: Any) -> Kept:
    return Kept(tables)


def test_changes_survive_a_restart(kept: Kept) -> None:
    assert not kept.persist()
    assert kept.persist(t_at_g=({0: 5, 70: 6}, {}), t_at_h=({1: 1}, {1: 1}))
    plane = kept.restarted()
    assert plane.loaded == {"t@g": {0: 5, 70: 6}, "t@h": {1: 1}}
    assert plane.resets == [("h", "t", 1, 1)]
    assert kept.persist(t_at_g=({}, {}), t_at_h=({1: 2}, {}))
    plane = kept.restarted()
    assert (plane.loaded, plane.resets) == ({"t@h": {1: 2}}, [])


def test_a_look_at_the_changes_in_between_loses_none(kept: Kept) -> None:
    kept.plane.changed["t@g"] = ({0: 5}, {})
    kept.offsets.collect()
    assert not kept.plane.changed
    assert kept.persist(t_at_h=({1: 1}, {}))
    assert kept.restarted().loaded == {"t@g": {0: 5}, "t@h": {1: 1}}
    assert not kept.persist()


def test_a_write_is_as_large_as_the_change(kept: Kept) -> None:
    many = dict.fromkeys(range(10000), 1)
    kept.persist(t_at_g=(many, {}), **{f"u{number}_at_g": ({0: 1}, {}) for number in range(1_000)})
    before = kept.tables.journal.appended_bytes
    kept.persist(t_at_g=({**many, 5_000: 2}, {}))
    assert kept.tables.journal.appended_bytes - before < 2_000


def test_what_could_not_be_written_is_written_the_next_time(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", full)
        with pytest.raises(NotWritten):
            kept.persist(t_at_g=({0: 5}, {}))
    assert kept.restarted().loaded == {}
    assert kept.persist(u_at_g=({0: 1}, {}))
    assert kept.restarted().loaded == {"t@g": {0: 5}, "u@g": {0: 1}}


def test_nothing_is_remembered_of_offsets_that_were_removed(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.persist(t_at_g=({0: 5, 70: 6}, {}))
    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", _full)
        with pytest.raises(NotWritten):
            kept.persist(t_at_g=({}, {}))
    assert kept.persist(u_at_g=({0: 1}, {}))
    assert kept.restarted().loaded == {"u@g": {0: 1}}, "all its parts are gone"
    assert kept.offsets._parts == {}


def test_the_data_plane_decides_about_all_offsets_of_a_reset_at_once(kept: Kept) -> None:
    kept.offsets.check_room("g", {"t": {0: 5, 1: 7}, "u": {3: 0}})
    assert kept.plane.asked == [("g", {"t": [0, 1], "u": [3]})]
    kept.plane.reset_fault = "[OVERLOAD] the limit"
    with pytest.raises(Refused, match="the limit") as raised:
        kept.offsets.check_room("g", {"t": {0: 5}})
    assert raised.value.code == 2


def _full(*arguments: object) -> None:
    raise OSError(28, "No space left on device")
