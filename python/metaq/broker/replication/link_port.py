"""The replication port: accepts connections of replicas and finds out who they are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from metaq._core import LinkListener, LinkSocket
from metaq.broker.replication.options import ReplicationOptions
from metaq.connection_shares import ConnectionShares, CountedConnection
from metaq.ha.group_record import Member
from metaq.ha.handshake import (
    ComparedLog,
    Follow,
    Identity,
    LinkDone,
    LinkRefused,
    OwnLog,
    Refused,
    SendTail,
    Welcome,
    admit,
)
from metaq.protocol.handling.peer_log import PeerLog

_log = logging.getLogger(__name__)

HANDSHAKES_MAX = 16
"""Connections that may be in their handshake at the same time. The oldest one without a proof makes
room for a new one."""
HANDSHAKES_PER_ADDRESS_MAX = 8


class Host(ComparedLog, Protocol):
    """The node that the port belongs to. `welcome` and the looks at its log are called from other threads."""

    @property
    def identity(self) -> Identity: ...
    def welcome(self, member: Member, log: OwnLog) -> Welcome | Refused | SendTail: ...


Admitted = Callable[[LinkSocket, Member, Follow | SendTail], Awaitable[None]]


class LinkPort:
    """Listens from the moment it is made until `stop`."""

    def __init__(self, options: ReplicationOptions, host: Host, admitted: Admitted) -> None:
        """`admitted` takes over the socket of a replica. Raises OSError if the port cannot be bound."""
        self._options = options
        self._host = host
        self._admitted = admitted
        address = f"[{options.host}]" if ":" in options.host else options.host
        listener = LinkListener(f"{address}:{options.port}", options.handshake_timeout_ms)
        self._listener: LinkListener | None = listener
        self.port = listener.port
        """The bound port."""
        self._pool = ThreadPoolExecutor(HANDSHAKES_MAX, "metaq-link")
        self._complaints = PeerLog()
        self._shares = ConnectionShares(HANDSHAKES_MAX, HANDSHAKES_PER_ADDRESS_MAX)
        self._under_way: dict[asyncio.Task[None], LinkSocket] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(listener.fileno(), self._accept)

    async def stop(self) -> None:
        """Closes the port and all connections that are in their handshake."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self._loop.remove_reader(listener.fileno())
        # The port is closed when nobody holds the listener any more.
        del listener
        for socket in self._under_way.values():
            socket.close()
        if self._under_way:
            await asyncio.wait(list(self._under_way))
        self._pool.shutdown(wait=False)

    def _accept(self) -> None:
        listener = self._listener
        if listener is None:
            return
        try:
            socket = listener.accept()
        except OSError as error:
            _log.warning("a connection to the replication port was lost: %s", error)
            return
        if socket is None:
            return
        counted = self._shares.admit(socket.remote.rpartition(":")[0].strip("[]"), socket.close)
        if counted is None:
            self._complain(socket.remote, f"{HANDSHAKES_MAX} connections are in their handshake already")
            socket.close()
            return
        task = asyncio.create_task(self._shake_hands(socket, counted))
        self._under_way[task] = socket
        task.add_done_callback(self._under_way.pop)
        task.add_done_callback(lambda _: counted.leave())

    async def _shake_hands(self, socket: LinkSocket, counted: CountedConnection) -> None:
        try:
            identity, request = await self._loop.run_in_executor(self._pool, self._admit, socket, counted)
            counted.leave()
            await self._admitted(socket, Member(identity.node_id, identity.incarnation), request)
        except LinkDone:
            socket.close()
        except (LinkRefused, OSError) as error:
            self._complain(socket.remote, str(error) or type(error).__name__)
            socket.close()
        except Exception:
            _log.exception("the handshake with %s failed", socket.remote)
            socket.close()

    def _complain(self, remote: str, reason: str) -> None:
        """Logs who was refused and why. Peers choose parts of the reason, so it does not count as one."""
        self._complaints.write(
            _log, logging.WARNING, remote, "the replication port refuses %s: %s", remote, reason
        )

    def _admit(self, socket: LinkSocket, counted: CountedConnection) -> tuple[Identity, Follow | SendTail]:
        host = self._host

        def welcome(peer: Identity, log: OwnLog) -> Welcome | Refused | SendTail:
            # The peer has proved that it holds the key, so it is no stranger.
            self._loop.call_soon_threadsafe(counted.work)
            return host.welcome(Member(peer.node_id, peer.incarnation), log)

        return admit(socket, host.identity, self._options.key, welcome, host)
