"""The plain and the asyncio client behind one plain interface, so that a contract is written once."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import metaq
from metaq import aio
from metaq.client.producer.producer import Producer
from metaq.client.producer.transactions import Transaction

FACES = ("sync", "aio")
CALL_TIMEOUT_S = 120.0


class Loop:
    """An event loop in a thread, as a user of the asyncio client has one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Awaitable[Any]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await work

        return asyncio.run_coroutine_threadsafe(bounded(), self.loop).result()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Driven:
    """An object of the asyncio client, used from plain code: each call runs to its end."""

    def __init__(self, loop: Loop, target: Any) -> None:
        self._loop = loop
        self._target = target

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._target, name)
        if not callable(member):
            return member

        def call(*arguments: Any, **options: Any) -> Any:
            async def run() -> Any:
                outcome = member(*arguments, **options)
                is_done = asyncio.isfuture(outcome) or not inspect.isawaitable(outcome)
                return outcome if is_done else await outcome

            return self._wrap(self._loop.run(run()))

        return call

    def __enter__(self) -> Driven:
        self._loop.run(self._target.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._loop.run(self._target.__aexit__(*error))

    def _wrap(self, outcome: Any) -> Any:
        if asyncio.isfuture(outcome):
            return _plain(self._loop, outcome)
        return Driven(self._loop, outcome) if isinstance(outcome, (Producer, Transaction)) else outcome


def _plain(loop: Loop, future: asyncio.Future[Any]) -> concurrent.futures.Future[Any]:
    async def wait() -> Any:
        return await future

    return asyncio.run_coroutine_threadsafe(wait(), loop.loop)


@contextmanager
def opened(face: str) -> Iterator[Callable[..., Any]]:
    """Yields a function that makes clients of that kind; it takes the arguments of `metaq.Client`."""
    if face == "sync":
        yield metaq.Client
        return
    loop = Loop()

    def make(*arguments: Any, **options: Any) -> Any:
        async def build() -> Any:
            return aio.Client(*arguments, **options)

        return Driven(loop, loop.run(build()))

    try:
        yield make
    finally:
        loop.close()
