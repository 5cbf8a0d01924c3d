"""The sender of a request: its connection and its machine. Limits and turns count both."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from metaq.protocol.handling.local_peers import source_of


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
