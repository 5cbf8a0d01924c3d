"""Recognises the address of a broker that was given as the address of a name server.

Both speak the same protocol, so the mistake is easy: `--namesrv` with port 10911 instead of 9876. A broker
knows its name servers, so the error can name the right address.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from metaq.errors import NotSupported
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.commands.admin import GetBrokerConfig
from metaq.protocol.errors import Unreachable
from metaq.protocol.reply import Reply

Call = Callable[[str, Command], Awaitable[Reply]]


async def name_servers_of(call: Call, address: str) -> str | None:
    """Returns the name servers of the broker at this address, as `host:port;…`, or an empty text if it does
    not say. Returns None if no broker is there."""
    try:
        reply = await call(address, GetBrokerConfig())
    except Unreachable:
        return None
    if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return None
    lines = reply.body.decode("utf-8", "replace").splitlines()
    values = dict(line.partition("=")[::2] for line in lines)
    return values.get("namesrvAddr", "").replace("\\:", ":").strip()


async def broker_for_name_server(call: Call, address: str) -> NotSupported | None:
    """Returns the error for an address that does not answer the questions of name servers; None if no broker
    is there either."""
    right = await name_servers_of(call, address)
    if right is None:
        return None
    hint = f"its name servers are {right}" if right else "the port of a name server is usually 9876"
    return NotSupported(f"{address} is a broker, not a name server", hint=hint)
