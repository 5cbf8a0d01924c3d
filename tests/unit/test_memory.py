"""When freed memory goes back to the system."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from metaq.memory import TRIM_BYTES, MemoryTrim, allocator_trim, own_memory_bytes
from tests.support.waiting import run


class Process:
    """A process whose memory the test sets; a trim gives back what is free."""

    def __init__(self) -> None:
        self.own, self.free, self.in_use, self.trims = 100, 0, 0, 0

    def figures(self) -> SimpleNamespace:
        return SimpleNamespace(memory_bytes=self.in_use)

    def trim(self) -> None:
        self.trims += 1
        self.own, self.free = self.own - self.free, 0

    def watched(self, interval_s: float = 0.001) -> MemoryTrim:
        listener: Any = self
        return MemoryTrim(listener, interval_s, own_bytes=lambda: self.own, trim=self.trim)


def test_it_trims_once_after_a_peak_and_not_while_clients_use_the_memory() -> None:
    async def scenario() -> None:
        process = Process()
        watched = process.watched()
        assert not await watched.look()
        process.own, process.in_use = 100 + 5 * TRIM_BYTES, 5 * TRIM_BYTES
        assert not await watched.look()
        process.in_use, process.free = 0, 5 * TRIM_BYTES
        assert await watched.look()
        assert process.own == 100
        assert not await watched.look()

    run(scenario)


def test_memory_that_cannot_be_given_back_is_tried_only_once() -> None:
    async def scenario() -> None:
        process = Process()
        watched = process.watched()
        process.own += 2 * TRIM_BYTES
        assert [await watched.look() for _ in range(3)] == [True, False, False]
        process.own -= 2 * TRIM_BYTES
        assert not await watched.look()
        process.own += TRIM_BYTES
        assert await watched.look(), "it fell meanwhile, so this is a new peak"

    run(scenario)


def test_it_looks_by_itself_until_it_is_stopped() -> None:
    async def scenario() -> None:
        process = Process()
        off, on = process.watched(0), process.watched()
        off.start()
        on.start()
        on.start()
        process.own, process.free = 100 + TRIM_BYTES, TRIM_BYTES
        while not process.trims:
            await asyncio.sleep(0)
        await on.stop()
        await on.stop()
        await off.stop()
        assert process.trims == 1

    run(scenario)


def test_the_systems_own_functions_work() -> None:
    trim = allocator_trim()
    assert trim is None or trim() in (0, 1)
    assert own_memory_bytes() > 1 << 20
