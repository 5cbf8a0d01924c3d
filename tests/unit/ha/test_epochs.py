"""Two histories show where two logs part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.ha.epochs import History, HistoryInvalid, common_end


def history(*pairs: tuple[int, int]) -> History:
    return History.of(pairs)


@pytest.mark.parametrize(
    "pairs", [[(0, 0)], [(1, -1)], [(2, 0), (1, 5)], [(1, 0), (1, 5)], [(1, 5), (2, 5)], [(1, 5), (2, 4)]]
)
def test_a_history_in_disorder_is_refused(pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(HistoryInvalid):
        History.of(pairs)


def test_epochs_without_writes_replace_each_other() -> None:
    five = History()
    for epoch in range(1, 6):
        five = five.begin(epoch, 0)
    assert five.pairs() == [(5, 0)]
    assert five.begin(6, 10).begin(7, 10).pairs() == [(5, 0), (7, 10)]


def test_an_older_epoch_cannot_begin() -> None:
    with pytest.raises(HistoryInvalid):
        history((3, 0)).begin(3, 10)


def test_truncation_drops_epochs_without_a_byte() -> None:
    whole = history((1, 0), (2, 10), (4, 20))
    assert whole.truncate(21) == whole
    assert whole.truncate(20).pairs() == [(1, 0), (2, 10)]
    assert whole.truncate(5).pairs() == [(1, 0)]
    assert whole.truncate(0).pairs() == []
    assert (whole.log_epoch(20), whole.log_epoch(21), whole.log_epoch(0)) == (2, 4, 0)


@pytest.mark.parametrize(
    ("mine", "my_end", "theirs", "their_end", "expected"),
    [
        ([], 0, [], 0, 0),
        ([], 0, [(1, 0)], 50, 0),
        ([(1, 0)], 30, [(1, 0)], 50, 30),
        ([(1, 0)], 50, [(1, 0)], 30, 30),
        # An old master has a tail of epoch 1 that the new one never got.
        ([(1, 0)], 50, [(1, 0), (2, 40)], 60, 40),
        # KIP-279: the tail is of an epoch that the other never saw.
        ([(1, 0), (2, 40)], 60, [(1, 0), (3, 45)], 70, 40),
        ([(1, 0), (3, 50)], 60, [(1, 0), (2, 40), (4, 55)], 70, 40),
        # The same epoch with another start is not the same.
        ([(1, 0), (2, 40)], 60, [(1, 0), (2, 45)], 70, 40),
        ([(2, 0)], 60, [(1, 0)], 70, 0),
        # Epochs beyond the end have no byte here and say nothing.
        ([(1, 0), (2, 40)], 40, [(1, 0), (3, 40)], 60, 40),
        ([(1, 0), (2, 100), (3, 200)], 70, [(1, 0), (2, 100), (3, 200)], 300, 70),
    ],
)
def test_the_common_end(
    mine: list[tuple[int, int]], my_end: int, theirs: list[tuple[int, int]], their_end: int, expected: int
) -> None:
    assert common_end(History.of(mine), my_end, History.of(theirs), their_end) == expected
    assert common_end(History.of(theirs), their_end, History.of(mine), my_end) == expected


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 6)), max_size=12))
def test_the_common_end_is_where_the_bytes_part(steps: list[tuple[int, int, int]]) -> None:
    """Masters take turns: each begins an epoch, a follower truncates and copies a part of its log."""
    logs: list[list[int]] = [[], [], []]
    histories = [History(), History(), History()]
    for epoch, (master, follower, count) in enumerate(steps, 1):
        histories[master] = histories[master].truncate(len(logs[master])).begin(epoch, len(logs[master]))
        logs[master] += [epoch] * count
        if follower != master:
            point = common_end(histories[follower], len(logs[follower]), histories[master], len(logs[master]))
            assert logs[follower][:point] == logs[master][:point]
            copied = max(point, len(logs[master]) - count // 2)
            logs[follower] = logs[master][:copied]
            histories[follower] = histories[follower].continue_with(histories[master], point)
            History.of(histories[follower].pairs())
    for one in range(3):
        for other in range(3):
            point = common_end(histories[one], len(logs[one]), histories[other], len(logs[other]))
            # Bytes of different epochs differ, so this is the longest common prefix.
            same = 0
            while same < min(len(logs[one]), len(logs[other])) and logs[one][same] == logs[other][same]:
                same += 1
            assert point == same
