"""Shares of a listener's connections, so that peers that stay silent cannot shut others out."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

Close = Callable[[], object]


class ConnectionShares:
    """Counts the connections of a listener, and closes old silent ones to make room for new ones.

    A connection waits while its peer has not sent a whole request, or does not read its answer. Only
    connections that wait are closed. One address has at most `waiting_per_address_max` of them; beyond that,
    its own oldest one is closed. If the listener is full, the address with the most waiting connections
    loses its oldest one.
    """

    def __init__(self, connections_max: int, waiting_per_address_max: int, *, refused_max: int = 0) -> None:
        """`refused_max` more connections are accepted while all are at work, to tell their peers so."""
        self._connections_max = connections_max
        self._hard_max = connections_max + refused_max
        self._waiting_per_address_max = waiting_per_address_max
        self._count = 0
        # Python keeps the order of insertion, so the first connection of an address waits longest.
        self._waiting: dict[str, dict[CountedConnection, None]] = {}

    def __len__(self) -> int:
        return self._count

    def admit(self, host: str, close: Close) -> CountedConnection | None:
        """Counts a new connection, which waits for its peer. Returns None if all others are at work."""
        address = address_share(host)
        own = self._waiting.get(address)
        if own is not None and len(own) >= self._waiting_per_address_max:
            self._close_oldest(own)
        if self._count >= self._connections_max:
            if self._waiting:
                self._close_oldest(max(self._waiting.values(), key=len))
            elif self._count >= self._hard_max:
                return None
        self._count += 1
        connection = CountedConnection(self, address, close)
        connection.wait()
        return connection

    def _close_oldest(self, connections: dict[CountedConnection, None]) -> None:
        oldest = next(iter(connections))
        oldest.leave()
        oldest.close()

    def _add_waiting(self, connection: CountedConnection) -> None:
        self._waiting.setdefault(connection.address, {})[connection] = None

    def _remove_waiting(self, connection: CountedConnection) -> None:
        own = self._waiting[connection.address]
        del own[connection]
        if not own:
            del self._waiting[connection.address]

    def _remove(self) -> None:
        self._count -= 1


class CountedConnection:
    """One connection. Whoever serves it says when it waits, works and ends."""

    __slots__ = ("_is_counted", "_is_waiting", "_shares", "address", "close")

    def __init__(self, shares: ConnectionShares, address: str, close: Close) -> None:
        self._shares = shares
        self._is_counted = True
        self._is_waiting = False
        self.address = address
        self.close = close

    def wait(self) -> None:
        """The peer must act now. The connection may be closed to make room."""
        if self._is_counted and not self._is_waiting:
            self._is_waiting = True
            self._shares._add_waiting(self)

    def work(self) -> None:
        """The server must act now, so the connection is kept."""
        if self._is_waiting:
            self._is_waiting = False
            self._shares._remove_waiting(self)

    def leave(self) -> None:
        """Stops counting the connection. Safe to call twice."""
        self.work()
        if self._is_counted:
            self._is_counted = False
            self._shares._remove()


def address_share(host: str) -> str:
    """Returns the name under which a host counts. IPv6 hosts count by their /64, which one customer owns."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
