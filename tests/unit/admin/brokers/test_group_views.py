"""The views of several nodes become one."""

from __future__ import annotations

import msgspec

from metaq.admin.brokers.group_views import combined, gone_group
from metaq.ha.group_record import GroupRecord
from metaq.ha.operators.register_groups import RegisteredGroup
from metaq.protocol.commands.replication import GroupStatus, NodeStateWord, NodeStatus
from metaq.protocol.errors import Refused, Unreachable
from tests.support.ha_views import ONE, THREE, TWO, beat

PLACES = {1: "h:1", 2: "h:2", 3: "h:3"}
GONE = Unreachable("no")


def seen_by(
    node_id: int, *, epoch: int = 5, master: int = 1, state: NodeStateWord = "in sync"
) -> GroupStatus:
    """The view of one node of three; only a master knows lags."""
    knows = node_id == master
    return GroupStatus(
        "g",
        epoch,
        master,
        2,
        (1, 2, 3),
        tuple(
            NodeStatus(
                number,
                place,
                "master" if number == master else "replica",
                state if number == node_id else "in sync",
                (0 if number == master else 7) if knows else None,
                (0 if number == master else 9) if knows else None,
            )
            for number, place in PLACES.items()
        ),
    )


def states(status: GroupStatus | None) -> list[str]:
    assert status is not None
    return [node.state for node in status.nodes]


def registered(record: GroupRecord | None) -> RegisteredGroup:
    beats = {member.id: beat(member, client_address=PLACES[member.id]).beat for member in (ONE, TWO, THREE)}
    return RegisteredGroup("g", record, 1, beats)


def test_a_replica_that_does_not_know_it_is_in_sync() -> None:
    """With fixed roles only the master knows the set."""
    master = seen_by(1)
    for lag_bytes, expected in ((0, "in sync"), (5, "catching up")):
        second = msgspec.structs.replace(master.nodes[1], lag_bytes=lag_bytes)
        view = msgspec.structs.replace(master, nodes=(master.nodes[0], second, master.nodes[2]))
        answers = {"h:1": view, "h:2": seen_by(2, state="catching up"), "h:3": seen_by(3)}
        assert states(combined("g", answers, None))[1] == expected


def test_the_master_knows_the_lags() -> None:
    status = combined("g", {PLACES[number]: seen_by(number) for number in (2, 1, 3)}, None)
    assert status is not None
    assert [(node.role, node.lag_bytes, node.lag_ms) for node in status.nodes] == [
        ("master", 0, 0),
        ("replica", 7, 9),
        ("replica", 7, 9),
    ]


def test_a_node_speaks_for_its_own_log() -> None:
    second = seen_by(2, state="damaged")
    own = msgspec.structs.replace(second.nodes[1], damaged_at=5, problem="why")
    second = msgspec.structs.replace(second, nodes=(second.nodes[0], own, second.nodes[2]))
    status = combined("g", {"h:1": seen_by(1), "h:2": second, "h:3": seen_by(3)}, None)
    assert states(status) == ["in sync", "damaged", "in sync"]
    assert status is not None and (status.nodes[1].damaged_at, status.nodes[1].problem) == (5, "why")


def test_a_node_that_does_not_answer_is_gone() -> None:
    status = combined("g", {"h:1": seen_by(1), "h:2": GONE, "h:3": seen_by(3)}, None)
    assert states(status) == ["in sync", "gone", "in sync"]
    assert status is not None and status.nodes[1].lag_bytes == 7


def test_a_node_that_changes_its_role_is_not_gone() -> None:
    status = combined("g", {"h:1": seen_by(1), "h:2": Refused(14, "later"), "h:3": seen_by(3)}, None)
    assert states(status) == ["in sync", "in sync", "in sync"]


def test_a_replica_speaks_for_a_group_whose_master_died() -> None:
    status = combined("g", {"h:1": GONE, "h:2": seen_by(2, state="candidate"), "h:3": GONE}, None)
    assert states(status) == ["gone", "candidate", "gone"]
    assert status is not None and (status.master, status.nodes[0].role) == (1, "master")


def test_a_former_master_does_not_speak_for_the_group() -> None:
    status = combined("g", {"h:1": seen_by(1), "h:2": seen_by(2, epoch=6, master=2)}, None)
    assert status is not None and (status.epoch, status.master) == (6, 2)
    assert [node.role for node in status.nodes] == ["replica", "master", "replica"]


def test_the_register_counts_more_than_the_nodes() -> None:
    record = GroupRecord(epoch=6, master=0, in_sync=(ONE, TWO), min_in_sync=2)
    status = combined("g", {place: seen_by(number) for number, place in PLACES.items()}, registered(record))
    assert status is not None
    assert (status.epoch, status.master, status.in_sync) == (6, 0, (1, 2))
    assert {node.role for node in status.nodes} == {"replica"}
    assert states(status) == ["in sync", "in sync", "catching up"]


def test_a_register_that_lost_its_newest_state_does_not_count() -> None:
    record = GroupRecord(epoch=3, master=3, in_sync=(THREE,), min_in_sync=2)
    status = combined("g", {"h:1": seen_by(1)}, registered(record))
    assert status is not None and (status.epoch, status.master) == (5, 1)


def test_a_record_that_nodes_refuse_does_not_count() -> None:
    record = GroupRecord(epoch=5, master=1, in_sync=(ONE, TWO), min_in_sync=2)
    seen = seen_by(1)
    nodes = tuple(msgspec.structs.replace(node, register_fault="it went back") for node in seen.nodes)
    refusing = msgspec.structs.replace(seen, nodes=nodes)
    believed, refused = (combined("g", {"h:1": view}, registered(record)) for view in (seen, refusing))
    assert believed is not None and refused is not None
    assert (believed.in_sync, refused.in_sync) == ((1, 2), (1, 2, 3))
    assert refused.nodes[0].register_fault == "it went back"


def test_the_register_alone_is_enough() -> None:
    record = GroupRecord(epoch=6, master=2, in_sync=(TWO,), min_in_sync=2)
    status = combined("g", dict.fromkeys(PLACES.values(), GONE), registered(record))
    assert states(status) == ["gone", "gone", "gone"]
    assert status is not None and (status.master, status.in_sync) == (2, (2,))
    assert [node.address for node in status.nodes] == list(PLACES.values())


def test_without_anybody_there_is_no_status() -> None:
    assert combined("g", {"h:1": GONE}, None) is None
    assert states(gone_group("g", {0: "h:1", 2: "h:2"})) == ["gone", "gone"]


def test_the_document_has_exactly_the_promised_fields() -> None:
    status = combined("g", {"h:1": seen_by(1)}, None)
    document = msgspec.json.decode(msgspec.json.encode(status))
    assert list(document) == ["name", "epoch", "master", "min_in_sync", "in_sync", "nodes"]
    assert list(document["nodes"][0]) == [
        "id",
        "address",
        "role",
        "state",
        "lag_bytes",
        "lag_ms",
        "damaged_at",
        "problem",
        "register_fault",
        "ack_ms",
        "same_id",
    ]
