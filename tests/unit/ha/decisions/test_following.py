"""Decisions of a replica."""

from __future__ import annotations

from typing import Any

import pytest

from metaq.ha.actions import CompareBelow, Follow, StartOver, StopFollowing, Stream, Truncate, Wait
from metaq.ha.decisions import decide
from metaq.ha.epochs import History
from metaq.ha.group_record import Member, NodeState
from metaq.ha.view import Disk, Role, Source, SourceState
from tests.support.ha_views import NOW, ONE, RECORD, beat, connected, own, view


def replica(**fields: Any) -> Any:
    return own(Role.REPLICA, **fields)


def decided(*args: Any, **fields: Any) -> Any:
    (action,) = decide(view(*args, **fields))
    return action


def test_a_replica_in_a_healthy_group_waits() -> None:
    assert isinstance(decided(replica()), Wait)


def test_it_follows_the_master_of_a_new_epoch() -> None:
    assert decided(replica(), record=RECORD.replace(epoch=6, master=3)) == Follow(3, 6)


@pytest.mark.parametrize(("age_s", "stands"), [(2.9, False), (3.0, True)])
def test_it_stands_after_three_seconds_without_a_beat(age_s: float, stands: bool) -> None:
    action = decided(replica(), beats={1: beat(ONE, age_s=age_s)})
    assert (action == StopFollowing()) is stands


def test_it_stands_at_once_if_the_port_of_the_master_refuses() -> None:
    refused = Source(1, 5, SourceState.REFUSED, refused_since=NOW - 0.2)
    assert decided(replica(), source=refused) == StopFollowing()
    assert isinstance(decided(replica(), source=Source(1, 4, SourceState.REFUSED, NOW - 9)), Wait)


def test_silence_counts_only_while_the_register_is_readable() -> None:
    silent = {1: beat(ONE, age_s=100)}
    assert isinstance(decided(replica(), beats=silent, readable=False), Wait)
    healthy = view(replica(), beats=silent)
    just_back = healthy.register.__class__(RECORD, 7, True, NOW - 1)
    changed = healthy.__class__(NOW, healthy.settings, healthy.own, just_back, silent)
    assert isinstance(decide(changed)[0], Wait)


def test_it_stands_if_the_master_resigned_or_lost_its_store() -> None:
    assert decided(replica(), record=RECORD.replace(master=0)) == StopFollowing()
    assert decided(replica(), beats={1: beat(Member(1, "new"))}) == StopFollowing()


@pytest.mark.parametrize("node", [replica(member=Member(2, "wiped")), replica(disk=Disk.HANGING)])
def test_a_node_that_cannot_be_master_does_not_stand(node: Any) -> None:
    action = decided(node, record=RECORD.replace(master=0))
    assert isinstance(action, Wait)


def test_a_restarted_master_stands_for_a_new_epoch() -> None:
    assert decided(replica(member=ONE, following=0)) == StopFollowing()


def test_a_restarted_master_that_lost_its_store_waits() -> None:
    node = replica(member=Member(1, "new"), following=0)
    assert "others must take over" in decided(node).reason


def test_a_log_from_elsewhere_is_not_cut() -> None:
    parts = connected(log_end=80, agrees_below=(80, True))
    assert "does not belong" in decided(replica(joined=False), source=parts).reason
    differs = connected(agrees_below=(100, False))
    assert "does not belong" in decided(replica(joined=False), source=differs).reason
    assert decided(replica(joined=False), source=connected(agrees_below=(100, True))) == Stream(100)


def test_a_new_group_needs_a_candidate() -> None:
    assert decided(replica(joined=False, promised_epoch=0), record=None) == StopFollowing()


@pytest.mark.parametrize(
    ("source", "action"),
    [
        (connected(), CompareBelow(100)),
        (connected(agrees_below=(90, True)), CompareBelow(100)),
        (connected(agrees_below=(100, True)), Stream(100)),
        (connected(log_end=80, agrees_below=(80, True)), Truncate(80)),
        (connected(history=History.of([(1, 0), (6, 60)]), agrees_below=(50, True)), Truncate(50)),
        (connected(epoch=4), None),
        (connected(state=SourceState.STREAMING), None),
    ],
)
def test_the_way_from_a_connection_to_a_stream(source: Source, action: object) -> None:
    found = decided(replica(), source=source)
    assert found == action if action is not None else isinstance(found, Wait)


def test_a_log_that_cannot_be_continued_is_copied_anew() -> None:
    assert isinstance(decided(replica(), source=connected(log_start=110)), StartOver)
    assert isinstance(decided(replica(), source=connected(agrees_below=(100, False))), StartOver)
    empty = replica(appended_end=110, flushed_end=110, history=History())
    assert decided(empty, source=connected(log_start=110)) == Stream(110)


def test_a_master_with_a_failed_disk_is_left_to_resign() -> None:
    assert isinstance(decided(replica(), beats={1: beat(ONE, state=NodeState.FAILED)}), Wait)
