"""Decisions of a group with fixed roles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from metaq.ha.actions import (
    BecomeMaster,
    FetchTail,
    Follow,
    NoteDamage,
    Promise,
    Reopen,
    Repair,
    SetGate,
    SetRequired,
    Stream,
    Wait,
)
from metaq.ha.decisions.fixed import FixedView, decide_fixed
from metaq.ha.epochs import History
from metaq.ha.group_record import Member
from metaq.ha.node import Offer
from metaq.ha.settings import HaSettings
from metaq.ha.view import Compared, Disk, Role, SendGate, SourceState
from tests.support.ha_views import HISTORY, NOW, ONE, TWO, connected, link, own

STARTING = own(Role.REPLICA, ONE, following=0, epoch=0)
SERVING = own(Role.MASTER, ONE, required=frozenset((ONE, TWO)))


def view(node: Any, **fields: Any) -> FixedView:
    values: dict[str, Any] = {
        "master": 1,
        "replica_ids": frozenset((2,)),
        "started_at": NOW - 1,
        "incomplete": False,
        **fields,
    }
    return FixedView(now=NOW, settings=HaSettings(), own=node, **values)


def decided(*args: Any, **fields: Any) -> list[Any]:
    return decide_fixed(view(*args, **fields))


# ---- a starting master


def test_every_start_takes_a_new_epoch() -> None:
    same = {TWO: Offer(HISTORY, 100)}
    assert decided(STARTING, offers=same) == [BecomeMaster(6, frozenset((ONE,)))]
    newer = {TWO: Offer(History.of([(1, 0), (5, 50), (9, 90)]), 100)}
    assert decided(STARTING, offers=newer) == [BecomeMaster(10, frozenset((ONE,)))]


def test_a_longer_log_of_a_replica_is_fetched_first() -> None:
    assert decided(STARTING, offers={TWO: Offer(HISTORY, 130)}) == [FetchTail(TWO, 100, HISTORY)]
    empty = replace(STARTING, appended_end=0, flushed_end=0, history=History(), promised_epoch=0)
    assert decided(empty, offers={TWO: Offer(HISTORY, 130)}) == [FetchTail(TWO, 0, HISTORY)]


def test_a_log_that_parts_from_its_own_is_not_fetched() -> None:
    other = Offer(History.of([(1, 0), (4, 60)]), 500)
    assert isinstance(decided(STARTING, offers={TWO: other})[0], BecomeMaster)


@pytest.mark.parametrize(("age_s", "waits"), [(2.9, True), (3.0, False)])
def test_an_intact_master_waits_only_a_little(age_s: float, waits: bool) -> None:
    (action,) = decided(STARTING, started_at=NOW - age_s)
    assert isinstance(action, Wait) is waits


def test_an_incomplete_master_waits_until_its_replica_is_there() -> None:
    (action,) = decided(STARTING, started_at=NOW - 3600, incomplete=True)
    assert "waits for nodes [2]" in action.reason
    assert isinstance(decided(STARTING, incomplete=True, offers={TWO: Offer(HISTORY, 100)})[0], BecomeMaster)
    assert isinstance(decided(STARTING, incomplete=True, replica_ids=frozenset())[0], BecomeMaster)


# ---- a serving master


def test_a_replica_that_keeps_up_must_acknowledge() -> None:
    alone = replace(SERVING, required=frozenset((ONE,)), gate=SendGate.REFUSE)
    assert decided(alone, links={TWO: link(TWO)}) == [
        SetRequired(frozenset((ONE, TWO))),
        SetGate(SendGate.OPEN),
    ]


def test_without_enough_replicas_it_refuses() -> None:
    (action,) = decided(SERVING, links={TWO: link(TWO, behind_s=1)})
    assert (action.gate, action.reason) == (SendGate.REFUSE, "1 of at least 2 nodes keep up")


def test_with_a_minimum_of_one_it_goes_on_alone() -> None:
    lone = replace(view(SERVING, links={TWO: link(TWO, behind_s=1)}), settings=HaSettings(min_in_sync=1))
    assert decide_fixed(lone) == [SetRequired(frozenset((ONE,)))]


def test_a_bad_disk_closes_the_gate() -> None:
    node = replace(SERVING, disk=Disk.FAILED)
    assert decided(node, links={TWO: link(TWO)})[0].gate is SendGate.REFUSE


def test_a_cut_log_is_opened_again_by_a_replica_and_closes_the_gate_of_a_master() -> None:
    assert decided(own(Role.REPLICA, TWO, disk=Disk.CUT)) == [Reopen()]
    assert decided(replace(SERVING, disk=Disk.CUT), links={TWO: link(TWO)})[0].gate is SendGate.REFUSE


def test_a_full_disk_leaves_the_refusal_to_the_store() -> None:
    """Only a master deletes old files, so it starts and serves without room."""
    (action,) = decided(replace(SERVING, disk=Disk.FULL), links={TWO: link(TWO)})
    assert isinstance(action, Wait)
    full = replace(STARTING, disk=Disk.FULL)
    assert isinstance(decided(full, offers={TWO: Offer(HISTORY, 100)})[0], BecomeMaster)


# ---- a replica


def test_a_replica_promises_the_epoch_of_its_master_before_it_copies() -> None:
    node = own(Role.REPLICA, TWO)
    assert decided(replace(node, following=0)) == [Follow(1, 5)]
    assert decided(node, source=connected(epoch=6)) == [Promise(6)]
    assert decided(node, source=connected(compared=Compared(100, True))) == [Stream(100)]


def test_a_replica_notes_damage_and_repairs_it_on_a_new_connection() -> None:
    assert decided(own(Role.REPLICA, TWO, damaged_at=10)) == [NoteDamage(10)]
    node = own(Role.REPLICA, TWO, damaged_at=10, noted_damage=10)
    assert decided(node, source=connected(state=SourceState.STREAMING)) == [Follow(1, 5)]
    compared = Compared(100, False, ((10, 20),))
    assert decided(node, source=connected(compared=compared)) == [Repair(((10, 20),))]
    (action,) = decided(node, source=connected(compared=Compared(100, False, ((10, 20),), ((10, 20),))))
    assert "and so is the log of node 1" in action.reason


def test_a_damaged_fixed_master_serves_on() -> None:
    node = replace(SERVING, damaged_at=10, noted_damage=10)
    assert isinstance(decided(node, links={TWO: link(TWO)})[0], Wait)


def test_a_replica_refuses_an_older_epoch() -> None:
    (action,) = decided(own(Role.REPLICA, TWO), source=connected(epoch=4))
    assert "5 was seen before" in action.reason


def test_a_replica_never_becomes_master() -> None:
    assert isinstance(decided(own(Role.REPLICA, Member(2, "b")), started_at=0.0)[0], Wait)
