"""The interface of the register: a small, linearizable store for the record of each broker group."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from metaq.errors import MetaqError


class RegisterUnavailable(MetaqError):
    """The register did not answer in time, or refused the request."""

    retriable = True


@dataclass(frozen=True, slots=True)
class Stored:
    """A value in the register and the revision of its last change."""

    value: bytes
    revision: int


class Outcome(enum.Enum):
    """The result of a compare-and-swap."""

    DONE = "done"
    CONFLICT = "conflict"
    """Somebody else changed the key first."""
    UNKNOWN = "unknown"
    """No answer: read again before you decide."""


class Register(Protocol):
    """Keys with revisions, changed only by compare-and-swap."""

    async def cluster_id(self) -> str:
        """Returns the identity of the register. Raises RegisterUnavailable."""
        ...

    async def get(self, key: str) -> Stored | None:
        """Returns the newest value; linearizable. Raises RegisterUnavailable."""
        ...

    async def compare_and_swap(self, key: str, expected_revision: int, value: bytes) -> Outcome:
        """Sets the value if the key's revision is the expected one; 0 means that the key must not exist.

        After UNKNOWN the swap may still be applied later, even if a read shows the expected revision.
        Raises RegisterUnavailable if the swap was certainly not applied and never will be.
        """
        ...

    async def list(self, prefix: str) -> dict[str, Stored]:
        """Returns every key that starts with the prefix, as fresh as `get`. Raises RegisterUnavailable."""
        ...

    def watch(self, prefix: str) -> AsyncIterator[None]:
        """Yields when something may have changed. A hint: never the only source."""
        ...

    async def close(self) -> None:
        """Closes all connections."""
        ...
