"""Counts the requests that clients in the test's own process make."""

from __future__ import annotations

from collections import Counter

import pytest

from metaq.protocol.command import Command
from metaq.remoting import Connections


def count_requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the requests from now on, by the name of the command."""
    counts: Counter[str] = Counter()
    call = Connections.call

    async def counted(
        self: Connections, address: str, command: Command, *arguments: object, **keywords: object
    ) -> object:
        counts[type(command).__name__] += 1
        return await call(self, address, command, *arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(Connections, "call", counted)
    return counts
