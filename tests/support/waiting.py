"""Waiting for a condition, never for ever, and running the coroutine of a test."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

_LOOK_INTERVAL_S = 0.02
_ASYNC_LOOK_INTERVAL_S = 0.005


def wait_until(
    condition: Callable[[], object],
    timeout_s: float = 90.0,
    what: str = "true",
    *,
    interval_s: float = _LOOK_INTERVAL_S,
) -> None:
    """Waits until the condition holds. Raises TimeoutError with `what` if it does not in time.

    Choose a longer interval if a look takes more than a millisecond of CPU.
    """
    eventually(condition, bool, timeout_s, what, interval_s=interval_s)


def eventually(
    ask: Callable[[], T],
    good: Callable[[T], bool],
    timeout_s: float,
    what: str,
    *,
    interval_s: float = _LOOK_INTERVAL_S,
) -> T:
    """Asks again until the answer is good, and returns that answer."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = ask()
        if good(answer):
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"not {what} within {timeout_s} s; last seen: {answer!r}")
        time.sleep(interval_s)


def moment_between() -> int:
    """Returns a moment in milliseconds: later than every event so far, and earlier than those to come."""
    moment_ms = time.time_ns() // 1_000_000 + 1
    wait_until(lambda: time.time_ns() // 1_000_000 > moment_ms)
    return moment_ms


async def until(condition: Callable[[], T | Awaitable[T]], timeout_s: float = 60.0, what: str = "true") -> T:
    """Awaits the first answer that is not false; the condition may be a coroutine function."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"not {what} within {timeout_s} s; last seen: {answer!r}")
        await asyncio.sleep(_ASYNC_LOOK_INTERVAL_S)


def run(scenario: Callable[[], Awaitable[None]], timeout_s: float = 300.0) -> None:
    """Runs a test that is a coroutine function."""

    async def bounded() -> None:
        async with asyncio.timeout(timeout_s):
            await scenario()

    asyncio.run(bounded())
