"""A network of TCP-like connections: in order, delayed, held up by partitions, broken by kills."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.virtual_loop import VirtualLoop

CONNECT_TIMEOUT_S = 1.0
RETRANSMIT_S = 0.2


class Network:
    """Decides when a message from one host arrives at another, if ever."""

    def __init__(self, loop: VirtualLoop, rng: random.Random) -> None:
        self._loop = loop
        self._rng = rng
        self.blocked: set[tuple[object, object]] = set()
        """Pairs (from, to) of host names whose packets are dropped."""
        self.loss = 0.0
        """How often a packet is lost and sent again."""
        self.delay_s = 0.001

    def block(self, one: object, other: object, both: bool = True) -> None:
        """Drops packets between two hosts, or only from the first to the second."""
        self.blocked.add((one, other))
        if both:
            self.blocked.add((other, one))

    def heal(self) -> None:
        """Lets everything through again."""
        self.blocked.clear()
        self.loss = 0.0

    def is_blocked(self, source: object, target: object) -> bool:
        return (source, target) in self.blocked

    def delay(self) -> float:
        """Draws the time that one packet takes."""
        delay_s = self.delay_s * (0.5 + self._rng.random())
        while self.loss and self._rng.random() < self.loss:
            delay_s += RETRANSMIT_S
        if self._rng.random() < 0.01:
            delay_s += self._rng.random() * 0.05
        return delay_s

    def connect(
        self,
        client: Host,
        server: Host,
        opened: Callable[[Connection], None],
        failed: Callable[[bool], None],
    ) -> None:
        """Opens a connection. `failed` learns whether the port refused it; otherwise nobody answered."""
        generation = client.generation

        def answer(refused: bool, connection: Connection | None) -> None:
            if client.generation != generation:
                return
            if connection is None:
                client.run(failed, refused)
            else:
                client.run(opened, connection)

        if self.is_blocked(client.name, server.name) or self.is_blocked(server.name, client.name):
            self._loop.after(CONNECT_TIMEOUT_S, answer, False, None)
        elif not server.running:
            # A lost machine refuses nothing. A killed process leaves a kernel that does.
            silent = server.powered_off
            self._loop.after(CONNECT_TIMEOUT_S if silent else self.delay(), answer, not silent, None)
        else:
            connection = Connection(self, self._loop, client, server)
            server.accepted(connection)
            self._loop.after(self.delay() * 2, answer, False, connection)


class Connection:
    """Messages in both directions, each in order. Every end belongs to one process."""

    def __init__(self, network: Network, loop: VirtualLoop, client: Host, server: Host) -> None:
        self._network = network
        self._loop = loop
        self._ends = (client, server)
        self._generations = (client.generation, server.generation)
        self._arrives_at = [0.0, 0.0]
        self._held: tuple[list[Any], list[Any]] = ([], [])
        self.receivers: list[Callable[[Any], None] | None] = [None, None]
        self.closers: list[Callable[[], None] | None] = [None, None]
        self.closed = [False, False]
        client.connections[self] = None
        server.connections[self] = None

    def side(self, host: Host) -> int:
        return 0 if host is self._ends[0] else 1

    def send(self, host: Host, message: Any) -> None:
        """Sends a message to the other end."""
        side = self.side(host)
        if self.closed[side]:
            return
        self._travel(side, message)

    def _travel(self, side: int, message: Any) -> None:
        source, target = self._ends[side], self._ends[1 - side]
        if self._held[side] or self._network.is_blocked(source.name, target.name):
            if not self._held[side]:
                self._loop.after(RETRANSMIT_S, self._retransmit, side)
            self._held[side].append(message)
            return
        at = max(self._loop.time() + self._network.delay(), self._arrives_at[side])
        self._arrives_at[side] = at
        self._loop.after(at - self._loop.time(), self._arrive, 1 - side, message)

    def _retransmit(self, side: int) -> None:
        source, target = self._ends[side], self._ends[1 - side]
        if self.closed[0] and self.closed[1]:
            return
        if self._network.is_blocked(source.name, target.name):
            self._loop.after(RETRANSMIT_S, self._retransmit, side)
            return
        messages = list(self._held[side])
        self._held[side].clear()
        for message in messages:
            self._travel(side, message)

    def _arrive(self, side: int, message: Any) -> None:
        host = self._ends[side]
        if self.closed[side] or host.generation != self._generations[side]:
            return
        if message is _CLOSE:
            host.run(self._closed_by_peer, side)
        else:
            host.run(self._receive, side, message)

    def _receive(self, side: int, message: Any) -> None:
        receiver = self.receivers[side]
        if not self.closed[side] and receiver is not None:
            receiver(message)

    def _closed_by_peer(self, side: int) -> None:
        if not self.closed[side]:
            self.closed[side] = True
            self._ends[side].connections.pop(self, None)
            closer = self.closers[side]
            if closer is not None:
                closer()

    def close(self, host: Host) -> None:
        """Closes one end. The other end learns of it if the network lets it."""
        side = self.side(host)
        if not self.closed[side]:
            self._travel(side, _CLOSE)
            self.closed[side] = True
            host.connections.pop(self, None)

    def vanish(self, host: Host) -> None:
        """One end is gone without a word, as after a power loss."""
        side = self.side(host)
        self.closed[side] = True
        host.connections.pop(self, None)


_CLOSE = object()
