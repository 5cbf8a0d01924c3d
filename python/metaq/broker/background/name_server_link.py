"""The connection from a broker to one name server, and how far its registration is."""

from __future__ import annotations

import asyncio

from metaq.protocol.command import Command
from metaq.protocol.reply import Reply
from metaq.remoting import Connection

CALM_S = 1.0
"""A name server that closes the connection sooner than this after an attempt is not tried again at once."""


class NameServerLink:
    """One name server and the connection to it. A closed connection also tells it that the broker is gone."""

    def __init__(
        self, address: str, connection: Connection | None = None, due: asyncio.Event | None = None
    ) -> None:
        self.address = address
        self.due = due or asyncio.Event()
        self.tried = asyncio.Event()
        self.is_registered = False
        self.is_away = False
        """The last attempt to connect has failed."""
        self.is_late = False
        """A new topic gave up waiting for this name server; no other topic waits for it before an attempt
        ends."""
        self.attempted = -1
        """The number of changes when the last attempt began."""
        self.changed: dict[str, None] = {}
        """The topics that have changed since the last attempt began."""
        self.is_all_due = False
        """Every topic is registered again, because the rights of the broker have changed or because the name
        server has forgotten it."""
        self.takes_topics = True
        """It has not refused the registration of a single topic as unknown."""
        self.takes_beats = True
        """It has not refused the question for our version as unknown."""
        self.attempting = asyncio.Lock()
        """Held during an attempt."""
        self._attempted = asyncio.Event()
        self._attempted_at = 0.0
        self._connection = connection
        self._opening = asyncio.Lock()

    def successor(self) -> NameServerLink:
        """Returns the link of the broker's next role. The connection goes with it: the name server would
        remove the broker if it were closed."""
        connection, self._connection = self._connection, None
        return NameServerLink(self.address, connection, self.due)

    @property
    def is_cut(self) -> bool:
        return self._connection is not None and self._connection.closed

    def attempt_ended(self, changes: int) -> None:
        """Notes that an attempt has succeeded or failed."""
        self.attempted = changes
        self._attempted_at = asyncio.get_running_loop().time()
        self.is_late = False
        self._attempted.set()
        self._attempted = asyncio.Event()
        self.tried.set()

    def end_waits(self) -> None:
        """Ends all waits: this name server gets no more registrations."""
        self.is_registered = False
        self._attempted.set()

    async def wait_attempted(self, changes: int) -> None:
        while self.attempted < changes and self.is_registered:
            await self._attempted.wait()

    async def open(self, timeout_s: float) -> Connection:
        """Connects unless it is connected. Raises MetaqError, and ValueError for a bad address."""
        async with self._opening:
            if self._connection is None or self._connection.closed:
                self.is_away = True
                self._connection = await Connection.open(self.address, timeout_s, on_end=self._ended)
                self.is_away = False
            return self._connection

    async def call(self, command: Command, body: bytes, timeout_s: float) -> Reply:
        """Raises MetaqError if the name server does not accept, ValueError for a bad address."""
        connection = await self.open(timeout_s)
        return (await connection.call(command, body, timeout_s)).check()

    def _ended(self, _: str) -> None:
        """Makes a registration due at once: the routes of this broker are gone until then."""
        if asyncio.get_running_loop().time() - self._attempted_at >= CALM_S:
            self.due.set()

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
