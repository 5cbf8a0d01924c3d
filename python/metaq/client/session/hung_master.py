"""Gives up an attempt at a master that hangs, as soon as another node has become the master.

A process that hangs keeps its connections, so an attempt would wait for all of its time. Two signs together
end it: the route names another master, and the former one answers nothing any more. A former master that
lives answers what it got, and for that the attempt waits as before. What is sent again may be stored twice,
as after an attempt that ran out of time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from metaq.errors import MetaqError
from metaq.protocol.errors import Unreachable
from metaq.protocol.reply import Reply

PATIENCE_S: Final = 1.0
"""An attempt that is answered sooner costs nothing more."""
LOOK_INTERVAL_S: Final = 0.25
"""How often the route is asked for after that."""
PROBE_TIMEOUT_S: Final = 1.0
"""A master that does not answer a question about a queue for this long hangs."""


async def unless_replaced(
    attempt: Awaitable[Reply],
    probe: Callable[[float], Awaitable[Reply]],
    has_moved: Callable[[], Awaitable[bool]],
) -> Reply:
    """Returns the answer to an attempt. `probe` asks the same node something that it can always answer.

    Raises the errors of the attempt, and Unreachable if the node hangs and was replaced.
    """
    request = asyncio.ensure_future(attempt)
    try:
        await asyncio.wait((request,), timeout=PATIENCE_S)
        if not request.done():
            await _wait_longer(request, probe, has_moved)
        return await request
    finally:
        request.cancel()


async def _wait_longer(
    request: asyncio.Future[Reply],
    probe: Callable[[float], Awaitable[Reply]],
    has_moved: Callable[[], Awaitable[bool]],
) -> None:
    """Returns when the attempt has ended. Raises Unreachable if the node hangs and was replaced."""
    hangs = asyncio.Event()
    probing = asyncio.create_task(_probe(probe, hangs))
    try:
        while not request.done():
            await asyncio.wait((request,), timeout=LOOK_INTERVAL_S)
            if hangs.is_set() and not request.done() and await has_moved() and hangs.is_set():
                raise Unreachable("the master hangs, and another node has taken its place")
    finally:
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)


async def _probe(probe: Callable[[float], Awaitable[Reply]], hangs: asyncio.Event) -> None:
    """Keeps `hangs` up to date."""
    while True:
        try:
            await probe(PROBE_TIMEOUT_S)
        except MetaqError:
            hangs.set()
        else:
            # Whatever it answers, it runs.
            hangs.clear()
        await asyncio.sleep(LOOK_INTERVAL_S)
