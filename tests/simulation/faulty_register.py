"""A register with a network in between: late requests, lost answers, time away, restored backups."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from metaq.ha.register import Outcome, RegisterUnavailable, Stored

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.network import Network
    from tests.simulation.virtual_loop import VirtualLoop

NAME = "register"
TIMEOUT_S = 1.0


class RegisterStore:
    """The content of the register, and its faults."""

    def __init__(self, loop: VirtualLoop, network: Network, rng: random.Random) -> None:
        self.loop = loop
        self.network = network
        self.rng = rng
        self.values: dict[str, Stored] = {}
        self.revision = 1
        self.cluster_id = "register-1"
        self.up = True
        self.late = 0.0
        """How often a swap is applied only seconds later, when its sender has given up."""
        self.lost_answers = 0.0
        """How often a swap is applied and its answer is lost."""
        self.duplicates = 0.0
        """How often a request arrives twice."""
        self.swap_delay_s: Callable[[str, str, bytes], float] = lambda client, key, value: 0.0
        """How much later a certain swap is applied."""
        self.watchers: list[tuple[str, Callable[[], None]]] = []
        self.on_swap: Callable[[str, str, bytes, Outcome], None] = lambda client, key, value, outcome: None
        self.on_write: Callable[[], None] = lambda: None
        """Is called after each swap."""

    def swap(self, client: str, key: str, expected_revision: int, value: bytes) -> Outcome:
        current = self.values.get(key)
        if (current.revision if current is not None else 0) != expected_revision:
            outcome = Outcome.CONFLICT
        else:
            self.revision += 1
            self.values[key] = Stored(value, self.revision)
            outcome = Outcome.DONE
            for prefix, hint in self.watchers:
                if key.startswith(prefix):
                    hint()
        self.on_swap(client, key, value, outcome)
        self.on_write()
        return outcome

    def backup(self) -> tuple[dict[str, Stored], int]:
        return dict(self.values), self.revision

    def restore(self, backup: tuple[dict[str, Stored], int]) -> None:
        self.values, self.revision = dict(backup[0]), backup[1]


class RegisterClient:
    """One process's client; implements `metaq.ha.register.Register`."""

    def __init__(self, store: RegisterStore, host: Host) -> None:
        self._store = store
        self._host = host

    async def cluster_id(self) -> str:
        return str(await self._call(lambda: self._store.cluster_id))

    async def get(self, key: str) -> Stored | None:
        found: Stored | None = await self._call(lambda: self._store.values.get(key))
        return found

    async def list(self, prefix: str) -> dict[str, Stored]:
        def read() -> dict[str, Stored]:
            return {key: value for key, value in self._store.values.items() if key.startswith(prefix)}

        found: dict[str, Stored] = await self._call(read)
        return found

    async def compare_and_swap(self, key: str, expected_revision: int, value: bytes) -> Outcome:
        store, rng = self._store, self._store.rng
        late_s = rng.random() * 5 if store.late and rng.random() < store.late else 0.0
        late_s += store.swap_delay_s(str(self._host.name), key, value)
        lost = bool(store.lost_answers) and rng.random() < store.lost_answers
        client = str(self._host.name)
        try:
            outcome = await self._call(
                lambda: store.swap(client, key, expected_revision, value), late_s=late_s, lost=lost
            )
        except _NoAnswer:
            return Outcome.UNKNOWN
        assert isinstance(outcome, Outcome)
        return outcome

    async def watch(self, prefix: str) -> AsyncIterator[None]:
        store, host = self._store, self._host
        hinted = asyncio.Event()
        generation = host.generation

        def hint() -> None:
            if not store.network.is_blocked(NAME, host.name):
                store.loop.after(store.network.delay(), host.run_as, generation, hinted.set)

        watcher = (prefix, hint)
        store.watchers.append(watcher)
        try:
            while True:
                yield
                hinted.clear()
                await hinted.wait()
        finally:
            store.watchers.remove(watcher)

    async def close(self) -> None:
        return None

    async def _call(self, apply: Callable[[], Any], late_s: float = 0.0, lost: bool = False) -> Any:
        store, host, network = self._store, self._host, self._store.network
        generation = host.generation
        answer: asyncio.Future[Any] = store.loop.create_future()

        def finish(result: Any) -> None:
            if not answer.done():
                answer.set_result(result)

        def arrive() -> None:
            if not store.up:
                return
            result = apply()
            if store.duplicates and store.rng.random() < store.duplicates:
                store.loop.after(store.rng.random() * 3, apply)
            if not lost and not network.is_blocked(NAME, host.name):
                store.loop.after(network.delay(), host.run_as, generation, finish, result)

        if not store.up:
            store.loop.after(network.delay(), host.run_as, generation, finish, _REFUSED)
        elif not network.is_blocked(host.name, NAME):
            store.loop.after(network.delay() + late_s, arrive)
        host.after(TIMEOUT_S, finish, _TIMEOUT)
        result = await answer
        if result is _REFUSED:
            raise RegisterUnavailable("the register refuses connections")
        if result is _TIMEOUT:
            raise _NoAnswer("the register does not answer")
        return result


class _NoAnswer(RegisterUnavailable):
    pass


_REFUSED = object()
_TIMEOUT = object()
