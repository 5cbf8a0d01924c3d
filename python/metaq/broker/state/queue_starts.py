"""The places at which topics start for readers: below them a purge, or the retention of the topic, has ended.

The messages before such a start are still in the log until its own retention deletes them, but nobody gets
or counts them. A start is written to the journal before readers see it, so it survives a restart and a switch
of the master. It never moves back, apart from two cases: a deleted topic begins again, and a log that lost
its end takes new messages at lower queue offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from metaq._core import Store
from metaq.broker.state.topics import Topics


class QueueStarts:
    """The starts of one broker. `Topics` holds the table, because a topic and its starts go together."""

    def __init__(self, topics: Topics, store: Store, wait_replicated: Callable[[], Awaitable[None]]) -> None:
        self._topics = topics
        self._store = store
        self._wait_replicated = wait_replicated
        self._one_at_a_time = asyncio.Lock()

    def load(self) -> None:
        """Gives the store what the journal has."""
        for topic, starts in self._topics.starts.items():
            self._store.set_starts(topic, starts)

    def follow(self, topic: str) -> None:
        """Gives the store a change that this replica's master has made."""
        self._store.set_starts(topic, self._topics.starts.get(topic, {}))

    def clamp(self) -> None:
        """A new master calls it before it takes messages. A start beyond the end of its queue would hide
        messages that come later: the log may have lost its end. Publish the topics afterwards."""
        for topic, starts in list(self._topics.starts.items()):
            kept = {
                queue_id: min(start, self._store.max_offset(topic, queue_id))
                for queue_id, start in starts.items()
            }
            if kept != starts:
                self._topics.put_starts(topic, kept)
                self._store.set_starts(topic, kept)

    async def advance(self, wanted: Mapping[str, Mapping[int, int]]) -> dict[str, dict[int, int]]:
        """Moves starts forward, each at most to the end of its queue. Returns the starts that moved, once
        they are on disk and replicas have them. Raises NotWritten or Refused."""
        async with self._one_at_a_time:
            moved: dict[str, dict[int, int]] = {}
            for topic, starts in wanted.items():
                if self._topics.get(topic) is None:
                    continue
                for queue_id, start in starts.items():
                    start = min(start, self._store.max_offset(topic, queue_id))
                    if start > self._store.min_offset(topic, queue_id):
                        moved.setdefault(topic, {})[queue_id] = start
            if not moved:
                return moved
            for topic, changed in moved.items():
                self._topics.put_starts(topic, {**self._topics.starts.get(topic, {}), **changed})
            await self._topics.keep()
            for topic in moved:
                self._store.set_starts(topic, self._topics.starts.get(topic, {}))
            await self._wait_replicated()
            return moved
