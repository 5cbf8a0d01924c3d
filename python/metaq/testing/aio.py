"""MetaQ in the event loop of a test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from metaq.testing.clock import AsyncLocalClock
from metaq.testing.servers import Servers
from metaq.testing.stored import StoredMessage


class AsyncLocalMetaq:
    """Does the same as `LocalMetaq` for `async with`.

    The servers run in the event loop of the test, so a test that blocks also blocks them.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        frozen: bool = False,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self._servers = Servers(directory, settings or {}, frozen=frozen)
        self.clock = AsyncLocalClock(
            self._servers.clock, lambda by_ms, silent: self._servers.advance(by_ms, silent=silent)
        )

    async def __aenter__(self) -> Self:
        await self._servers.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._servers.stop()

    @property
    def nameserver(self) -> str:
        """The address of the name server, `127.0.0.1:port`."""
        return self._servers.nameserver.address

    @property
    def broker(self) -> str:
        """The address of the broker, `127.0.0.1:port`."""
        return self._servers.broker.address

    async def create_topic(self, name: str, *, queues: int = 4, ordered: bool = False) -> None:
        """Creates or changes a topic. Clients find it at once."""
        await self._servers.create_topic(name, queues, ordered=ordered)

    async def messages(self, topic: str) -> list[StoredMessage]:
        """Returns all messages of the topic, in the order in which they were stored."""
        return await self._servers.messages(topic)

    async def dead_letters(self, group: str) -> list[StoredMessage]:
        """Returns the dead letters of the group."""
        return await self._servers.dead_letters(group)

    async def restart(self) -> None:
        """Stops the servers cleanly and starts them again, at the same addresses and with the same store."""
        await self._servers.restart()
