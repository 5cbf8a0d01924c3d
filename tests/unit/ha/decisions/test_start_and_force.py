"""A store that lost something is a new incarnation, and an operator may force a master."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from metaq.errors import CommandError
from metaq.ha.conducting.node_files import NodeRecord
from metaq.ha.decisions.forced import EPOCH_LEAP, VERSION_LEAP, Loss, force_master
from metaq.ha.decisions.incarnation import is_behind_its_beat, is_older_copy, why_new_incarnation
from metaq.ha.group_record import RecordPromise, next_epoch
from metaq.ha.node import Opened
from tests.support.ha_views import ONE, RECORD, THREE, TWO, beat

VERSIONED = msgspec.structs.replace(RECORD, version=3)
KEPT = NodeRecord(incarnation="b", boot_id="boot-1", promised_epoch=5)
OPENED = Opened("boot-1", flush_is_sync=True, log_end=100, flushed_mark=100, stopped_cleanly=False)


def test_an_intact_store_keeps_its_incarnation() -> None:
    assert why_new_incarnation(KEPT, OPENED) == ""
    assert why_new_incarnation(KEPT, replace(OPENED, boot_id="boot-2")) == ""
    newer = replace(OPENED, state_version=(5, 4), state_mark=(5, 3))
    assert why_new_incarnation(KEPT.change(state_version=(4, 9)), newer) == ""
    before_marks = replace(OPENED, state_version=(5, 4), state_mark=None)
    assert why_new_incarnation(KEPT, before_marks) == "", "a store of a version without marks"


@pytest.mark.parametrize(
    ("kept", "opened", "why"),
    [
        (None, OPENED, "new"),
        (KEPT, replace(OPENED, log_end=99), "100 had been flushed"),
        (KEPT, replace(OPENED, boot_id="boot-2", flush_is_sync=False), "flush=async"),
        (KEPT.change(start_over_at=0), OPENED, "dropped"),
        (KEPT.change(truncate_to=95), replace(OPENED, log_end=90), "95 had been flushed"),
        (KEPT, replace(OPENED, state_version=(4, 9), state_mark=(5, 3)), "topics, groups or offsets"),
        (KEPT.change(state_version=(5, 2)), replace(OPENED, state_version=(5, 1)), "topics, groups"),
        (KEPT.change(state_version=(0, 0)), replace(OPENED, state_mark=None), "the mark of its journal"),
    ],
)
def test_a_store_that_may_lack_something_gets_a_new_one(
    kept: NodeRecord | None, opened: Opened, why: str
) -> None:
    assert why in why_new_incarnation(kept, opened)


def test_what_may_be_lost_depends_on_the_flush_mode_and_the_stop() -> None:
    rebooted = replace(OPENED, boot_id="boot-2", flush_is_sync=False, stopped_cleanly=True)
    assert why_new_incarnation(KEPT, rebooted) == ""
    cut = replace(OPENED, log_end=90)
    assert why_new_incarnation(KEPT.change(truncate_to=90), cut) == ""


def test_the_last_beat_shows_a_loss_that_the_disk_does_not() -> None:
    shorter = replace(OPENED, log_end=80, flushed_mark=80)
    assert is_behind_its_beat(KEPT, shorter, beat(TWO).beat)
    assert not is_behind_its_beat(KEPT, OPENED, beat(TWO).beat)
    assert not is_behind_its_beat(KEPT.change(promised_epoch=6), shorter, beat(TWO).beat)
    assert not is_behind_its_beat(KEPT.change(incarnation="new"), shorter, beat(TWO).beat)
    stated = beat(TWO, state_version=(5, 7)).beat
    assert is_behind_its_beat(KEPT, replace(OPENED, state_version=(5, 6)), stated)
    assert not is_behind_its_beat(KEPT, replace(OPENED, state_version=(5, 7)), stated)


@pytest.mark.parametrize(
    ("epoch", "version", "is_older"), [(5, 3, False), (6, 3, True), (5, 4, True), (4, 2, False), (6, 0, True)]
)
def test_higher_promises_in_the_last_beat_show_an_older_copy_of_the_store(
    epoch: int, version: int, is_older: bool
) -> None:
    kept = KEPT.change(promised_record=RecordPromise(3, "digest", 2))
    claim = beat(TWO, promised_epoch=epoch, promised_version=version).beat
    assert is_older_copy(kept, claim) == is_older
    assert not is_older_copy(kept.change(incarnation="new"), claim)
    assert not is_older_copy(kept, beat(TWO).beat.for_older()), "beats for older nodes have no version"


def test_a_beat_does_not_count_for_what_was_taken_back_after_it() -> None:
    shorter = replace(OPENED, log_end=80, flushed_mark=80)
    for sequence, counts in [(7, False), (8, True)]:
        claim = beat(TWO, sequence=sequence).beat
        assert is_behind_its_beat(KEPT.change(cut_after_beat=7), shorter, claim) == counts
    # The present master of epoch 5 may not know an entry that the master of epoch 4 wrote last.
    earlier = beat(TWO, state_version=(4, 7)).beat
    assert not is_behind_its_beat(KEPT, replace(OPENED, state_version=(4, 6)), earlier)


def test_a_forced_record_is_above_everything_that_was_promised() -> None:
    beats = [
        beat(member, promised_version=version).beat for member, version in ((ONE, 4), (TWO, 7), (THREE, 7))
    ]
    record = msgspec.structs.replace(RECORD, version=7)
    forced = force_master(record, beats, 3)
    assert (forced.record.version, forced.record.epoch) == (7 + VERSION_LEAP, 1003)
    assert (forced.record.master, forced.record.in_sync, forced.record.electorate) == (3, (THREE,), {THREE})
    assert (forced.loss, forced.register_fault) == (Loss.NONE, "")
    late = [beat(ONE, promised_epoch=9, flushed_end=500).beat, beat(THREE, flushed_end=420).beat]
    forced = force_master(RECORD, late, 3)
    assert forced.record.epoch == next_epoch(9 + EPOCH_LEAP, 3), "a silent node may have seen a higher one"
    assert forced.bytes_lost_max == 80
    assert forced.register_fault.endswith("node 1 has seen version 0 (epoch 9)")


def test_control_state_that_another_node_has_is_a_loss() -> None:
    beats = {member: beat(member, state_version=(5, 7)).beat for member in (ONE, TWO)}
    beats[THREE] = beat(THREE, state_version=(5, 6)).beat
    assert force_master(VERSIONED, beats.values(), 2).loss is Loss.NONE
    assert force_master(VERSIONED, beats.values(), 3).loss is Loss.UNKNOWN, "it may not be acknowledged"
    assert force_master(None, beats.values(), 3).loss is Loss.CERTAIN


def test_only_a_proven_register_says_that_nothing_is_lost() -> None:
    beats = {member: beat(member).beat for member in (ONE, TWO, THREE)}
    assert force_master(VERSIONED, beats.values(), 3).loss is Loss.NONE
    assert force_master(VERSIONED, beats.values(), 3, answering=(1, 2)).loss is Loss.NONE
    assert force_master(VERSIONED, beats.values(), 3, answering=(3,)).loss is Loss.UNKNOWN
    assert force_master(None, beats.values(), 3).loss is Loss.UNKNOWN
    assert force_master(VERSIONED.replace(in_sync=(ONE, TWO)), beats.values(), 3).loss is Loss.CERTAIN
    newer = {**beats, TWO: beat(TWO, log_epoch=6).beat}
    assert force_master(VERSIONED, newer.values(), 3).loss is not Loss.NONE
    knowing = {**beats, TWO: beat(TWO, promised_version=4).beat}
    assert force_master(VERSIONED, knowing.values(), 3).loss is Loss.CERTAIN
    assert force_master(VERSIONED, knowing.values(), 2).loss is Loss.UNKNOWN
    alone = msgspec.structs.replace(VERSIONED, min_in_sync=1)
    assert force_master(alone, beats.values(), 3, answering=(2, 3)).loss is Loss.UNKNOWN, "one may know more"


def test_without_a_version_or_with_damage_losses_are_unknown() -> None:
    beats = {member: beat(member).beat for member in (ONE, TWO, THREE)}
    assert force_master(VERSIONED, beats.values(), 3).loss is Loss.NONE
    assert force_master(RECORD, beats.values(), 3).loss is Loss.UNKNOWN, "it may be an older copy"
    damaged = {**beats, THREE: beat(THREE, damaged_at=64).beat}
    forced = force_master(VERSIONED, damaged.values(), 3)
    assert (forced.loss, forced.damaged_at) == (Loss.UNKNOWN, 64)
    assert force_master(VERSIONED, damaged.values(), 2).loss is Loss.NONE


def test_after_an_emptied_register_the_minimum_is_what_it_was() -> None:
    beats = [
        beat(ONE, min_in_sync=2, promised_version=3).beat,
        beat(TWO, min_in_sync=3, promised_version=8).beat,
        beat(THREE).beat,
    ]
    assert force_master(None, beats, 1).record.min_in_sync == 3
    assert force_master(None, [beat(ONE).beat], 1).record.min_in_sync == 2
    assert force_master(RECORD, beats, 1).record.min_in_sync == RECORD.min_in_sync


def test_an_unknown_node_cannot_be_forced() -> None:
    with pytest.raises(CommandError, match="not known") as caught:
        force_master(RECORD, [beat(ONE).beat], 7)
    assert caught.value.hint == "known nodes: 1"
