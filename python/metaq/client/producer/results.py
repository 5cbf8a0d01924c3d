"""The results of sends."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

from metaq.client.session.routes import Queue
from metaq.errors import NotDurable, UsageError
from metaq.protocol.codes import ResponseCode


class SendStatus(StrEnum):
    """How safely a message is stored. All but STORED are errors, unless the producer accepts them."""

    STORED = "stored"
    """Stored as safely as the broker is configured to."""
    FLUSH_TIMEOUT = "flush-timeout"
    """In the broker's log, but not flushed to its disk in time."""
    REPLICA_MISSING = "replica-missing"
    """Stored by the master, but no replica is available."""
    REPLICA_TIMEOUT = "replica-timeout"
    """Stored by the master, but not by its replica in time."""

    @classmethod
    def all_of(cls, names: Iterable[str]) -> frozenset[SendStatus]:
        """Returns the statuses with these names. Raises UsageError."""
        try:
            return frozenset(cls(name) for name in ((names,) if isinstance(names, str) else names))
        except ValueError as error:
            raise UsageError(str(error), hint=f"use {', '.join(cls)}") from None


STATUSES: Final = {
    ResponseCode.SUCCESS: SendStatus.STORED,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.REPLICA_MISSING,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.REPLICA_TIMEOUT,
}


# A msgspec struct, because one is made for every message and this kind is made fastest.
class SendResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a send: the id of the message and its place in a queue."""

    id: str
    """The unique id, which the producer gave the message."""
    queue: Queue
    queue_offset: int
    status: SendStatus
    offset_id: str = ""
    """The offset id, which the broker gave the message: its address and the physical offset."""
    recall_handle: str | None = None
    """Pass it to `recall` to cancel a delayed message."""
    transaction_id: str | None = None


_OFFSET_DIGITS: Final = 16


def physical_offset(offset_id: str) -> int:
    """Returns the position in the broker's log, which is the last part of an offset id."""
    return int(offset_id[-_OFFSET_DIGITS:], 16)


_CODES: Final = {status: int(code) for code, status in STATUSES.items()}
_REASONS: Final = {
    SendStatus.FLUSH_TIMEOUT: "it was not flushed to disk in time",
    SendStatus.REPLICA_MISSING: "no replica is available",
    SendStatus.REPLICA_TIMEOUT: "its replica did not store it in time",
}


def not_durable(result: SendResult) -> NotDurable:
    """Returns the error for a status that the producer does not accept."""
    return NotDurable(
        f"message {result.id} is stored at {result.queue.broker}, but {_REASONS[result.status]}",
        result,
        code=_CODES[result.status],
        hint=f"a producer made with accept={{{str(result.status)!r}}} takes that as success",
    )
