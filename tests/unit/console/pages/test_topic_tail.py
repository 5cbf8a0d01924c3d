"""The number of live views is bounded."""

from __future__ import annotations

from contextlib import ExitStack

from metaq.console.pages.topic_tail import INTERVAL_S, PER_SECOND_MAX, TAILS_MAX, OpenTails


def test_there_is_a_place_for_a_bounded_number_of_tails() -> None:
    tails = OpenTails()
    with ExitStack() as stack:
        assert all(stack.enter_context(tails.one_more()) for _ in range(TAILS_MAX))
        with tails.one_more() as is_allowed:
            assert not is_allowed
        assert tails.count == TAILS_MAX
    assert tails.count == 0
    with tails.one_more() as is_allowed:
        assert is_allowed


def test_a_question_returns_a_whole_number_of_messages() -> None:
    assert PER_SECOND_MAX * INTERVAL_S == 25
