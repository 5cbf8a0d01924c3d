"""A close keeps its timeout, however long the handlers take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client import lifecycle
from metaq.client.lifecycle import LEAVE_TIMEOUT_MIN_S, LEAVE_TIMEOUT_S, CloseDeadline


@given(st.floats(0, 1000))
def test_handlers_leave_time_for_the_last_commit(timeout: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        now = 100.0
        patch.setattr(lifecycle.time, "monotonic", lambda: now)
        deadline = CloseDeadline(timeout)
        for_handlers = deadline.for_handlers()
        assert for_handlers >= timeout * 0.7 or for_handlers >= timeout - LEAVE_TIMEOUT_S
        now += for_handlers  # The handlers used all of it.
        assert deadline.for_handlers() == pytest.approx(0)
        assert for_handlers + deadline.for_leaving() <= timeout + LEAVE_TIMEOUT_MIN_S + 1e-6
        assert deadline.for_leaving() >= min(timeout / 4, LEAVE_TIMEOUT_S) - 1e-6


def test_no_time_is_enough_to_commit() -> None:
    assert CloseDeadline(0).for_handlers() == 0
    assert CloseDeadline(-5).for_leaving() == LEAVE_TIMEOUT_MIN_S
