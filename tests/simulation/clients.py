"""Simulated clients: producers that send and a consumer that reads, from whichever node answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.world import World

TIMEOUT_S = 3.0


class Producer:
    """Sends one record after another to the node that it believes to be master."""

    def __init__(self, world: World, name: str, interval_s: float) -> None:
        self._world = world
        self._name = name
        self._interval_s = interval_s
        self._target = world.rng.choice(sorted(world.hosts))
        self._attempt = 0
        self.paused = False
        world.loop.after(world.rng.random() * interval_s, self._send)

    def _send(self) -> None:
        world = self._world
        if world.clients_stopped:
            return
        self._attempt += 1
        attempt = self._attempt
        if self.paused:
            world.loop.after(self._interval_s, self._next, attempt, True)
            return
        record, node_id = world.next_record(), self._target
        host, network = world.hosts[node_id], world.network

        def reply(code: str, queue_offset: int, epoch: int) -> None:
            if not network.is_blocked(node_id, self._name):
                world.loop.after(network.delay(), self._answered, attempt, code)

        def arrive() -> None:
            if host.node is not None:
                host.node.send(record, reply)

        if network.is_blocked(self._name, node_id):
            world.loop.after(TIMEOUT_S, self._next, attempt, False)
            return
        if not host.running:
            world.loop.after(0.05, self._next, attempt, False)
            return
        world.loop.after(network.delay(), host.run_as, host.generation, arrive)
        world.loop.after(TIMEOUT_S, self._next, attempt, False)

    def _answered(self, attempt: int, code: str) -> None:
        world = self._world
        if attempt != self._attempt:
            return
        if code == "ok":
            world.oks += 1
            delay_s = self._interval_s * (0.5 + world.rng.random())
        else:
            world.refusals += 1
            delay_s = 0.05
        world.loop.after(delay_s, self._next, attempt, code == "ok")

    def _next(self, attempt: int, went_well: bool) -> None:
        if attempt == self._attempt:
            if not went_well:
                self._target = self._world.rng.choice(sorted(self._world.hosts))
            self._send()


class Consumer:
    """Reads on from where it is, from any node, and reads old records again now and then."""

    def __init__(self, world: World, interval_s: float) -> None:
        self._world = world
        self._interval_s = interval_s
        self.position = 0
        world.loop.after(world.rng.random() * interval_s, self._read)

    def _read(self) -> None:
        world = self._world
        host = world.hosts[world.rng.choice(sorted(world.hosts))]
        start = self.position
        if start and world.rng.random() < 0.2:
            start = world.rng.randrange(start)
        if host.running and not host.frozen and host.node is not None:
            for number, record in enumerate(host.node.read(start)[:32]):
                world.consumed(start + number, record)
                self.position = max(self.position, start + number + 1)
        world.loop.after(self._interval_s, self._read)
