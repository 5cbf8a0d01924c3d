"""The register's values are checked in full before anybody believes them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from metaq.ha.group_record import (
    EPOCHS_PER_ROUND,
    RECORD_BYTES_MAX,
    Beat,
    GroupKeys,
    GroupRecord,
    Member,
    NodeState,
    Reader,
    RecordInvalid,
    next_epoch,
)

RECORD = GroupRecord(epoch=3, master=1, in_sync=(Member(1, "a"), Member(2, "b")), min_in_sync=2)
BEAT = Beat(
    id=2,
    incarnation="b",
    client_address="host:10911",
    replication_address="host:10912",
    flushed_end=100,
    log_epoch=3,
    promised_epoch=3,
    sequence=7,
    state=NodeState.REPLICA,
)


def record_with(**fields: Any) -> bytes:
    return json.dumps({**json.loads(RECORD.encode()), **fields}).encode()


def test_records_and_beats_survive_the_register() -> None:
    assert GroupRecord.decode(RECORD.encode()) == RECORD
    assert Beat.decode(BEAT.encode()) == BEAT
    assert BEAT.member in RECORD.members


def test_equal_sets_have_equal_bytes() -> None:
    backwards = RECORD.replace(in_sync=reversed(RECORD.in_sync))
    assert backwards.encode() == RECORD.replace().encode()


def test_every_change_is_a_new_version() -> None:
    assert RECORD.version == 0
    assert RECORD.replace().replace(master=2).version == 2
    assert RECORD.replace().promise != RECORD.promise
    assert RECORD.replace(master=2).promise != RECORD.replace(master=1).promise
    assert RECORD.promise.digest == "c548fdabb665f6624c03d72cd7c83ea5", "every MetaQ must find the same one"
    assert RECORD.electorate == RECORD.members


def test_older_brokers_read_what_is_written_for_them() -> None:
    """They refuse every field and every state that they do not know."""
    versioned = RECORD.replace().with_voters(RECORD.in_sync, RECORD.in_sync)
    assert len(json.loads(versioned.encode())) == 8
    older = versioned.for_older()
    assert list(json.loads(older.encode())) == ["epoch", "master", "in_sync", "min_in_sync"]
    assert GroupRecord.decode(older.encode()) == RECORD
    for state, shown in [
        (NodeState.FULL, "failed"),
        (NodeState.LEFT, "leaving"),
        (NodeState.MASTER, "master"),
    ]:
        newest = msgspec.structs.replace(
            BEAT, state=state, promised_version=4, min_in_sync=2, state_version=(3, 9), damaged_at=5
        )
        assert len(json.loads(newest.encode())) == 13
        found = json.loads(newest.for_older().encode())
        assert (len(found), found["state"], found["damaged_at"]) == (10, shown, 5)


def test_no_two_nodes_share_an_epoch() -> None:
    assert [next_epoch(after, 2) for after in (0, 1, 2, 5, 999, 1002)] == [2, 2, 1002, 1002, 1002, 2002]
    epochs: dict[int, int] = {}
    for after in range(0, 9_000, 7):
        for node_id in (1, 2, 30):
            epoch = next_epoch(after, node_id)
            assert after < epoch <= after + EPOCHS_PER_ROUND
            assert epochs.setdefault(epoch, node_id) == node_id


def test_nodes_say_which_records_they_read() -> None:
    keys = GroupKeys("prod", "broker-a")
    found = {
        keys.reader(1): Reader("a").encode(),
        keys.reader(2): b'{"incarnation":"b","reads_more":true}',
        keys.readers + "x": Reader("c").encode(),
        keys.reader(4): b"{",
        keys.beat(5): Reader("e").encode(),
    }
    assert keys.readers_in(found) == {Member(1, "a"), Member(2, "b")}


def test_keys_are_those_of_the_design() -> None:
    keys = GroupKeys("prod", "broker-a")
    assert keys.group == "metaq/prod/broker-a/group"
    assert keys.beat(7) == "metaq/prod/broker-a/beat/7"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"[]", "Expected `object`"),
        (b"{}", "missing required field"),
        (record_with(epoch=0), "epoch"),
        (record_with(epoch=-1), "epoch"),
        (record_with(epoch=2**63), "epoch"),
        (record_with(epoch="3"), "Expected `int`"),
        (record_with(epoch=1.5), "Expected `int`"),
        (record_with(master=-1), "master"),
        (record_with(in_sync=[]), "in_sync"),
        (record_with(in_sync=[{"id": 0, "incarnation": "a"}]), "id"),
        (record_with(in_sync=[{"id": 1, "incarnation": ""}]), "incarnation"),
        (record_with(in_sync=[{"id": 1, "incarnation": "a b"}]), "incarnation"),
        (record_with(in_sync=[{"id": n, "incarnation": "a"} for n in range(1, 70)]), "length"),
        (record_with(min_in_sync=0), "min_in_sync"),
        (record_with(surprise=1), "unknown field"),
        (record_with(version=-1), "version"),
        (record_with(voters_since=1), "voters of 1"),
        (record_with(voters=[{"id": 1, "incarnation": "a"}]), "without a vote"),
        (record_with(master=9), "names master 9"),
        (record_with(in_sync=[{"id": 1, "incarnation": "a"}, {"id": 1, "incarnation": "b"}]), "twice"),
        (b" " * (RECORD_BYTES_MAX + 1), f"more than {RECORD_BYTES_MAX}"),
    ],
)
def test_a_bad_record_is_refused_with_a_reason(value: bytes, why: str) -> None:
    with pytest.raises(RecordInvalid, match=why):
        GroupRecord.decode(value)


def test_a_resigned_master_is_no_member() -> None:
    assert GroupRecord.decode(record_with(master=0)).master == 0


@pytest.mark.parametrize("change", [{"sequence": -1}, {"state": "king"}, {"flushed_end": -5}, {"id": 0}])
def test_a_bad_beat_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(RecordInvalid):
        Beat.decode(json.dumps({**json.loads(BEAT.encode()), **change}).encode())
