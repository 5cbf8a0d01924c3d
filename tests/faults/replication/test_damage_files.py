"""The damage that a trial names is the damage that it does, and its figures count what was found."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from tests.faults.replication.damage import plan
from tests.faults.replication.damage.files import NothingToDamage, apply
from tests.faults.replication.damage.plan import Damage
from tests.faults.replication.damage.raw import log_records
from tests.faults.replication.damage.summary import table
from tests.faults.replication.damage.trial import Outcome
from tests.support.records import record

LOG = "commitlog/00000000000000000000"
FILE_BYTES = 64 * 1024
PHYSICAL_OFFSET_AT = 28


def _log(count: int) -> bytes:
    log = bytearray()
    for number in range(count):
        one = bytearray(record(b"body %d" % number, b"name\x01value\x02", queue_offset=number))
        struct.pack_into(">q", one, PHYSICAL_OFFSET_AT, len(log))
        log += one
    return bytes(log)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A store with a log of 40 records and a journal, and an older copy of it in `older`."""
    for folder, count in (("older", 10), ("data", 40)):
        log = tmp_path / folder / LOG
        log.parent.mkdir(parents=True)
        log.write_bytes(_log(count).ljust(FILE_BYTES, b"\0"))
        journal = tmp_path / folder / "journal" / "00000001.log"
        journal.parent.mkdir()
        journal.write_bytes(b"entry " * count)
    return tmp_path / "data"


def _apply(data: Path, damage: Damage, seed: int = 1) -> str:
    return apply(damage, data, data.parent / "older", random.Random(seed))


@pytest.mark.parametrize("part", plan.PARTS)
def test_a_flipped_bit_is_in_the_part_that_was_named(data: Path, part: str) -> None:
    before, sound = (data / LOG).read_bytes(), log_records(data / "commitlog")
    _apply(data, Damage(plan.LOG, plan.FLIP, plan.TAIL, part))
    after = (data / LOG).read_bytes()
    changed = [at for at in range(FILE_BYTES) if before[at] != after[at]]
    assert len(changed) == 1
    assert (before[changed[0]] ^ after[changed[0]]).bit_count() == 1
    starts = [sum(len(raw.data) for raw in sound[:number]) for number in range(len(sound))]
    places = [
        (start + raw.parts[part][0], start + raw.parts[part][1])
        for start, raw in zip(starts, sound, strict=True)
    ]
    assert any(first <= changed[0] < last for first, last in places[-3:])


def test_a_block_is_zeroed_or_swapped_and_a_file_cut_off(data: Path) -> None:
    before = (data / LOG).read_bytes()
    used = len(before.rstrip(b"\0"))
    _apply(data, Damage(plan.LOG, plan.SWAP, plan.OLD))
    swapped = (data / LOG).read_bytes()
    assert swapped != before and sorted(swapped) == sorted(before)
    (data / LOG).write_bytes(before)
    _apply(data, Damage(plan.LOG, plan.ZERO, plan.OLD))
    zeroed = (data / LOG).read_bytes()
    assert len(zeroed) == FILE_BYTES and zeroed.count(0) > before.count(0)
    (data / LOG).write_bytes(before)
    _apply(data, Damage(plan.LOG, plan.CUT, plan.TAIL))
    assert 0 < (data / LOG).stat().st_size < used


def test_a_file_or_its_folder_goes_missing_or_is_an_older_copy(data: Path) -> None:
    _apply(data, Damage(plan.LOG, plan.OLDER, plan.RECENT))
    assert (data / LOG).read_bytes() == (data.parent / "older" / LOG).read_bytes()
    with pytest.raises(NothingToDamage):
        _apply(data, Damage(plan.LOG, plan.OLDER, plan.RECENT))
    _apply(data, Damage(plan.JOURNAL, plan.OLDER, plan.OLD))
    assert (data / "journal" / "00000001.log").read_bytes() == b"entry " * 10
    _apply(data, Damage(plan.JOURNAL, plan.MISSING, plan.OLD))
    assert not (data / "journal").exists()
    with pytest.raises(NothingToDamage):
        _apply(data, Damage(plan.TIMER, plan.MISSING, plan.OLD))


def test_the_table_counts_what_was_found_by_file_and_kind() -> None:
    flip, cut = Damage(plan.LOG, plan.FLIP), Damage(plan.LOG, plan.CUT)
    outcomes = [
        Outcome(1, flip, findings=["lost: a", "skipped: a", "skipped: b"], detected=True, seconds=2.0),
        Outcome(2, flip, repaired=True, repeated=3, seconds=4.0),
        Outcome(3, cut, findings=["unhealed: x"], refused=1, seconds=1.0),
        Outcome(4, cut, "nothing: no such file"),
    ]
    header, *rows = [line.split() for line in table(outcomes)]
    assert header[0] == "damage"
    assert rows == [
        ["log", "·", "cut", "1", "0", "0", "0", "0", "0", "0", "1", "0", "1", "1.0"],
        ["log", "·", "flip", "2", "1", "1", "1", "2", "0", "0", "0", "3", "1", "3.0"],
        ["all", "3", "1", "1", "1", "2", "0", "0", "1", "3", "2", "2.3"],
    ]
