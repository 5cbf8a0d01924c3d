"""A close keeps its timeout, however long the handlers take."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client import lifecycle
from metaq.client.lifecycle import (
    GOODBYE_TIMEOUT_MIN_S,
    GOODBYE_TIMEOUT_S,
    LEAVE_TIMEOUT_MIN_S,
    LEAVE_TIMEOUT_S,
    CloseDeadline,
    SharedClose,
    closing_within,
    goodbye_timeout_s,
)


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


def test_a_goodbye_has_the_time_that_the_close_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(lifecycle.time, "monotonic", lambda: now)
    assert goodbye_timeout_s() == GOODBYE_TIMEOUT_S
    with closing_within(3):
        assert goodbye_timeout_s() == GOODBYE_TIMEOUT_S
        with closing_within(60):
            now = 102.5
            assert goodbye_timeout_s() == pytest.approx(0.5)
        now = 110.0
        assert goodbye_timeout_s() == GOODBYE_TIMEOUT_MIN_S
    assert goodbye_timeout_s() == GOODBYE_TIMEOUT_S


def test_a_close_that_is_interrupted_is_taken_over_or_repeated() -> None:
    async def scenario() -> None:
        closing, attempts = SharedClose(), 0
        may_end = asyncio.Event()

        async def close() -> bool:
            nonlocal attempts
            attempts += 1
            await may_end.wait()
            return True

        first = asyncio.create_task(closing.run(close, 60))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(closing.run(close, 60))
        await asyncio.sleep(0)
        assert attempts == 1
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        may_end.set()
        assert await waiting and attempts == 2
        assert await closing.run(close, 60) and attempts == 2

    asyncio.run(scenario())
