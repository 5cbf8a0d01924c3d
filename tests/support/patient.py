"""A connection for tests: whoever asks waits for as long as a busy machine takes to answer."""

from __future__ import annotations

from typing import Self

from metaq import remoting
from metaq.protocol.command import Command
from metaq.protocol.reply import Reply
from metaq.remoting import OnRequest

PATIENCE_S = 60.0


class Connection(remoting.Connection):
    """Waits longer than a client's three seconds, which a busy machine can exceed."""

    @classmethod
    async def open(
        cls,
        address: str,
        timeout: float = PATIENCE_S,
        *,
        on_request: OnRequest | None = None,
        binary: bool = False,
    ) -> Self:
        return await super().open(address, timeout, on_request=on_request, binary=binary)

    async def call(self, command: Command, body: bytes = b"", timeout: float = PATIENCE_S) -> Reply:
        return await super().call(command, body, timeout)
