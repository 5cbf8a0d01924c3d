"""The retention of single topics, by age and by size, within the retention of the log.

What is older, or beyond the size, is no longer delivered or counted. Disk space returns when the log's own
retention deletes the files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from metaq._core import Clock, Store
from metaq.broker.requests.spaced_work import letting_others_run
from metaq.broker.state.queue_starts import QueueStarts
from metaq.broker.state.topics import Topics
from metaq.protocol.attributes import RETENTION_BYTES, RETENTION_MS
from metaq.protocol.bodies import TopicConfig

MEASURES_MAX: Final = 200
"""Measurements of one look, of a million messages each. The next look goes on."""
_NO_LIMIT: Final = 2**62


@dataclass(slots=True)
class _Measured:
    """The messages of a queue that were counted."""

    first: int
    end: int
    bytes: int = 0


class TopicRetention:
    """Moves the starts of topics that have a retention of their own. Call `look` now and then."""

    def __init__(self, topics: Topics, store: Store, clock: Clock, starts: QueueStarts) -> None:
        self._topics = topics
        self._store = store
        self._clock = clock
        self._starts = starts
        self._measured: dict[tuple[str, int], _Measured] = {}
        self._measures_left = 0

    async def look(self) -> None:
        """Applies the retention of all topics once."""
        wanted = await asyncio.to_thread(self._wanted)
        await self._starts.advance(wanted)

    def _wanted(self) -> dict[str, dict[int, int]]:
        self._measures_left = MEASURES_MAX
        wanted: dict[str, dict[int, int]] = {}
        by_size: set[tuple[str, int]] = set()
        for config in letting_others_run(self._with_retention()):
            name = config.topic_name
            age_ms, size = limit_of(config, RETENTION_MS), limit_of(config, RETENTION_BYTES)
            queue_ids = self._store.queue_ids(name)
            for queue_id in queue_ids:
                start = self._store.min_offset(name, queue_id)
                if start >= self._store.max_offset(name, queue_id):
                    continue
                first = start
                if age_ms is not None:
                    first = max(first, self._young(name, queue_id, first, age_ms))
                if size is not None:
                    by_size.add((name, queue_id))
                    first = max(first, self._fitting(name, queue_id, first, size // len(queue_ids)))
                if first > start:
                    wanted.setdefault(name, {})[queue_id] = first
        self._measured = {queue: kept for queue, kept in self._measured.items() if queue in by_size}
        return wanted

    def _with_retention(self) -> Iterator[TopicConfig]:
        for config in self._topics:
            limits = (limit_of(config, RETENTION_MS), limit_of(config, RETENTION_BYTES))
            if limits != (None, None) and not self._topics.is_system(config.topic_name):
                yield config

    def _young(self, topic: str, queue_id: int, start: int, age_ms: int) -> int:
        oldest_kept_ms = self._clock.now_ms() - age_ms
        # Most looks end here: one read, not a search.
        if self._store.store_time_ms(topic, queue_id, start) >= oldest_kept_ms:
            return start
        return self._store.search_offset(topic, queue_id, oldest_kept_ms)

    def _fitting(self, topic: str, queue_id: int, start: int, bytes_max: int) -> int:
        """The first queue offset from which on the messages fit. Each message is measured once when it comes
        and once when it goes."""
        end = self._store.max_offset(topic, queue_id)
        counted = self._measured.get((topic, queue_id))
        if counted is None or not counted.first <= start <= counted.end <= end:
            counted = self._measured[topic, queue_id] = _Measured(start, start)
        while counted.first < start:
            # Another rule has moved the start.
            reached, size = self._measure(topic, queue_id, counted.first, start, _NO_LIMIT)
            if reached == counted.first:
                # The log has deleted them: count what is left.
                counted = self._measured[topic, queue_id] = _Measured(start, start)
                break
            counted.first, counted.bytes = reached, counted.bytes - size
        while counted.end < end and self._measures_left > 0:
            reached, size = self._measure(topic, queue_id, counted.end, end, _NO_LIMIT)
            if reached == counted.end:
                break
            counted.end, counted.bytes = reached, counted.bytes + size
        if counted.end < end or counted.bytes <= bytes_max:
            return start
        first = counted.first
        excess = counted.bytes - bytes_max
        while excess > 0 and first < counted.end:
            reached, size = self._measure(topic, queue_id, first, counted.end, excess)
            if reached == first:
                # The next message is larger than the excess: it goes, too.
                reached, size = self._measure(topic, queue_id, first, first + 1, _NO_LIMIT)
            if reached == first:
                break
            first, excess = reached, excess - size
        return first

    def _measure(self, topic: str, queue_id: int, first: int, end: int, bytes_max: int) -> tuple[int, int]:
        self._measures_left -= 1
        reached, size, _, _ = self._store.measure(topic, queue_id, first, end, bytes_max)
        return reached, size


def limit_of(config: TopicConfig, attribute: str) -> int | None:
    """Returns the limit that a topic has of its own; None if it has none."""
    text = (config.attributes or {}).get(attribute, "")
    number = int(text) if text.isascii() and text.isdecimal() else 0
    return number if number > 0 else None
