"""Tests the checker against every kind of broken queue that it has to find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.checker import History, Key, Served, body_of, key_of, violations

Kept = dict[int, list[Served]]


def _sound() -> tuple[History, Kept]:
    """Returns two senders and two queues; sender 1's fourth message had no answer and was sent again."""
    history = History()
    queues: Kept = {0: [], 1: []}
    for sequence in range(6):
        for sender in (1, 2):
            key = Key(sender, sequence)
            queue_id = sequence % 2
            history.attempt(key, queue_id)
            queue_offset = len(queues[queue_id])
            queues[queue_id].append(Served(queue_offset, body_of(key)))
            if key == Key(1, 3):
                history.attempt(key, queue_id)
                queue_offset += 1
                queues[queue_id].append(Served(queue_offset, body_of(key)))
            history.acknowledge(key, queue_offset)
    return history, queues


def test_a_sound_queue_passes() -> None:
    history, queues = _sound()
    assert violations(history, queues, earlier={0: queues[0][:2]}) == []
    assert history.acknowledged_count() == 12


def test_an_unanswered_message_may_be_there_or_not() -> None:
    history, queues = _sound()
    history.attempt(Key(3, 0), 0)
    assert violations(history, queues) == []
    queues[0].append(Served(len(queues[0]), body_of(Key(3, 0))))
    assert violations(history, queues) == []


def _cut_tail(queues: Kept) -> None:
    queues[1].pop()


def _cut_everything(queues: Kept) -> None:
    queues.clear()


def _hole(queues: Kept) -> None:
    del queues[0][2]


def _flip(queues: Kept) -> None:
    before = queues[0][1]
    queues[0][1] = Served(before.queue_offset, before.body[:-1] + b"!")


def _swap(queues: Kept) -> None:
    one, other = queues[0][0], queues[0][2]
    queues[0][0], queues[0][2] = Served(0, other.body), Served(2, one.body)


def _double(queues: Kept) -> None:
    queues[0].append(Served(len(queues[0]), queues[0][0].body))


def _invent(queues: Kept) -> None:
    queues[0].append(Served(len(queues[0]), body_of(Key(9, 9))))


def _stray(queues: Kept) -> None:
    queues[0].append(Served(len(queues[0]), queues[1][0].body))


def _repeat_offset(queues: Kept) -> None:
    queues[0].append(queues[0][-1])


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (_cut_tail, "lost"),
        (_cut_everything, "lost"),
        (_hole, "goes from offset"),
        (_flip, "nobody sent"),
        (_swap, "replaced"),
        (_swap, "comes after sequence"),
        (_double, "is there 2 times"),
        (_invent, "never sent"),
        (_stray, "was sent to queue 1"),
        (_repeat_offset, "goes from offset"),
    ],
)
def test_a_broken_queue_is_found(break_it: Callable[[Kept], None], says: str) -> None:
    history, queues = _sound()
    break_it(queues)
    assert any(says in sentence for sentence in violations(history, queues))


def test_an_unacknowledged_message_that_vanishes_later_is_found() -> None:
    history, queues = _sound()
    history.attempt(Key(3, 0), 0)
    earlier = {0: [*queues[0], Served(len(queues[0]), body_of(Key(3, 0)))]}
    assert violations(history, queues, earlier) == [
        f"queue 0 offset {len(queues[0])} was served before and is now gone"
    ]


def test_one_offset_acknowledged_twice_is_found() -> None:
    history, queues = _sound()
    history.attempt(Key(3, 0), 0)
    history.acknowledge(Key(3, 0), 0)
    assert any("acknowledged to both" in sentence for sentence in violations(history, queues))


@pytest.mark.parametrize("size_bytes", [1, 100, 128, 5000])
def test_a_body_names_its_key(size_bytes: int) -> None:
    key = Key(7, 1234)
    body = body_of(key, size_bytes)
    assert key_of(body) == key
    assert len(body) >= size_bytes
    assert key_of(body[:-1] + bytes([body[-1] ^ 1])) is None
    assert key_of(b"hello") is None
