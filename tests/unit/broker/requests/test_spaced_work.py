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
