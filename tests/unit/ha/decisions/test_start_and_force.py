"""A store that lost something is a new incarnation, and an operator may force a master."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metaq.errors import CommandError
from metaq.ha.conducting.node_files import NodeRecord
from metaq.ha.decisions.forced import force_master
from metaq.ha.decisions.incarnation import is_behind_its_beat, why_new_incarnation
from metaq.ha.decisions.membership import is_acceptable
from metaq.ha.node import Opened
from tests.support.ha_views import ONE, RECORD, THREE, TWO, beat

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


def test_a_register_that_went_back_in_time_is_not_believed() -> None:
    assert is_acceptable(RECORD, promised_epoch=5, joined=True)
    assert not is_acceptable(RECORD, promised_epoch=6, joined=True)
    assert not is_acceptable(None, promised_epoch=5, joined=True)
    assert is_acceptable(None, promised_epoch=0, joined=False)
    assert is_acceptable(None, promised_epoch=1, joined=False)


def test_a_forced_epoch_is_above_everything_that_was_promised() -> None:
    beats = [beat(ONE, promised_epoch=9, flushed_end=500).beat, beat(THREE, flushed_end=420).beat]
    forced = force_master(RECORD, beats, 3)
    assert forced.record == RECORD.replace(epoch=10, master=3, in_sync=(THREE,))
    assert (forced.is_in_sync, forced.bytes_lost_max) == (True, 80)
    lost = force_master(RECORD.replace(in_sync=(ONE,)), beats, 3)
    assert not lost.is_in_sync


def test_an_unknown_node_cannot_be_forced() -> None:
    with pytest.raises(CommandError, match="not known") as caught:
        force_master(RECORD, [beat(ONE).beat], 7)
    assert caught.value.hint == "known nodes: 1"
