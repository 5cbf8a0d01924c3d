"""Checks a handler when it is declared, because a wrong one would fail on every message."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from metaq.errors import UsageError


def bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function of a partial."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether a call returns a coroutine, also through a partial or the `__call__` of an object."""
    function = bare(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def name_of(function: Callable[..., Any]) -> str:
    """Returns how an error names a function."""
    function = bare(function)
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def check_handler(handler: Callable[..., Any], batch: int | None) -> None:
    """Raises UsageError unless the handler can be called with one message, or with one list if it takes
    batches."""
    if not callable(handler):
        raise UsageError(f"a handler is a function, not {type(handler).__name__}")
    name = name_of(handler)
    argument = "the message" if batch is None else "the list of messages"
    function = bare(handler)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"the handler {name} is a generator: a call of it runs nothing",
            hint="write it without yield",
        )
    try:
        signature = inspect.signature(handler)
    except (ValueError, TypeError):  # Some functions written in C do not tell.
        return
    try:
        signature.bind(None)
    except TypeError:
        raise UsageError(
            f"the handler {name}{signature} cannot be called with one argument",
            hint=f"a handler has one parameter, {argument}; others need a default",
        ) from None
