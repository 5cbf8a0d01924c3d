"""The machines behind connections: which ones share a quota, and which one is this machine. Until there is
access control, operators are known by that."""

from __future__ import annotations

import socket
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final

_SUBNET_BITS: Final = 64


def host_of(remote: str) -> str:
    """The host of `host:port`; an IPv4 address that came over IPv6 is an IPv4 address."""
    host = remote.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


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


def is_local(remote: str) -> bool:
    """Whether the peer at `host:port` is on this machine. False for a host name."""
    try:
        host = ip_address(host_of(remote))
    except ValueError:
        return False
    if host.is_loopback:
        return True
    family = socket.AF_INET if host.version == 4 else socket.AF_INET6
    # This sends nothing. The system chooses the address from which it would reach the peer: one of its own
    # addresses is reached from that address itself.
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(host), 9))
            return ip_address(probe.getsockname()[0]) == host
    except OSError:
        return False
