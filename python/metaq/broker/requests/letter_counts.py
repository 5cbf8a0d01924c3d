"""Counts the dead letters of a group that were not sent again."""

from __future__ import annotations

from dataclasses import dataclass

from metaq._core import BrokerPlane, Store
from metaq.broker.requests.spaced_work import letting_others_run
from metaq.protocol.names import DEAD_LETTER_PREFIX


@dataclass(frozen=True, slots=True)
class WaitingLetters:
    """The dead letters of a group that were not sent again."""

    count: int
    oldest_ms: int | None
    """When the oldest of them was stored. It stays while new ones come."""
    newest_ms: int | None
    """When the last letter was stored, also if all were sent again."""


def waiting_letters(store: Store, plane: BrokerPlane, topic: str, queues: int) -> WaitingLetters:
    """Counts the letters behind the group's offset, which says how far they were sent again."""
    committed = plane.offsets_of(topic.removeprefix(DEAD_LETTER_PREFIX), topic)
    count, oldest_ms, newest_ms = 0, -1, -1
    for queue_id in letting_others_run(range(queues)):
        end = store.max_offset(topic, queue_id)
        if end <= 0:
            continue
        first = max(committed.get(queue_id, 0), store.min_offset(topic, queue_id))
        newest_ms = max(newest_ms, store.store_time_ms(topic, queue_id, end - 1))
        if first < end:
            count += end - first
            stored_ms = store.store_time_ms(topic, queue_id, first)
            if stored_ms >= 0:
                oldest_ms = stored_ms if oldest_ms < 0 else min(oldest_ms, stored_ms)
    return WaitingLetters(count, oldest_ms if oldest_ms >= 0 else None, newest_ms if newest_ms >= 0 else None)
