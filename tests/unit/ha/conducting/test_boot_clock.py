"""The clock of the master switch."""

from __future__ import annotations

import asyncio

import pytest

from metaq.ha.conducting.boot_clock import BootClock


def test_a_wait_ends_with_the_event_or_with_the_time() -> None:
    async def scenario() -> None:
        clock, event = BootClock(), asyncio.Event()
        await clock.wait(event, clock.now() - 1)
        await clock.wait(event, clock.now() + 0.001)
        event.set()
        await clock.wait(event, clock.now() + 3600)

    asyncio.run(scenario())


@pytest.mark.parametrize("event_first", [True, False])
def test_a_cancel_that_comes_together_with_the_event_is_not_lost(event_first: bool) -> None:
    async def scenario() -> None:
        clock, event = BootClock(), asyncio.Event()

        async def decide_regularly() -> None:
            while True:
                event.clear()
                await clock.wait(event, clock.now() + 3600)

        task = asyncio.create_task(decide_regularly())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        steps = [event.set, task.cancel]
        for step in steps if event_first else reversed(steps):
            step()
        done, _ = await asyncio.wait([task], timeout=60)
        task.cancel()
        assert done, "the task went on after its cancel"
        assert task.cancelled()

    asyncio.run(scenario())
