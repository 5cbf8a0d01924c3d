"""A register in memory, with faults that a test or a simulation injects.

It never sleeps, reads no clock and draws no random numbers: the caller decides which call fails, and how long
a request and its answer travel. So a simulation with its own scheduler can replay a run from its seed.

    store = MemoryStore()
    register = MemoryRegister(store, "node-1", fault=lambda call: Fault.LOST_ANSWER)
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from metaq.ha.register import Outcome, RegisterUnavailable, Stored

T = TypeVar("T")


class Fault(enum.Enum):
    """The fate of one call."""

    NONE = "none"
    UNAVAILABLE = "unavailable"
    """The register cannot be reached. Nothing is applied, and the caller knows it."""
    LOST_REQUEST = "lost request"
    """The request is lost on its way. Nothing is applied, and the caller does not know it."""
    LOST_ANSWER = "lost answer"
    """The request is applied, and its answer is lost."""
    LATE = "late"
    """No answer comes, and the request is applied when the test calls `MemoryStore.apply_late`."""


class Operation(enum.Enum):
    CLUSTER_ID = "cluster_id"
    GET = "get"
    COMPARE_AND_SWAP = "compare_and_swap"
    LIST = "list"


@dataclass(frozen=True, slots=True)
class Call:
    """One call, as the injected functions see it."""

    client: str
    operation: Operation
    key: str


@dataclass(frozen=True, slots=True)
class Backup:
    """The whole content of a store at one moment."""

    values: Mapping[str, Stored]
    revision: int
    cluster_id: str


class Event(Protocol):
    """`asyncio.Event`, or its twin in a simulation's scheduler."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def wait(self) -> Awaitable[Any]: ...


@dataclass
class MemoryStore:
    """The content of a register, shared by the clients of all nodes."""

    cluster_id: str = "memory"
    revision: int = 1
    values: dict[str, Stored] = field(default_factory=dict)
    late: list[Callable[[], Outcome]] = field(default_factory=list)
    """The swaps that were sent and wait to be applied, in the order in which they were sent."""
    _watchers: dict[int, tuple[str, Event]] = field(default_factory=dict)
    _watchers_made: int = 0

    def swap(self, key: str, expected_revision: int, value: bytes) -> Outcome:
        """Applies a swap now."""
        current = self.values.get(key)
        if (current.revision if current is not None else 0) != expected_revision:
            return Outcome.CONFLICT
        self.revision += 1
        self.values[key] = Stored(value, self.revision)
        self._wake(key)
        return Outcome.DONE

    def apply_late(self, count: int | None = None) -> list[Outcome]:
        """Applies the oldest late swaps, or all of them. Returns their outcomes, which no client sees."""
        count = len(self.late) if count is None else count
        due, self.late = self.late[:count], self.late[count:]
        return [swap() for swap in due]

    def backup(self) -> Backup:
        return Backup(dict(self.values), self.revision, self.cluster_id)

    def restore(self, backup: Backup, *, cluster_id: str | None = None) -> None:
        """Goes back to a backup, as an operator does who lost etcd's disks. Revisions go back as well.

        Swaps under way are lost. etcd keeps its cluster id if it is restored under the same names and token;
        otherwise pass another.
        """
        self.values, self.revision = dict(backup.values), backup.revision
        self.cluster_id = backup.cluster_id if cluster_id is None else cluster_id
        self.late.clear()
        self._wake(None)

    def add_watcher(self, prefix: str, event: Event) -> int:
        self._watchers_made += 1
        self._watchers[self._watchers_made] = (prefix, event)
        return self._watchers_made

    def remove_watcher(self, number: int) -> None:
        self._watchers.pop(number, None)

    def _wake(self, key: str | None) -> None:
        """Wakes those who watch the key; with None, everybody."""
        for prefix, event in list(self._watchers.values()):
            if key is None or key.startswith(prefix):
                event.set()


async def _at_once(call: Call) -> None:
    return None


class MemoryRegister:
    """One node's client; implements `metaq.ha.register.Register`.

    `fault` decides the fate of each call. `before` is awaited while the request travels, `after` while the
    answer does; both wait as long as the caller's scheduler wants. `event` makes what a watch waits on.
    """

    def __init__(
        self,
        store: MemoryStore,
        client: str = "",
        *,
        fault: Callable[[Call], Fault] = lambda call: Fault.NONE,
        before: Callable[[Call], Awaitable[None]] = _at_once,
        after: Callable[[Call], Awaitable[None]] = _at_once,
        event: Callable[[], Event] = asyncio.Event,
    ) -> None:
        self._store = store
        self._client = client
        self._fault = fault
        self._before = before
        self._after = after
        self._event = event
        self._watching: list[Event] = []
        self._closed = False

    async def cluster_id(self) -> str:
        return await self._read(Operation.CLUSTER_ID, "", lambda: self._store.cluster_id)

    async def get(self, key: str) -> Stored | None:
        return await self._read(Operation.GET, key, lambda: self._store.values.get(key))

    async def list(self, prefix: str) -> dict[str, Stored]:
        def found() -> dict[str, Stored]:
            return {
                key: stored for key, stored in sorted(self._store.values.items()) if key.startswith(prefix)
            }

        return await self._read(Operation.LIST, prefix, found)

    async def compare_and_swap(self, key: str, expected_revision: int, value: bytes) -> Outcome:
        call = Call(self._client, Operation.COMPARE_AND_SWAP, key)
        fault = self._begin(call)
        await self._before(call)
        if fault is Fault.LOST_REQUEST:
            return Outcome.UNKNOWN
        if fault is Fault.LATE:
            self._store.late.append(lambda: self._store.swap(key, expected_revision, value))
            return Outcome.UNKNOWN
        outcome = self._store.swap(key, expected_revision, value)
        await self._after(call)
        return Outcome.UNKNOWN if fault is Fault.LOST_ANSWER else outcome

    async def watch(self, prefix: str) -> AsyncGenerator[None, None]:
        event = self._event()
        number = self._store.add_watcher(prefix, event)
        self._watching.append(event)
        try:
            while not self._closed:
                # Before the hint: a change that comes while the caller reads gives another one.
                event.clear()
                yield
                await event.wait()
        finally:
            self._watching.remove(event)
            self._store.remove_watcher(number)

    async def close(self) -> None:
        self._closed = True
        for event in self._watching:
            event.set()

    async def _read(self, operation: Operation, key: str, read: Callable[[], T]) -> T:
        call = Call(self._client, operation, key)
        fault = self._begin(call)
        await self._before(call)
        found = read()
        await self._after(call)
        if fault is not Fault.NONE:
            late = RegisterUnavailable(f"{self._client}: no answer ({fault.value})")
            late.is_late = True
            raise late
        return found

    def _begin(self, call: Call) -> Fault:
        if self._closed:
            raise RegisterUnavailable("the register was closed", retriable=False)
        fault = self._fault(call)
        if fault is Fault.UNAVAILABLE:
            raise RegisterUnavailable(f"{self._client}: the register is unavailable")
        return fault
