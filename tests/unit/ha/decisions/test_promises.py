"""A node refuses records that are older than what it, or anybody, has promised."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from metaq.ha.actions import BecomeMaster, PromiseRecord, SetRequired, StepDown, Wait
from metaq.ha.decisions import decide
from metaq.ha.decisions.promises import objection
from metaq.ha.group_record import GroupRecord, RecordPromise
from metaq.ha.view import Role
from tests.support.ha_views import NOW, ONE, RECORD, THREE, TWO, beat, link, own, view

SIXTH = msgspec.structs.replace(RECORD, version=6)
OTHER = msgspec.structs.replace(SIXTH, in_sync=(ONE, TWO))


def refused(record: GroupRecord | None, promise: RecordPromise = SIXTH.promise, **fields: Any) -> str:
    values = {"promised_epoch": 5, "joined": True, "beats": (), **fields}
    return objection(record, promise, **values)


def test_the_newest_record_is_believed() -> None:
    assert refused(SIXTH) == ""
    assert refused(SIXTH.replace()) == ""
    assert refused(RECORD, RecordPromise()) == ""
    assert refused(None, RecordPromise(), promised_epoch=0, joined=False) == ""
    assert refused(None, RecordPromise(), promised_epoch=1, joined=False) == ""


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (
            msgspec.structs.replace(RECORD, version=5),
            "version 5 (epoch 5) of the group, but this node has seen version 6",
        ),
        (msgspec.structs.replace(RECORD, version=5, epoch=9), "version 5 (epoch 9)"),
        (RECORD, "version 0"),
        (OTHER, "another one with that version"),
        (msgspec.structs.replace(RECORD, version=7, epoch=4), "this node has seen epoch 5"),
        (None, "no record"),
    ],
)
def test_an_older_record_is_refused_whatever_its_epoch(record: GroupRecord | None, why: str) -> None:
    assert why in refused(record)


def test_records_without_a_version_are_told_apart_by_their_epoch() -> None:
    assert "epoch 6" in refused(RECORD, RecordPromise(), promised_epoch=6)
    assert refused(RECORD.replace(in_sync=(ONE,)), RECORD.promise) == ""
    assert "no record" in refused(None, RecordPromise())


def test_what_another_node_has_promised_counts_as_well() -> None:
    newer = beat(THREE, promised_version=7).beat
    assert "node 3 has seen version 7" in refused(SIXTH, beats=[newer])
    assert "node 3 has seen version 7" in refused(None, RecordPromise(), joined=False, beats=[newer])
    assert refused(SIXTH, beats=[beat(THREE, promised_version=6).beat]) == ""


@pytest.mark.parametrize("role", [Role.REPLICA, Role.CANDIDATE])
def test_a_record_is_promised_before_anything_is_done_because_of_it(role: Role) -> None:
    won = SIXTH.replace(epoch=6, master=2)
    node = own(role, promised_record=SIXTH.promise)
    assert decide(view(node, record=won)) == [PromiseRecord(won.promise)]
    node = own(Role.CANDIDATE, promised_record=won.promise)
    assert decide(view(node, record=won)) == [BecomeMaster(6, won.members)]


def test_a_master_promises_as_well_but_steps_down_at_once() -> None:
    node = own(Role.MASTER, ONE, promised_record=SIXTH.promise)
    assert decide(view(node, record=SIXTH.replace())) == [PromiseRecord(SIXTH.replace().promise)]
    (action,) = decide(view(node, record=SIXTH.replace(epoch=6, master=2)))
    assert isinstance(action, StepDown)


def test_a_record_that_was_read_before_the_promise_is_not_used() -> None:
    node = own(Role.CANDIDATE, promised_record=SIXTH.promise, role_since=NOW - 9)
    (action,) = decide(view(node, record=RECORD))
    assert isinstance(action, Wait)


def test_a_master_goes_on_while_its_promise_is_written() -> None:
    """Otherwise it could not resign when its disk hangs. Only the promise itself lets a removed node go."""
    without_three = msgspec.structs.replace(OTHER, master=1)
    seen: dict[str, Any] = {
        "record": without_three,
        "beats": {2: beat(TWO, promised_version=6), 3: beat(THREE)},
        "links": {TWO: link(TWO)},
    }
    node = own(Role.MASTER, ONE, required=RECORD.members, promised_record=RECORD.replace().promise)
    assert decide(view(node, **seen)) == [PromiseRecord(without_three.promise)]
    writing = replace(node, promising=6)
    (action,) = decide(view(writing, **seen))
    assert isinstance(action, Wait), "node 3 must still acknowledge"
    done = replace(writing, promised_record=without_three.promise)
    assert decide(view(done, **seen)) == [SetRequired(OTHER.members)]
    replica = own(Role.REPLICA, TWO, promising=6, promised_record=RECORD.replace().promise)
    assert isinstance(decide(view(replica, record=without_three))[0], PromiseRecord), "others wait for it"
