"""The contract of a register, checked on the one in memory and the one in etcd."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from metaq.ha.register import Outcome, Register, RegisterUnavailable, Stored, open_register
from metaq.ha.registers.memory_register import MemoryRegister, MemoryStore
from tests.support.waiting import run, until

_numbers = itertools.count()

Opened = Callable[[], contextlib.AbstractAsyncContextManager[Register]]
Contract = Callable[[Opened, str], Awaitable[None]]


@pytest.fixture(params=["memory", "etcd"])
def opened(request: pytest.FixtureRequest) -> Opened:
    """Opens a client of one register; each call is another node."""
    if request.param == "memory":
        store = MemoryStore()
        make: Callable[[], Register] = lambda: MemoryRegister(store)  # noqa: E731
    else:
        address = request.getfixturevalue("etcd").register + "/?timeout_ms=3000"
        make = lambda: open_register(address)  # noqa: E731

    @contextlib.asynccontextmanager
    async def open_one() -> AsyncIterator[Register]:
        register = make()
        try:
            yield register
        finally:
            await register.close()

    return open_one


@pytest.fixture
def root() -> str:
    """The start of all keys of one test."""
    return f"metaq/contract-{next(_numbers)}/"


def test_a_key_is_created_once_and_then_changed_by_its_revision(opened: Opened, root: str) -> None:
    async def scenario() -> None:
        key = root + "group"
        async with opened() as one, opened() as other:
            assert await one.get(key) is None
            assert await one.compare_and_swap(key, 1, b"never") is Outcome.CONFLICT
            assert await one.compare_and_swap(key, 0, b"a") is Outcome.DONE
            assert await other.compare_and_swap(key, 0, b"b") is Outcome.CONFLICT
            first = await other.get(key)
            assert first is not None and first.value == b"a" and first.revision > 0
            assert await other.compare_and_swap(key, first.revision, b"b") is Outcome.DONE
            second = await one.get(key)
            assert second is not None and second.value == b"b" and second.revision > first.revision
            assert await one.compare_and_swap(key, first.revision, b"c") is Outcome.CONFLICT
            assert await one.get(key) == second

    run(scenario)


@pytest.mark.parametrize("value", [b"", b"\x00\xff", '{"größe": 1}'.encode(), bytes(range(256)) * 256])
def test_values_are_bytes(opened: Opened, root: str, value: bytes) -> None:
    async def scenario() -> None:
        async with opened() as register:
            assert await register.compare_and_swap(root + "ключ/ÿ", 0, value) is Outcome.DONE
            found = await register.get(root + "ключ/ÿ")
            assert found is not None and found.value == value
            assert await register.list(root) == {root + "ключ/ÿ": found}

    run(scenario)


def test_a_list_has_the_keys_of_its_prefix_in_order(opened: Opened, root: str) -> None:
    async def scenario() -> None:
        async with opened() as register:
            assert await register.list(root) == {}
            for key in ("b/beat/2", "b/beat/1", "b/beat/10", "b/group", "b", "bb/group", "c"):
                assert await register.compare_and_swap(root + key, 0, key.encode()) is Outcome.DONE
            found = await register.list(root + "b/")
            wanted = ["b/beat/1", "b/beat/10", "b/beat/2", "b/group"]
            assert list(found) == [root + key for key in wanted]
            assert [stored.value.decode() for stored in found.values()] == wanted
            assert found[root + "b/group"] == await register.get(root + "b/group")

    run(scenario)


def test_of_many_swaps_at_once_one_is_done(opened: Opened, root: str) -> None:
    async def scenario() -> None:
        key = root + "group"
        async with contextlib.AsyncExitStack() as stack:
            registers = [await stack.enter_async_context(opened()) for _ in range(4)]
            for _ in range(5):
                current = await registers[0].get(key) or Stored(b"", 0)
                outcomes = await asyncio.gather(
                    *(
                        register.compare_and_swap(key, current.revision, str(number).encode())
                        for number, register in enumerate(registers * 3)
                    )
                )
                assert outcomes.count(Outcome.DONE) == 1
                assert outcomes.count(Outcome.CONFLICT) == len(outcomes) - 1
                newest = await registers[1].get(key)
                assert newest is not None
                assert newest.value == str(outcomes.index(Outcome.DONE)).encode()

    run(scenario)


def test_a_watch_hints_at_changes_below_its_prefix(opened: Opened, root: str) -> None:
    async def scenario() -> None:
        hints = 0
        async with opened() as one, opened() as other:

            async def count() -> None:
                nonlocal hints
                async for _ in one.watch(root + "b/"):
                    hints += 1

            watching = asyncio.create_task(count())
            await until(lambda: hints == 1, what="the first hint")
            assert await other.compare_and_swap(root + "c", 0, b"") is Outcome.DONE
            assert await other.compare_and_swap(root + "b/group", 0, b"") is Outcome.DONE
            await until(lambda: hints == 2, what="a hint at a new key")
            stored = await other.get(root + "b/group")
            assert stored is not None
            assert await other.compare_and_swap(root + "b/group", stored.revision, b"x") is Outcome.DONE
            await until(lambda: hints == 3, what="a hint at a changed key")
            await one.close()
            await watching

    run(scenario)


def test_the_cluster_has_one_id_for_everybody(opened: Opened, root: str) -> None:
    async def scenario() -> None:
        async with opened() as one, opened() as other:
            assert await one.cluster_id() == await other.cluster_id() != ""

    run(scenario)


def test_a_closed_register_refuses_every_call(opened: Opened, root: str) -> None:
    async def scenario() -> None:
        async with opened() as register:
            await register.get(root)
            await register.close()
            await register.close()
            for call in (
                register.get(root),
                register.list(root),
                register.cluster_id(),
                register.compare_and_swap(root, 0, b""),
            ):
                with pytest.raises(RegisterUnavailable, match="closed"):
                    await call
            assert [hint async for hint in register.watch(root)] == []

    run(scenario)
