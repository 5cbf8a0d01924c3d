"""The verdict of a trial finds what a broken group would do: lost, replaced, reordered and vanished messages,
two masters in an epoch, offsets that go back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.replication.commits import LAG_S, Commits
from tests.faults.replication.load import GroupReaders, GroupSenders
from tests.faults.replication.trial import judge
from tests.support.checker import Key, Served, body_of

Kept = dict[int, list[Served]]
Masters = dict[int, set[int]]


def _sound() -> tuple[GroupSenders, GroupReaders, Kept, Masters]:
    """Sender 0 waits for each answer, sender 1 does not; message 3 of sender 0 was stored twice."""
    senders = GroupSenders([], lambda: "", "topic", 1, count=0, seed=0)
    readers = GroupReaders([], "topic", 1)
    queue: list[Served] = []
    for sequence in range(6):
        for sender in (0, 1):
            key = Key(sender, sequence)
            copies = 2 if key == Key(0, 3) else 1
            for _ in range(copies):
                senders.history.attempt(key, 0)
                queue.append(Served(len(queue), body_of(key)))
            senders.history.acknowledge(key, len(queue) - 1)
    readers.seen[0] = {served.queue_offset: served.body for served in queue[:8]}
    return senders, readers, {0: queue}, {1: {1}, 2: {3}}


def _judge(change: Callable[[Kept, Masters], None]) -> tuple[dict[str, object], list[str]]:
    senders, readers, queues, masters = _sound()
    change(queues, masters)
    counts, found = judge("seeded", senders, queues, readers, faults=1, masters=masters)
    return vars(counts), found


def test_a_sound_group_passes() -> None:
    counts, found = _judge(lambda queues, masters: None)
    assert found == []
    assert (counts["acknowledged"], counts["lost"], counts["duplicated"], counts["out_of_order"]) == (
        12,
        0,
        1,
        0,
    )
    assert (counts["masters_per_epoch"], counts["epochs"]) == (1, 2)


def _lose_the_tail(queues: Kept, _: Masters) -> None:
    queues[0].pop()


def _lose_and_renumber(queues: Kept, _: Masters) -> None:
    del queues[0][9]
    queues[0][:] = [Served(at, served.body) for at, served in enumerate(queues[0])]


def _vanish(queues: Kept, _: Masters) -> None:
    """A reader saw it, nobody acknowledged it, and a failover put another message in its place."""
    queues[0][6] = Served(6, body_of(Key(1, 99)))


def _swap(queues: Kept, _: Masters) -> None:
    first, second = queues[0][0], queues[0][2]
    queues[0][0], queues[0][2] = Served(0, second.body), Served(2, first.body)


def _two_masters(_: Kept, masters: Masters) -> None:
    masters[2].add(1)


@pytest.mark.parametrize(
    ("change", "count", "sentence"),
    [
        (_lose_the_tail, "lost", "lost:"),
        (_lose_and_renumber, "lost", "replaced:"),
        (_vanish, "lost", "was served before and is now another message"),
        (_swap, "out_of_order", "comes after sequence"),
        (_two_masters, "masters_per_epoch", "epoch 2 had masters [1, 3]"),
    ],
)
def test_the_verdict_names_it(change: Callable[[Kept, Masters], None], count: str, sentence: str) -> None:
    sound, _ = _judge(lambda queues, masters: None)
    counts, found = _judge(change)
    assert any(sentence in one for one in found), found
    assert int(str(counts[count])) > int(str(sound[count]))


def test_an_offset_that_goes_back_is_found() -> None:
    commits = Commits([], lambda: "", "topic")
    commits.note(10.0, 5)
    commits.note(20.0, 9)
    assert commits.floor(12.0) == 0, "too early to be everywhere"
    assert commits.floor(10.0 + LAG_S) == 5
    assert commits.floor(30.0) == 9
    commits.note_fault(21.0)
    assert commits.floor(30.0) == 5, "a master that died may have taken the newest with it"
