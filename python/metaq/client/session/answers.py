"""Reads the answers of name servers and brokers without holding up the event loop.

Heartbeats and the locks of ordered consumers depend on the loop, and a peer decides how long its answer is.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from metaq.protocol.bodies import Body
from metaq.protocol.command import LOOP_BYTES_MAX

_Body = TypeVar("_Body", bound=Body)


async def read_body(kind: type[_Body], data: bytes) -> _Body:
    """Reads a body, a long one on a thread. Raises ProtocolError."""
    if len(data) <= LOOP_BYTES_MAX:
        return kind.decode(data)
    return await asyncio.to_thread(kind.decode, data)
