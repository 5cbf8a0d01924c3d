"""The sender of a request: its connection and its machine. Limits and turns count both."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple, Protocol

from metaq.protocol.handling.local_peers import host_of

_SUBNET_BITS: Final = 64


class Peer(Protocol):
    """A request or a client: whatever came by a connection."""

    @property
    def connection(self) -> int: ...
    @property
    def remote(self) -> str: ...


class Asker(NamedTuple):
    source: str
    """The machine, as `source_of` names it."""
    connection: int


def asker_of(peer: Peer) -> Asker:
    return Asker(source_of(peer.remote), peer.connection)


@lru_cache(maxsize=4_096)
def source_of(remote: str) -> str:
    """The machine behind a connection, for quotas. Of IPv6 addresses, the first half counts: everybody has
    all addresses of a subnet."""
    host = host_of(remote)
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(IPv6Address(int(address) >> _SUBNET_BITS << _SUBNET_BITS)) + f"/{_SUBNET_BITS}"
    return host
