"""When freed memory goes back to the system."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from metaq.memory import TRIM_BYTES, MemoryTrim, allocator_trim, own_memory_bytes
from metaq.settings import ServerSettings
from tests.support.maven import REPOSITORY_ROOT
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


def test_memory_that_cannot_be_given_back_is_tried_more_rarely() -> None:
    async def scenario() -> None:
        process = Process()
        watched = process.watched()
        process.own += 2 * TRIM_BYTES
        looks = [await watched.look() for _ in range(20)]
        assert [number for number, trimmed in enumerate(looks) if trimmed] == [0, 1, 3, 7, 11, 15, 19]
        process.own -= 2 * TRIM_BYTES
        assert not await watched.look()
        process.own += TRIM_BYTES
        assert await watched.look(), "it fell meanwhile, so this is a new peak"
        assert [await watched.look() for _ in range(2)] == [True, False], "and looked at closely"

    run(scenario)


def test_memory_that_was_in_use_at_the_last_trim_is_given_back_later() -> None:
    async def scenario() -> None:
        process = Process()
        watched = process.watched()
        # Something else than the connections, such as state of the control plane, uses most of it.
        process.own, process.free = 100 + 3 * TRIM_BYTES, TRIM_BYTES
        assert await watched.look()
        assert process.own == 100 + 2 * TRIM_BYTES
        process.free = 2 * TRIM_BYTES
        assert await watched.look()
        assert process.own == 100
        assert not await watched.look()

    run(scenario)


def test_memory_goes_back_within_a_minute_after_a_long_attack() -> None:
    async def scenario() -> None:
        process = Process()
        watched = process.watched()
        process.own, process.in_use = 100 + 5 * TRIM_BYTES, TRIM_BYTES
        for _ in range(70):
            await watched.look()
        process.in_use, process.free = 0, 5 * TRIM_BYTES
        looks = 0
        while not await watched.look():
            looks += 1
        assert looks * ServerSettings("", 0).memory_trim_interval_s < 60
        assert process.own == 100

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


PEAK = """
import ctypes, sys, threading
from metaq.memory import allocator_trim, bound_allocator, own_memory_bytes

library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]

def use(sizes):
    blocks = [library.malloc(size) for size in sizes]
    for block, size in zip(blocks, sizes):
        ctypes.memset(block, 1, size)
    for block in reversed(blocks):
        library.free(block)

if "bound" in sys.argv:
    assert bound_allocator()
before = own_memory_bytes()
# The first one is mapped for itself, and makes the allocator keep others of its size.
for sizes in ([16 << 20], [12 << 20, 12 << 20]):
    thread = threading.Thread(target=use, args=(sizes,))
    thread.start()
    thread.join()
allocator_trim()()
print(own_memory_bytes() - before)
"""


FREED = """
from metaq._core import FrameDecoder, give_back_freed_memory
from metaq.memory import own_memory_bytes
from tests.support.waiting import wait_until

give_back_freed_memory(50)
before = own_memory_bytes()
unfinished = (1 << 20).to_bytes(4) + bytes(60_000)
decoders = [FrameDecoder() for _ in range(1_000)]
for decoder in decoders:
    decoder.feed(unfinished)
assert own_memory_bytes() - before > 50 << 20
# Each of those that stay follows nine that go.
decoders[:] = decoders[9::10]
wait_until(lambda: own_memory_bytes() - before < 16 << 20, 30, "most of it is back")
"""


def test_the_data_plane_gives_pages_back_by_itself() -> None:
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, cwd=REPOSITORY_ROOT)
    assert done.returncode == 0, done.stderr


def test_no_arena_keeps_what_was_freed_after_a_peak() -> None:
    def kept(*arguments: str) -> int:
        done = subprocess.run([sys.executable, "-c", PEAK, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    if allocator_trim() is None:
        return
    assert kept("bound") < 4 << 20
    assert kept() > 16 << 20, "the allocator does so without our settings, so they are still needed"
