"""The face for asyncio, where all the work is done."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from metaq.client.session import Session


class Client:
    """A client of a cluster, named by its name servers: `host:port`, several separated by semicolons.

    It belongs to the event loop in which it is started:

        async with metaq.aio.Client("127.0.0.1:9876") as client: …
    """

    def __init__(self, nameservers: str = "127.0.0.1:9876", *, client_id: str | None = None) -> None:
        self._session = Session(nameservers, client_id=client_id)

    @property
    def client_id(self) -> str:
        """What brokers know this client by."""
        return self._session.client_id

    async def start(self) -> None:
        """Safe to call twice."""
        await self._session.start()

    async def close(self) -> None:
        """Closes what was made of it, leaves its groups and closes its connections. Safe to call twice."""
        await self._session.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
