"""Calls functions that the user passed to us."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

_T = TypeVar("_T")


async def call_user(function: Callable[..., _T | Awaitable[_T]], *arguments: object) -> _T:
    """Runs a coroutine function in the current task, and a plain function in a thread, as it may block."""
    if asyncio.iscoroutinefunction(function):
        return await cast("Awaitable[_T]", function(*arguments))
    outcome = await asyncio.to_thread(function, *arguments)
    return await outcome if inspect.isawaitable(outcome) else outcome
