"""What a send came to."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

from metaq.client.session.routes import Queue
from metaq.errors import NotDurable, UsageError
from metaq.protocol.codes import ResponseCode


class SendStatus(StrEnum):
    """How well a message is kept. All but the first are errors unless the producer accepts them."""

    STORED = "stored"
    """As safely as the broker was set up to."""
    FLUSH_TIMEOUT = "flush-timeout"
    """In the broker's log, but not on its disk in time."""
    REPLICA_MISSING = "replica-missing"
    """Without the replica that it should have."""
    REPLICA_TIMEOUT = "replica-timeout"
    """Its replica did not have it in time."""

    @classmethod
    def all_of(cls, names: Iterable[str]) -> frozenset[SendStatus]:
        """By their names; raises UsageError."""
        try:
            return frozenset(cls(name) for name in ((names,) if isinstance(names, str) else names))
        except ValueError as error:
            raise UsageError(str(error), hint=f"there are {', '.join(cls)}") from None


STATUSES: Final = {
    ResponseCode.SUCCESS: SendStatus.STORED,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.REPLICA_MISSING,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.REPLICA_TIMEOUT,
}


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Where a message went. Made for every message, so it is of the kind that is made fastest."""

    id: str
    queue: Queue
    queue_offset: int
    status: SendStatus
    offset_id: str = ""
    recall_handle: str | None = None
    """Takes a delayed message back, with `recall`."""
    transaction_id: str | None = None


_CODES: Final = {status: int(code) for code, status in STATUSES.items()}
_WHAT: Final = {
    SendStatus.FLUSH_TIMEOUT: "it was not flushed to disk in time",
    SendStatus.REPLICA_MISSING: "the replica that it should have is not there",
    SendStatus.REPLICA_TIMEOUT: "its replica did not have it in time",
}


def not_durable(result: SendResult) -> NotDurable:
    """What is raised for a status that the producer does not accept."""
    return NotDurable(
        f"message {result.id} is stored at {result.queue.broker}, but: {_WHAT[result.status]}",
        result,
        code=_CODES[result.status],
        hint=f"a producer made with accept={{{str(result.status)!r}}} takes that for success",
    )
