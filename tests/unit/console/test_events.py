"""The stream that keeps pages up to date."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from metaq.console.events import with_signs_of_life
from metaq.console.live.live import Tick
from tests.support.waiting import run


def test_a_page_hears_something_at_once_and_during_long_silences() -> None:
    polled = asyncio.Event()

    async def ticks() -> AsyncIterator[Tick]:
        await polled.wait()
        yield Tick(1, 1_000, ok=True)

    async def scenario() -> None:
        heard: list[bytes] = []
        async for event in with_signs_of_life(ticks(), silence_s_max=0.01):
            heard.append(event.split(b"\n")[0])
            if len(heard) == 3:
                polled.set()
        assert heard[:3] == [b"event: alive"] * 3
        assert heard[-1] == b"event: tick"

    run(scenario)


def test_a_page_that_goes_away_ends_the_wait_for_ticks() -> None:
    ended = []

    async def ticks() -> AsyncIterator[Tick]:
        try:
            await asyncio.Event().wait()
            yield Tick(1, 1_000, ok=True)
        finally:
            ended.append(True)

    async def scenario() -> None:
        stream = with_signs_of_life(ticks(), silence_s_max=0.01)
        await anext(stream)
        await anext(stream)
        await stream.aclose()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    run(scenario)
    assert ended
