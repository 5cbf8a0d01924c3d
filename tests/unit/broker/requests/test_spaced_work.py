"""Long work gives Python's lock away now and then."""

from __future__ import annotations

import pytest

from metaq.broker.requests import spaced_work


def test_the_event_loop_runs_between_items(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[None] = []
    monkeypatch.setattr(spaced_work, "let_event_loop_run", lambda: turns.append(None))
    assert list(spaced_work.letting_others_run(range(100))) == list(range(100))
    assert len(turns) == 4
    assert list(spaced_work.letting_others_run([])) == []


def test_long_lists_are_sorted_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    since_turn = longest = 0

    def turn() -> None:
        nonlocal since_turn
        since_turn = 0

    def key(item: tuple[int, str]) -> int:
        nonlocal since_turn, longest
        since_turn += 1
        longest = max(longest, since_turn)
        return item[0]

    monkeypatch.setattr(spaced_work, "let_event_loop_run", turn)
    items = [(number * 7_919 % 5_000, str(number)) for number in range(20_000)]
    assert spaced_work.sorted_in_steps(items, key) == sorted(items, key=lambda item: item[0])
    assert longest <= spaced_work.SORTED_AT_ONCE + spaced_work.ITEMS_AT_ONCE
    assert spaced_work.sorted_in_steps([], key) == []
