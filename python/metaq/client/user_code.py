"""Calling what the user gave us."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

_T = TypeVar("_T")


async def call_user(function: Callable[..., _T | Awaitable[_T]], *arguments: object) -> _T:
    """A coroutine function runs here, in the caller's task; any other in a thread, since it may block."""
    if asyncio.iscoroutinefunction(function):
        return await cast("Awaitable[_T]", function(*arguments))
    outcome = await asyncio.to_thread(function, *arguments)
    return await outcome if inspect.isawaitable(outcome) else outcome
