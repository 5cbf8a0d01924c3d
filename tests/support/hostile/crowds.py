"""Thousands of connections that do nothing, or send one byte now and then and never a whole frame."""

from __future__ import annotations

import itertools
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from tests.support.plain_client import PULL_MESSAGE, frame

PER_ADDRESS = 2_500
"""Connections from one loopback address: below the limit of a server, and of the ports there are."""
TRICKLE_EVERY_S = 1.0
_HELLO = frame(PULL_MESSAGE, {})
"""A server closes connections that have sent no whole frame before all others."""
_FRAME = frame(PULL_MESSAGE, {"topic": "x" * 4_000})


@dataclass
class Crowd:
    """Keeps that many connections open; whatever the server closes is opened again."""

    server: str
    size: int
    first_address: int
    """The last part of the loopback addresses from which they come."""
    trickles: bool = False
    opened: int = 0
    _sent: dict[socket.socket, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        host, _, port = self.server.rpartition(":")
        self._server = (host, int(port))
        self._selector = selectors.DefaultSelector()
        self._number = itertools.count()

    @property
    def open(self) -> int:
        return len(self._sent)

    def fill(self, deadline: float) -> None:
        while len(self._sent) < self.size and time.monotonic() < deadline:
            source = f"127.0.0.{self.first_address + next(self._number) % self.size // PER_ADDRESS}"
            try:
                connection = socket.create_connection(self._server, timeout=5, source_address=(source, 0))
                connection.sendall(_HELLO)
            except OSError:
                return
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ)
            self._sent[connection] = 0
            self.opened += 1

    def live(self, seconds: float) -> None:
        """Lets them trickle, and forgets those that the server has closed."""
        ends_at = time.monotonic() + seconds
        if self.trickles:
            for connection, sent in list(self._sent.items()):
                at = sent % len(_FRAME)
                try:
                    connection.send(_FRAME[at : at + 1])
                    self._sent[connection] = sent + 1
                except BlockingIOError:
                    pass
                except OSError:
                    self._forget(connection)
        while (left := ends_at - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                try:
                    is_closed = not connection.recv(1 << 16)
                except OSError:
                    is_closed = True
                if is_closed:
                    self._forget(connection)

    def close(self) -> None:
        for connection in list(self._sent):
            self._forget(connection)
        self._selector.close()

    def _forget(self, connection: socket.socket) -> None:
        with suppress(KeyError):
            self._selector.unregister(connection)
        self._sent.pop(connection, None)
        connection.close()


def keep_crowds(crowds: list[Crowd], ends_at: float, tell: Callable[[], None]) -> None:
    while time.monotonic() < ends_at:
        for crowd in crowds:
            crowd.fill(ends_at)
            crowd.live(TRICKLE_EVERY_S / len(crowds))
        tell()
    for crowd in crowds:
        crowd.close()
