"""Slots of requests under way, and the limits of those that wait for other clients."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from metaq.protocol.errors import Refused
from metaq.protocol.handling.askers import Asker
from metaq.protocol.handling.slots import KINDS, Kind, QuestionLimits, Questions, Slots

HERE, ELSEWHERE = "127.0.0.1", "127.0.0.9"
VITAL, CHANGE, ASKING = Kind(is_vital=True), Kind(), Kind(only_asks=True)


@dataclass(frozen=True, eq=False)
class Work:
    """A request."""

    asker: Asker
    kind: Kind = CHANGE


class Flood:
    """Connections that ask without end, unless they are paused."""

    def __init__(self, slots_max: int = 1024, per_connection_max: int = 128) -> None:
        self.paused: set[int] = set()
        self.slots: Slots[Work] = Slots(slots_max, per_connection_max, self._pause)
        self.taken: list[Work] = []

    def _pause(self, connection: int, is_paused: bool) -> None:
        (self.paused.add if is_paused else self.paused.discard)(connection)

    def arrive(self, connection: int, source: str = HERE, kind: Kind = CHANGE) -> Work:
        """One request. It takes a slot or waits for one."""
        work = Work(
            Asker(source, connection),
            self.slots.kind_of(connection, is_vital=kind.is_vital, only_asks=kind.only_asks),
        )
        if self.slots.has_room(source, work.kind):
            self.slots.take(work)
            self.taken.append(work)
        else:
            self.slots.wait(work)
        return work

    def ask(self, connections: int, kind: Kind = CHANGE, source: str = HERE) -> int:
        """Returns how many slots are free if each connection asks without end."""
        for _ in range(128):
            for connection in range(connections):
                if connection not in self.paused:
                    self.arrive(connection, source, kind)
        return self.slots.free

    def has_begun(self, connection: int, source: str, kind: Kind = CHANGE) -> bool:
        return self.arrive(connection, source, kind) in self.taken

    def end(self, work: Work) -> Work | None:
        """Ends one request. Returns the one that begins in its place."""
        self.taken.remove(work)
        self.slots.give_back(work)
        begun = self.slots.begin_next()
        if begun is not None:
            self.taken.append(begun)
        return begun


def test_a_connection_is_paused_while_it_has_its_share() -> None:
    paused: list[tuple[int, bool]] = []
    slots: Slots[Work] = Slots(64, 2, lambda connection, pause: paused.append((connection, pause)))
    one, two = Work(Asker(HERE, 1)), Work(Asker(HERE, 2))
    slots.take(one)
    assert (slots.free, paused) == (63, [])
    slots.take(one)
    slots.take(two)
    assert (slots.free, paused) == (61, [(1, True)])
    slots.take(one)
    slots.give_back(one)
    assert paused == [(1, True)], "one that came back from a wait exceeds the share for a moment"
    slots.give_back(one)
    slots.give_back(one)
    slots.give_back(two)
    assert (slots.free, paused) == (64, [(1, True), (1, False)])


@pytest.mark.parametrize(("connections", "free_min"), [(1, 800), (9, 390), (100, 128), (10_000, 64)])
def test_connections_that_ask_without_end_leave_slots_to_others(connections: int, free_min: int) -> None:
    flood = Flood()
    assert flood.ask(connections) >= free_min
    assert flood.slots.has_room(HERE, VITAL), "heartbeats and routes find a slot in any case"
    assert flood.slots.has_room(HERE, Kind(is_new=True)) == (connections < 10_000)
    for kind in KINDS:
        assert flood.slots.has_room(ELSEWHERE, kind), "an address that has none finds a slot in any case"


def test_an_address_gets_nearly_all_slots_while_nobody_else_asks() -> None:
    flood = Flood()
    assert flood.ask(10_000) <= 96


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_another_address_finds_slots_whatever_one_address_asks_for(kind: Kind) -> None:
    """An address may have several requests under way at the same time, also by one connection."""
    flood = Flood()
    flood.ask(10_000, kind)
    assert flood.slots.waiting_count() > 1_000
    begun = [flood.has_begun(20_000, ELSEWHERE, wanted) for wanted in (ASKING, CHANGE, CHANGE, VITAL, VITAL)]
    assert all(begun)
    assert 20_000 not in flood.paused


def test_requests_that_only_ask_have_half_of_the_slots() -> None:
    flood = Flood()
    assert flood.ask(10_000, ASKING) >= 512
    assert not flood.slots.has_room(HERE, Kind(is_new=True, only_asks=True))
    for kind in (CHANGE, Kind(is_new=True), VITAL):
        assert flood.slots.has_room(HERE, kind)


def test_the_address_that_has_the_fewest_slots_gets_the_next_one() -> None:
    flood = Flood()
    flood.ask(2_000)
    of_flood = list(flood.taken)
    for connection in range(3_000, 3_200):
        flood.arrive(connection, ELSEWHERE)
    had = len(flood.taken) - len(of_flood)
    assert had >= 1
    begun = [flood.end(work) for work in of_flood[:200]]
    sources = Counter(work.asker.source for work in begun if work is not None)
    assert sources[ELSEWHERE] >= 100, "it came last, and waits for nobody's turn but its own"
    assert set(sources) == {ELSEWHERE}, "it has fewer than the other until then"


def test_every_request_that_waits_begins_or_is_dropped() -> None:
    flood = Flood(64, 16)
    flood.ask(200)
    flood.ask(50, ASKING, ELSEWHERE)
    dropped = flood.slots.waiting(150)
    assert len(dropped) == 1
    flood.slots.drop(dropped[0])
    waited = flood.slots.waiting_count()
    assert waited > 100
    begun = 0
    while flood.taken:
        begun += flood.end(flood.taken[0]) is not None
    assert begun == waited
    assert (flood.slots.waiting_count(), flood.slots.free, flood.paused) == (0, 64, set())
    assert not any(line._rank or line._ranked for line in flood.slots._lines.values())


def test_every_paused_connection_goes_on_in_the_end() -> None:
    flood = Flood(64, 16)
    flood.ask(50)
    assert flood.paused
    while flood.taken:
        flood.end(flood.taken[0])
    assert (flood.paused, flood.slots.free) == (set(), 64)


def test_questions_are_bounded_by_connection_and_in_all() -> None:
    questions = Questions(
        QuestionLimits(count_max=4, bytes_max=100, per_connection_max=2, bytes_per_connection_max=50)
    )
    questions.add(1, "a", 10)
    questions.add(1, "a", 10)
    with pytest.raises(Refused, match="questions_per_connection_max") as refused:
        questions.add(1, "a", 0)
    assert refused.value.code == 2
    questions.add(2, "b", 45)
    questions.add(3, "c", 0)
    with pytest.raises(Refused, match="limit is questions_max"):
        questions.add(4, "d", 0)
    questions.remove(3, "c", 0)
    questions.remove(1, "a", 10)
    with pytest.raises(Refused, match="questions_bytes_per_connection_max"):
        questions.add(2, "b", 6)
    with pytest.raises(Refused, match="limit is questions_bytes_max"):
        questions.add(3, "c", 46)
    questions.add(3, "c", 45)
    for connection, address, size in ((1, "a", 10), (2, "b", 45), (3, "c", 45)):
        questions.remove(connection, address, size)
    assert len(questions) == 0
    assert (questions._of, questions._of_address) == ({}, {})
    questions.add(1, "a", 1_000)
    assert len(questions) == 1, "one question may be as large as it is"


def test_questions_of_one_address_leave_room_for_others() -> None:
    questions = Questions(QuestionLimits(count_max=10, bytes_max=100))
    for connection in range(5):
        questions.add(connection, "10.0.0.1", 0)
    with pytest.raises(Refused, match=r"5 requests from 10\.0\.0\.1 wait.*half of questions_max"):
        questions.add(6, "10.0.0.1", 0)
    questions.add(7, "10.0.0.9", 30)
    with pytest.raises(Refused, match=r"30 bytes from 10\.0\.0\.9 wait.*half of questions_bytes_max"):
        questions.add(8, "10.0.0.9", 30)
    questions.add(8, "10.0.0.9", 20)
    questions.remove(0, "10.0.0.1", 0)
    questions.add(6, "10.0.0.1", 0)


def test_one_client_is_asked_no_more_than_it_may_be_whoever_asks() -> None:
    limits = QuestionLimits(per_client_max=2)
    limits.check_client(1)
    with pytest.raises(Refused, match="questions_per_client_max"):
        limits.check_client(2)
