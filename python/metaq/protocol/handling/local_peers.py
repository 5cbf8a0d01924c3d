"""Tells peers on this machine from others. Until there is access control, operators are known by that."""

from __future__ import annotations

import socket
from ipaddress import IPv6Address, ip_address


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
