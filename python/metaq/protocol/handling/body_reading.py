"""Reads the bodies of requests and answers: short ones at once, long ones on a thread."""

from __future__ import annotations

from typing import TypeVar

from metaq.protocol.bodies import Body
from metaq.protocol.command import LOOP_BYTES_MAX
from metaq.protocol.handling.askers import Peer
from metaq.work_pools import WorkPool

_Body = TypeVar("_Body", bound=Body)


def is_short(body: bytes) -> bool:
    """Whether the body may be read on the event loop."""
    return len(body) <= LOOP_BYTES_MAX


async def read_body(pool: WorkPool, peer: Peer, body: bytes, kind: type[_Body]) -> _Body:
    """Raises ProtocolError if the body cannot be read, and Refused if too many of this connection wait."""
    if is_short(body):
        return kind.decode(body)
    return await pool.run(peer, lambda: kind.decode(body))
