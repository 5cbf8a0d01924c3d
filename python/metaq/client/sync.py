"""The face for plain code: the same names and signatures, and calls that wait."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from metaq.client import aio
from metaq.client.portal import Portal


class Client:
    """A client of a cluster, named by its name servers: `host:port`, several separated by semicolons.

    Any thread may call it:

        with metaq.Client("127.0.0.1:9876") as client: …
    """

    def __init__(self, nameservers: str = "127.0.0.1:9876", *, client_id: str | None = None) -> None:
        self._portal = Portal()
        self._client = aio.Client(nameservers, client_id=client_id)

    @property
    def client_id(self) -> str:
        """What brokers know this client by."""
        return self._client.client_id

    def start(self) -> None:
        """Safe to call twice."""
        self._portal.start()
        self._portal.run(self._client.start)

    def close(self) -> None:
        """Closes what was made of it, leaves its groups and closes its connections. Safe to call twice."""
        if self._portal.usable:
            self._portal.run(self._client.close)
        self._portal.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
