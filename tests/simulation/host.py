"""A simulated machine: its disk, its clock, and the process that runs on it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from metaq.ha.conducting.conductor import Conductor, Identity
from metaq.ha.conducting.fixed_conductor import FixedConductor
from metaq.ha.conducting.node_driver import Peer
from metaq.ha.conducting.node_files import NodeRecord
from metaq.ha.group_record import GroupKeys, Member
from tests.simulation.disk import Disk
from tests.simulation.faulty_register import RegisterClient
from tests.simulation.stream import SimNode

if TYPE_CHECKING:
    from tests.simulation.network import Connection
    from tests.simulation.world import World

KEYS = GroupKeys("cluster", "broker")
FIXED_MASTER = 1


class Host:
    """A machine. A process on it is one generation; nothing of an old generation reaches a new one."""

    def __init__(self, world: World, node_id: int) -> None:
        self.world = world
        self.name = node_id
        self.disk = Disk()
        self.generation = 0
        self.running = False
        self.frozen = False
        self.powered_off = False
        self.is_old = False
        """It runs a MetaQ that reads no record with a version."""
        # In order, which a set of objects does not have: the same seed must give the same run.
        self.connections: dict[Connection, None] = {}
        self.node: SimNode | None = None
        self.conductor: Conductor | FixedConductor | None = None
        self._task: asyncio.Task[None] | None = None
        self._queued: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = []
        self._clock_offset = world.rng.random() * 1e6
        self._clock_rate = 1 + (world.rng.random() - 0.5) * 0.001
        self._incarnations = 0

    # ---- running things on this machine

    def run(self, callback: Callable[..., None], *args: Any) -> None:
        """Runs something on the present process, now or when the process is thawed."""
        if self.frozen:
            self._queued.append((self.generation, callback, args))
        elif self.running:
            callback(*args)

    def run_as(self, generation: int, callback: Callable[..., None], *args: Any) -> None:
        """Runs something if the process is still the same one."""
        if generation == self.generation:
            self.run(callback, *args)

    def after(self, delay_s: float, callback: Callable[..., None], *args: Any) -> None:
        """Runs something later, if the process is still the same one then."""
        self.world.loop.after(delay_s, self.run_as, self.generation, callback, *args)

    async def sleep(self, delay_s: float) -> None:
        """Waits; forever if the process is killed."""
        future: asyncio.Future[None] = self.world.loop.create_future()
        self.after(delay_s, _finish, future)
        await future

    # ---- the clock that its process reads

    def now(self) -> float:
        return self.world.loop.time() * self._clock_rate + self._clock_offset

    def leap(self, seconds: float) -> None:
        """The clock jumps ahead, as after a machine slept."""
        self.world.note(f"the clock of node {self.name} leaps {seconds} s")
        self._clock_offset += seconds

    async def wait(self, event: asyncio.Event, until: float) -> None:
        if event.is_set():
            return
        future: asyncio.Future[Any] = self.world.loop.create_future()
        self.after(max(until - self.now(), 0.0001) / self._clock_rate, _finish, future)
        waiters = event._waiters  # type: ignore[attr-defined]
        waiters.append(future)
        try:
            await future
        finally:
            waiters.remove(future)

    # ---- the file that its process must not lose

    async def load(self) -> NodeRecord | None:
        content = self.disk.node_file
        return NodeRecord.decode(content) if content is not None else None

    async def save(self, record: NodeRecord) -> None:
        content = record.encode()
        while True:
            await self.sleep(0.001 + self.world.rng.random() * 0.004)
            if not self.disk.hangs:
                break
        if not self.disk.has_room:
            raise OSError(errno.ENOSPC, "no room")
        self.disk.node_file = content

    # ---- life and death

    def start(self) -> None:
        """Starts a process, unless one runs."""
        if self.running:
            return
        self.generation += 1
        self.running, self.powered_off = True, False
        self.disk.recover()
        self.node = SimNode(self)
        self.world.note(f"node {self.name} starts with {self.disk.end} records")
        self.conductor = self._fixed_conductor() if self.world.fixed else self._conductor()
        self.node.start()
        self._task = self.world.loop.create_task(self.conductor.run())
        self._task.add_done_callback(self._ended)

    def _conductor(self) -> Conductor:
        assert self.node is not None
        identity = Identity(self.name, f"client:{self.name}", f"replica:{self.name}", KEYS)
        conductor = Conductor(
            identity,
            self.node,
            RegisterClient(self.world.register, self),
            self,
            self.world.settings,
            self,
            self._new_incarnation,
        )
        if self.is_old:
            # It writes only what it can read itself, and never says that it reads more.
            conductor.session.has_older_nodes = lambda now: True  # type: ignore[method-assign]
            conductor.session._announce = _say_nothing  # type: ignore[method-assign]
        return conductor

    def _fixed_conductor(self) -> FixedConductor:
        assert self.node is not None
        replica_ids = [name for name in self.world.hosts if name != FIXED_MASTER]
        return FixedConductor(
            self.name,
            Peer(FIXED_MASTER, f"replica:{FIXED_MASTER}"),
            replica_ids,
            self.node,
            self,
            self.world.settings,
            self,
            self._new_incarnation,
        )

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.crashed(self, error)

    def _new_incarnation(self) -> str:
        self._incarnations += 1
        return f"{self.name}-{self._incarnations}"

    def kill(self) -> None:
        """kill -9: what was written stays written, and the kernel closes all connections."""
        if self.running:
            self.world.note(f"node {self.name} is killed with {self.disk.end} records")
            self._end()
            for connection in list(self.connections):
                connection.close(self)

    def lose_power(self) -> None:
        """The machine is gone: only what was synced is left, and nobody hears of it."""
        self.world.note(
            f"node {self.name} loses power; {self.disk.synced} of {self.disk.end} records were synced"
        )
        self._end()
        self.powered_off = True
        for connection in list(self.connections):
            connection.vanish(self)
        self.disk.lose_power(self.world.rng)
        self.disk.hangs = self.disk.fails = False

    def _end(self) -> None:
        self.running = self.frozen = False
        self._queued.clear()
        self.generation += 1
        self.disk.fails = False
        if self._task is not None:
            self._task.cancel()
        self.node = self.conductor = self._task = None

    def freeze(self) -> None:
        """SIGSTOP."""
        if self.running:
            self.world.note(f"node {self.name} is stopped")
            self.frozen = True

    def thaw(self) -> None:
        """SIGCONT."""
        if self.frozen:
            self.world.note(f"node {self.name} continues")
            self.frozen = False
            queued, self._queued = self._queued, []
            for generation, callback, args in queued:
                self.run_as(generation, callback, *args)

    def accepted(self, connection: Connection) -> None:
        """A peer connected. The kernel accepts even if the process is stopped."""
        if self.node is not None:
            self.node.accept(connection)


def _finish(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)


async def _say_nothing(own: Member) -> None:
    """An older node does not know that others ask what it reads."""
