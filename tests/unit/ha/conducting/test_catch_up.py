"""A replica is caught up at a time if it has flushed what the master had then."""

from __future__ import annotations

from metaq.ha.conducting.catch_up import CatchUp
from metaq.ha.group_record import Member
from metaq.ha.node import LinkFacts
from metaq.ha.view import Link

TWO = Member(2, "b")


def observe(catch_up: CatchUp, now: float, appended_end: int, flushed_end: int, contact_at: float) -> Link:
    facts = LinkFacts(TWO, flushed_end, (1, 0), contact_at)
    return catch_up.observe(now, appended_end, (1, 0), {TWO: facts})[TWO]


def test_under_load_a_replica_a_little_behind_keeps_up() -> None:
    catch_up = CatchUp()
    for step in range(1, 200):
        now = step * 0.1
        # The replica always has what the master had two steps ago.
        found = observe(catch_up, now, step * 10, (step - 2) * 10, now)
        if step > 3:
            assert abs(now - found.caught_up_at - 0.2) < 0.01


def test_a_replica_that_stands_still_falls_behind() -> None:
    catch_up = CatchUp()
    assert observe(catch_up, 1.0, 100, 100, 1.0).caught_up_at == 1.0
    assert observe(catch_up, 2.0, 150, 100, 2.0).caught_up_at == 1.0
    assert observe(catch_up, 9.0, 900, 149, 9.0).caught_up_at == 1.0
    assert observe(catch_up, 9.5, 950, 150, 9.5).caught_up_at == 2.0


def test_a_replica_that_was_never_caught_up_is_not() -> None:
    assert observe(CatchUp(), 1.0, 100, 0, 1.0).caught_up_at == float("-inf")


def test_a_lost_link_is_remembered() -> None:
    catch_up = CatchUp()
    observe(catch_up, 1.0, 100, 100, 0.9)
    lost = catch_up.observe(5.0, 100, (1, 0), {})[TWO]
    assert (lost.connected, lost.caught_up_at, lost.contact_at) == (False, 0.9, 0.9)
    catch_up.reset()
    assert catch_up.observe(6.0, 100, (1, 0), {}) == {}


def test_state_counts_like_the_log() -> None:
    catch_up = CatchUp()
    facts = {TWO: LinkFacts(TWO, 100, (1, 3), 1.0)}
    assert catch_up.observe(1.0, 100, (2, 0), facts)[TWO].caught_up_at == float("-inf")
    assert catch_up.observe(1.1, 100, (1, 3), facts)[TWO].caught_up_at == 1.0
