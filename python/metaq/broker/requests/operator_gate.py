"""Decides where requests of operators about waiting messages may come from.

RocketMQ has no such requests. They name messages and transactions of all clients and end them without the
handle or the producer group that protects them otherwise. Until there is access control, the address of the
peer has to do.
"""

from __future__ import annotations

import socket
from ipaddress import IPv6Address, ip_address
from typing import Final

from metaq.broker.options import OperatorSources
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.waiting import (
    DecideTransaction,
    GetDelayedFigures,
    ListDelayedMessages,
    ListTransactions,
    RecallDelayedMessage,
)
from metaq.protocol.dispatch import Handlers, Request, Unfinished

CODES: Final = frozenset(
    command.code
    for command in (
        GetDelayedFigures,
        ListDelayedMessages,
        RecallDelayedMessage,
        ListTransactions,
        DecideTransaction,
    )
)


class OperatorGate(Handlers):
    """Passes requests on to the handlers of a role, except operators' requests from elsewhere."""

    def __init__(self, handlers: Handlers, sources: OperatorSources) -> None:
        super().__init__()
        self._handlers = handlers
        self._sources = sources

    def begin(self, request: Request) -> Unfinished | None:
        if request.code not in CODES or self._is_welcome(request.remote):
            return self._handlers.begin(request)
        if not request.oneway:
            request.respond(ResponseCode.NO_PERMISSION, remark=self._refusal(request.remote))
        return None

    def _is_welcome(self, remote: str) -> bool:
        return self._sources == "any" or (self._sources == "local" and is_local(remote))

    def _refusal(self, remote: str) -> str:
        what = "requests about delayed messages and open transactions"
        if self._sources == "none":
            return f"this broker takes no {what} (operator_requests)"
        return (
            f"this broker takes {what} only from its own machine, and {remote} is another one; "
            "to allow all addresses, start the broker with operator_requests=any"
        )


def is_local(remote: str) -> bool:
    """Whether the peer at `host:port` is on this machine."""
    host = ip_address(remote.rpartition(":")[0].strip("[]").partition("%")[0])
    if isinstance(host, IPv6Address) and host.ipv4_mapped is not None:
        host = host.ipv4_mapped
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
