"""A handler that could not be called is refused when it is declared, in both faces of the client."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import metaq
from metaq.errors import UsageError

NOBODY = "127.0.0.1:1"


def nothing() -> None: ...
def one(message: object) -> None: ...
def two(message: object, other: object) -> None: ...
def with_default(message: object, other: object = None) -> None: ...
def any_number(*messages: object) -> None: ...
def by_name(*, message: object) -> None: ...
def needs_name(message: object, *, database: object) -> None: ...
def generator(message: object) -> Iterator[None]:
    yield


async def coroutine(message: object) -> None: ...
async def coroutine_of_two(message: object, other: object) -> None: ...
async def async_generator(message: object) -> AsyncIterator[None]:
    yield


class Handler:
    def method(self, message: object) -> None: ...
    def method_of_two(self, message: object, other: object) -> None: ...
    def __call__(self, message: object) -> None: ...


class AsyncHandler:
    async def __call__(self, message: object) -> None: ...


RIGHT: list[Callable[..., Any]] = [
    *(one, with_default, any_number, Handler().method, Handler(), print),
    *(functools.partial(two, other=1), functools.partial(needs_name, database=1), lambda message: None),
]
ASYNC: list[Callable[..., Any]] = [coroutine, AsyncHandler(), functools.partial(coroutine_of_two, other=1)]
WRONG: list[tuple[Callable[..., Any], str]] = [
    (nothing, r"the handler nothing\(\).* cannot be called with one argument; a handler has one parameter"),
    (two, "the handler two.* cannot be called with one argument"),
    (by_name, "the handler by_name.*one argument"),
    (needs_name, "others need a default"),
    (Handler().method_of_two, "Handler.method_of_two"),
    (functools.partial(one, 1), "one argument"),
    (coroutine_of_two, "coroutine"),
    (generator, "is a generator: a call of it runs nothing"),
    (async_generator, "is a generator"),
]


@pytest.mark.parametrize("handler", RIGHT)
@pytest.mark.parametrize("batch", [None, 5])
def test_what_can_be_called_is_accepted(handler: Callable[..., Any], batch: int | None) -> None:
    for client in (metaq.Client(NOBODY), metaq.aio.Client(NOBODY)):
        declared: Any = client.consumer("t", group="g", batch=batch)(handler)
        assert declared.handler is handler


@pytest.mark.parametrize("handler", ASYNC)
def test_a_coroutine_function_is_for_asyncio(handler: Callable[..., Any]) -> None:
    metaq.aio.Client(NOBODY).consumer("t", group="g")(handler)
    with pytest.raises(UsageError, match=r"is a coroutine function, but metaq\.Client calls plain functions"):
        metaq.Client(NOBODY).consumer("t", group="g")(handler)


@pytest.mark.parametrize(("handler", "why"), WRONG)
def test_what_cannot_be_called_is_refused(handler: Callable[..., Any], why: str) -> None:
    for client in (metaq.Client(NOBODY), metaq.aio.Client(NOBODY)):
        with pytest.raises(UsageError, match=why):
            client.consumer("t", group="g")(handler)
        client.consumer("t", group="g")(one)  # The name of the group is still free.


def test_the_error_says_what_a_handler_of_batches_gets() -> None:
    with pytest.raises(UsageError, match="one parameter, the list of messages"):
        metaq.Client(NOBODY).consumer("t", group="g", batch=3)(nothing)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a handler is a function, not int"):
        metaq.Client(NOBODY).consumer("t", group="g")(7)  # type: ignore[arg-type]
