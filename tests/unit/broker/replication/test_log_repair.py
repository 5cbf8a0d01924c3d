"""How a replica judges logs that differ, over a master's log of bytes."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from metaq._core import Store
from metaq.broker.replication import log_repair
from metaq.broker.replication.log_repair import (
    SoundBytes,
    VerifiedPiece,
    compare_logs,
    compare_pieces,
    fetch_sound_bytes,
)
from metaq.ha.handshake import LinkRefused
from metaq.ha.view import Compared, Range

FILE_BYTES = 1_000


@dataclass
class Log:
    """A log whose records have ten bytes each. A record with an X is damaged."""

    data: bytes
    start: int = 0
    known: list[Range] = field(default_factory=list)
    aside: list[Range] = field(default_factory=list)

    def start_offset(self) -> int:
        return self.start

    def raw_checksum(self, first: int, last: int) -> int | None:
        return zlib.crc32(self.data[first:last]) if self.start <= first and last <= len(self.data) else None

    def damaged_ranges(self, first: int, last: int) -> list[Range] | None:
        if last > len(self.data):
            return None
        records = range(first // 10 * 10, last, 10)
        self.known = [(at, at + 10) for at in records if b"X" in self.data[at : at + 10]]
        return self.known

    def known_damage(self) -> list[Range]:
        return self.known

    def set_aside(self, first: int, last: int) -> None:
        self.aside.append((first, last))


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> Log:
    """The log at the other end of the socket."""
    log = Log(b"." * 3_000)
    monkeypatch.setattr(log_repair, "compare", lambda _, first, last: log.raw_checksum(first, last))
    monkeypatch.setattr(log_repair, "verify", lambda _, first, last: log.damaged_ranges(first, last))
    monkeypatch.setattr(log_repair, "fetch", lambda _, first, last: log.data[first : min(last, first + 7)])
    return log


def compared(own: Log, end: int, **options: Any) -> Compared:
    values: dict[str, Any] = {"log_start": 0, "refused_at": None, "can_verify": True, **options}
    return compare_logs(cast(Any, None), cast(Store, own), end, **values)


def damaged(data: bytes, *places: int) -> bytes:
    changed = bytearray(data)
    for place in places:
        changed[place] = ord("X")
    return bytes(changed)


def test_equal_logs_need_no_verdict(master: Log) -> None:
    assert compared(Log(master.data), 3_000) == Compared(3_000, True)


def test_own_damage_is_found_and_explains_the_difference(master: Log) -> None:
    own = Log(damaged(master.data, 1_234))
    assert compared(own, 3_000) == Compared(3_000, False, ((1_230, 1_240),), (), True)


def test_the_damage_of_the_master_explains_the_difference(master: Log) -> None:
    own, master.data = Log(master.data), damaged(master.data, 2_500)
    assert compared(own, 3_000) == Compared(3_000, False, (), ((2_500, 2_510),), True)


def test_a_difference_that_no_damage_explains(master: Log) -> None:
    own = Log(damaged(master.data, 500).replace(b".", b",", 1))
    found = compared(own, 3_000)
    assert (found.own_damage, found.is_explained) == (((500, 510),), False)


def test_known_damage_counts_although_what_is_compared_agrees(
    master: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_repair, "COMPARED_BYTES", 100)
    own = Log(damaged(master.data, 15), known=[(10, 20)])
    assert compared(own, 3_000) == Compared(3_000, True, ((10, 20),), (), True)
    assert compared(own, 3_000, log_start=20).own_damage == (), "the master has deleted it"


def test_an_older_master_cannot_prove_its_bytes(master: Log) -> None:
    own = Log(damaged(master.data, 1_234))
    assert compared(own, 3_000, can_verify=False).peer_damage is None


def test_the_master_looks_at_what_was_refused(master: Log) -> None:
    master.data = damaged(master.data, 2_995)
    assert compared(Log(master.data[:2_990]), 2_990, refused_at=2_990).peer_damage == ((2_990, 3_000),)


def test_damaged_bytes_are_kept_and_replaced_file_by_file(
    master: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Log(master.data)
    fetched = fetch_sound_bytes(cast(Any, None), cast(Store, own), [(990, 1_020), (50, 60)], FILE_BYTES)
    assert fetched == [
        SoundBytes(990, b"." * 10),
        SoundBytes(1_000, b"." * 20),
        SoundBytes(50, b"." * 10),
    ]
    assert own.aside == [(990, 1_000), (1_000, 1_020), (50, 60)]
    monkeypatch.setattr(log_repair, "REPAIR_BYTES_MAX", 15)
    fetched = fetch_sound_bytes(cast(Any, None), cast(Store, own), [(0, 10), (20, 40)], FILE_BYTES)
    assert [len(part.data) for part in fetched] == [10, 5]


def test_a_master_that_deleted_its_log_meanwhile_ends_the_repair(master: Log) -> None:
    master.data = b""
    with pytest.raises(LinkRefused, match="no longer has its log at 10"):
        fetch_sound_bytes(cast(Any, None), cast(Store, Log(b"." * 100)), [(10, 20)], FILE_BYTES)


def pieces_of(own: Log) -> list[VerifiedPiece]:
    return [VerifiedPiece(at, at + 500, zlib.crc32(own.data[at : at + 500])) for at in range(0, 3_000, 500)]


def differs_at(own: Log) -> int | None:
    return compare_pieces(cast(Any, None), cast(Store, own), pieces_of(own))


def test_equal_pieces_need_no_verdict(master: Log) -> None:
    assert differs_at(Log(master.data)) is None


def test_a_piece_that_is_damaged_at_either_end_is_no_riddle(master: Log) -> None:
    own = Log(damaged(master.data, 1_234))
    assert differs_at(own) is None
    assert own.known == [(1_230, 1_240)], "the node has learned of it"
    sound = Log(master.data)
    master.data = damaged(master.data, 700)
    assert differs_at(sound) is None
    assert (sound.known, master.known) == ([], [(700, 710)])


def test_pieces_that_verify_and_differ_are_a_finding(master: Log) -> None:
    assert differs_at(Log(master.data.replace(b"." * 3_000, b"." * 1_600 + b"," + b"." * 1_399))) == 1_500


def test_pieces_that_the_master_has_deleted_are_passed_over(master: Log) -> None:
    own = Log(b"," * 1_000 + master.data[1_000:])
    master.start = 1_000
    assert differs_at(own) is None
