"""The nodes that must agree to an election, and when a member may be dropped."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import pytest

from metaq.ha.actions import SetRequired, Swap, Wait
from metaq.ha.decisions import decide
from metaq.ha.decisions.electorate import change_set, has_agreement, votes_needed
from metaq.ha.decisions.master import awaits_promises
from metaq.ha.group_record import GroupRecord, Member
from metaq.ha.settings import HaSettings, ReplicaMode
from metaq.ha.view import Role
from tests.support.ha_views import NOW, ONE, RECORD, THREE, TWO, beat, link, own, view

FOUR, FIVE = Member(4, "d"), Member(5, "e")
EVERYBODY = (ONE, TWO, THREE, FOUR, FIVE)


def of(members: tuple[Member, ...], least: int, **fields: Any) -> GroupRecord:
    values = {"version": 9, "voters": members, **fields}
    return GroupRecord(epoch=5, master=1, in_sync=members, min_in_sync=least, **values)


@pytest.mark.parametrize(
    ("nodes", "least", "needed"),
    [(1, 2, 1), (2, 2, 1), (3, 2, 2), (5, 3, 3), (5, 2, 4), (3, 1, 0)],
)
def test_how_many_must_agree(nodes: int, least: int, needed: int) -> None:
    assert votes_needed(of(EVERYBODY[:nodes], least)) == needed


def agreed(**beats: Any) -> bool:
    node = own(Role.CANDIDATE, role_since=NOW - 9)
    return has_agreement(view(node, beats={int(name[1:]): seen for name, seen in beats.items()}), RECORD)


def test_who_agrees() -> None:
    assert agreed(n3=beat(THREE))
    assert agreed(n3=beat(THREE, age_s=60)), "it died since then, but it knew nothing newer"
    assert not agreed()
    assert not agreed(n3=beat(THREE, is_fresh=False)), (
        "an old beat of a dead node comes back with the register"
    )
    assert not agreed(n3=beat(Member(3, "wiped")))
    assert not agreed(n3=beat(THREE, promised_version=1))
    assert not agreed(n4=beat(FOUR)), "it is no voter"


def test_without_agreement_nobody_asks() -> None:
    node = own(Role.CANDIDATE, role_since=NOW - 9)
    stale = {member.id: beat(member, age_s=9, is_fresh=False) for member in (ONE, TWO, THREE)}
    (action,) = decide(view(node, beats=stale))
    assert isinstance(action, Wait) and "older copy" in action.reason
    named = RECORD.replace(epoch=6, master=2)
    (action,) = decide(view(node, record=named, beats=stale))
    assert isinstance(action, Wait), "neither does a node that an old record names"
    for settings in (HaSettings(replicas=ReplicaMode.ASYNC), HaSettings()):
        record = msgspec.structs.replace(RECORD, min_in_sync=1)
        (action,) = decide(view(node, record=record, beats=stale, settings=settings))
        assert isinstance(action, Swap)


def shrunk(promised: dict[int, int]) -> Any:
    """The view of a master right after it has removed node 3 from the set."""
    record = RECORD.replace(in_sync=(ONE, TWO))
    node = own(Role.MASTER, ONE, required=RECORD.members)
    beats = {
        member.id: beat(member, promised_version=promised.get(member.id, 0)) for member in (ONE, TWO, THREE)
    }
    return view(node, record=record, beats=beats, links={TWO: link(TWO)})


def test_a_removed_member_is_required_until_the_others_have_promised() -> None:
    assert awaits_promises(shrunk({}))
    assert not any(isinstance(action, SetRequired) for action in decide(shrunk({})))
    assert awaits_promises(shrunk({3: 1}))
    assert not awaits_promises(shrunk({2: 1}))
    assert decide(shrunk({2: 1})) == [SetRequired(frozenset((ONE, TWO)))]


def nobody(member: Member) -> float:
    return 0


def everybody(member: Member) -> float:
    return 99


def test_removed_members_stay_voters_while_they_are_needed() -> None:
    pair = change_set(of((ONE, TWO, THREE), 2), (ONE, TWO), nobody)
    assert pair is not None
    assert (pair.electorate, votes_needed(pair)) == ({ONE, TWO, THREE}, 2)
    four = change_set(of(EVERYBODY, 2), EVERYBODY[:4], nobody)
    assert four is not None
    assert (four.electorate, four.voters_before, four.voters_since) == (set(EVERYBODY[:4]), EVERYBODY, 10)


def test_a_member_stays_if_too_few_know_of_the_last_change_of_the_voters() -> None:
    three = change_set(of((ONE, TWO), 2), (ONE, TWO, THREE), nobody)
    assert three is not None
    assert (three.voters_before, three.voters_since) == ((ONE, TWO), 10)
    assert change_set(three, (ONE, THREE), nobody) is None, "node 2 alone could be elected in the old pair"
    dropped = change_set(three, (ONE, THREE), lambda member: 10 if member == TWO else 0)
    assert dropped is not None and dropped.electorate == {ONE, TWO, THREE}
    assert change_set(three, (*three.in_sync, FOUR), nobody) is None, "one change of the voters at a time"
    assert change_set(three, (*three.in_sync, FOUR), everybody) is not None


def test_after_an_upgrade_a_dead_node_need_not_agree() -> None:
    """The record of an older broker has no voters, and its copies elect anybody in their set."""
    elected = of((ONE, TWO), 2, version=0, voters=()).replace(epoch=1002)
    assert (elected.version, elected.voters) == (1, ())
    three = change_set(elected, (ONE, TWO, THREE), nobody)
    assert three is not None and three.electorate == {ONE, TWO, THREE}
    dropped = change_set(three, (ONE, THREE), nobody)
    assert dropped is not None and dropped.electorate == {ONE, TWO, THREE}


def test_with_a_minimum_of_one_anybody_may_leave() -> None:
    record = of((ONE,), 1, voters=(ONE,))
    pair = change_set(record, (ONE, TWO), nobody)
    assert pair is not None
    alone = change_set(pair, (TWO,), nobody)
    assert alone is not None and alone.in_sync == (TWO,)


def test_a_replaced_incarnation_counts_as_one_that_refuses() -> None:
    node = own(Role.MASTER, ONE)
    anew = Member(2, "wiped")
    pair = RECORD.replace(in_sync=(ONE, TWO))
    pair = msgspec.structs.replace(pair, voters=(ONE, TWO))
    beats = {1: beat(ONE), 2: beat(anew, promised_version=1)}
    actions = decide(view(node, record=pair, beats=beats, links={anew: link(anew)}))
    (required,) = [action for action in actions if isinstance(action, SetRequired)]
    assert anew in required.members


class History:
    """A random history of one group, by the rules: which records there were, and who promised what when."""

    def __init__(self, seed: int, nodes: int, least: int) -> None:
        self.rng = random.Random(seed)
        self.nodes = EVERYBODY[:nodes]
        self.promised = dict.fromkeys(self.nodes, 0)
        self.record = GroupRecord(1, 1, (ONE,), least, version=1, voters=(ONE,))
        self.records = [self.record]
        self.required = set(self.record.in_sync)
        self.elected_at = 1
        self.holders: list[frozenset[Member]] = []
        """The nodes that have flushed each acknowledged message."""

    def known(self, member: Member) -> float:
        return self.promised[member]

    def step(self) -> None:
        in_sync = set(self.record.in_sync)
        match self.rng.randrange(6):
            case 0:
                self._change({*in_sync, self.rng.choice(self.nodes)})
            case 1 | 2:
                self._change(in_sync - {self.rng.choice(self.nodes)}, elects=self.rng.random() < 0.4)
            case 3 | 4:
                member = self.rng.choice(self.nodes)
                self.promised[member] = self.record.version
            case _:
                self._acknowledge()

    def _change(self, in_sync: set[Member], elects: bool = False) -> None:
        if in_sync == set(self.record.in_sync) or len(in_sync) < min(
            self.record.min_in_sync, len(self.record.in_sync)
        ):
            return
        changed = change_set(self.record, in_sync, self.known, master=min(in_sync).id)
        if changed is None:
            return
        # Whoever joins has caught up before.
        self.holders = [held | in_sync - set(self.record.in_sync) for held in self.holders]
        self.record = changed
        self.records.append(changed)
        if elects:
            self.elected_at = changed.version
        # A new master knows nothing of what its predecessor required.
        self.required = set(in_sync) if elects else self.required | in_sync

    def _acknowledge(self) -> None:
        if len(self.record.in_sync) < self.record.min_in_sync:
            return
        for member in self.required:
            # Nobody follows a master before it has promised the record that elected it.
            self.promised[member] = max(self.promised[member], self.elected_at)
        if all(self.promised[member] >= self.record.version for member in self.record.in_sync):
            self.required = set(self.record.in_sync)
        self.holders.append(frozenset(self.required))

    def losing_election(self) -> str:
        """Returns an old record that could elect a node without an acknowledged message."""
        for old in self.records:
            willing = [voter for voter in old.electorate if self.promised[voter] <= old.version]
            if len(willing) < votes_needed(old):
                continue
            for winner, held in itertools.product(old.in_sync, self.holders):
                if winner in willing and winner not in held:
                    return f"{old} elects {winner}, but a message is on {sorted(held)} only"
        return ""


@pytest.mark.parametrize(("nodes", "least"), [(2, 2), (3, 2), (4, 2), (5, 2), (4, 3), (5, 3)])
def test_no_old_record_elects_a_node_that_lacks_a_message(nodes: int, least: int) -> None:
    acknowledged = 0
    for seed in range(150):
        history = History(seed, nodes, least)
        for _ in range(60):
            history.step()
            if history.record is history.records[-1]:
                assert not _old_only(history), (seed, _old_only(history))
        acknowledged += len(history.holders)
    assert acknowledged > 100


def _old_only(history: History) -> str:
    """The newest record is the truth: whoever is in its set holds everything."""
    newest = history.records.pop()
    try:
        return history.losing_election()
    finally:
        history.records.append(newest)
