"""Slots of requests under way, and the limits of those that wait for other clients."""

from __future__ import annotations

import pytest

from metaq.protocol.errors import Refused
from metaq.protocol.handling.slots import QuestionLimits, Questions, Slots


def test_a_connection_is_paused_while_it_has_its_share() -> None:
    paused: list[tuple[int, bool]] = []
    slots = Slots(64, 2, lambda connection, pause: paused.append((connection, pause)))
    slots.take(1)
    assert (slots.free, paused) == (63, [])
    slots.take(1)
    slots.take(2)
    assert (slots.free, paused) == (61, [(1, True)])
    slots.take(1)
    slots.give_back(1)
    assert paused == [(1, True)], "one that came back from a wait exceeds the share for a moment"
    slots.give_back(1)
    slots.give_back(1)
    slots.give_back(2)
    assert (slots.free, paused) == (64, [(1, True), (1, False)])


def taken_by(connections: int, slots: Slots, paused: set[int]) -> int:
    """How many slots these connections get if each asks without end."""
    for _ in range(128):
        for connection in range(connections):
            if connection not in paused and slots.has_room(is_new=slots.of(connection) == 0):
                slots.take(connection)
    return slots.free


@pytest.mark.parametrize(("connections", "free_min"), [(1, 800), (9, 390), (100, 128), (10_000, 64)])
def test_connections_that_ask_without_end_leave_slots_to_others(connections: int, free_min: int) -> None:
    paused: set[int] = set()
    slots = Slots(1024, 128, lambda connection, pause: (paused.add if pause else paused.discard)(connection))
    free = taken_by(connections, slots, paused)
    assert free >= free_min
    assert slots.has_room(is_vital=True), "heartbeats and routes find a slot in any case"
    assert slots.has_room(is_new=True) == (connections < 10_000)


def test_every_paused_connection_goes_on_in_the_end() -> None:
    paused: set[int] = set()
    slots = Slots(64, 16, lambda connection, pause: (paused.add if pause else paused.discard)(connection))
    taken_by(50, slots, paused)
    assert paused
    for connection in range(50):
        while slots.of(connection):
            slots.give_back(connection)
    assert (paused, slots.free) == (set(), 64)


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
