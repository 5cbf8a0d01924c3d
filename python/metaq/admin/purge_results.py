"""The results of purges, and the retention of single topics. All of them are immutable."""

from __future__ import annotations

from dataclasses import dataclass

from metaq.client.session.routes import Queue


@dataclass(frozen=True, slots=True)
class QueuePurge:
    """The part of one queue that a purge takes away."""

    queue: Queue
    first_offset: int
    """The first message before the purge."""
    start_offset: int
    """The first message that stays."""

    @property
    def messages(self) -> int:
        return max(self.start_offset - self.first_offset, 0)


@dataclass(frozen=True, slots=True)
class Purge:
    """The changes of a purge: planned if it is a dry run, made otherwise."""

    topic: str
    queues: tuple[QueuePurge, ...]
    is_dry_run: bool

    @property
    def messages(self) -> int:
        return sum(queue.messages for queue in self.queues)


@dataclass(frozen=True, slots=True)
class Retention:
    """How long, and how much of it, one broker keeps a topic; None: as long as its log."""

    broker: str
    age_ms: int | None
    size_bytes: int | None
