"""Committed offsets of a group member: where it starts in each queue, and what it has committed since."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from metaq.client.consumer.offsets.positions import resolve_position
from metaq.client.consumer.offsets.storage import (
    BrokerOffsets,
    FileOffsets,
    MemoryOffsets,
    Offsets,
    latest_offset,
)
from metaq.client.consumer.options import ConsumerOptions, client_directory
from metaq.errors import MetaqError

if TYPE_CHECKING:
    from metaq.client.consumer.group.rebalance import Shares
    from metaq.client.consumer.pull.buffers import QueueBuffer
    from metaq.client.session.routes import Queue
    from metaq.client.session.session import Session


class CommittedOffsets:
    """Reads and commits a group's offsets, and skips commits that would change nothing."""

    def __init__(self, session: Session, options: ConsumerOptions, shares: Shares) -> None:
        self._session = session
        self._options = options
        self._shares = shares
        self._storage: Offsets | None = None
        self._ends: dict[Queue, int] = {}
        """The ends of queues at the time when we joined the group."""
        self._last: dict[Queue, tuple[int, str | None]] = {}
        """The offset of each queue that was read or committed last, and the address of its broker then. A new
        master may have an older offset, so it gets ours again."""

    async def note_ends(self, queues: Iterable[Queue]) -> None:
        """Notes where queues end now. If the group has no offset of one, "latest" means this end: messages
        that arrive from now on are not skipped, however long it takes until the queue is ours."""
        if self._options.start != "latest":
            return

        async def note(queue: Queue) -> None:
            with contextlib.suppress(MetaqError):  # Its end is asked for when the queue becomes ours.
                self._ends[queue] = await latest_offset(self._session, queue)

        await asyncio.gather(*(note(queue) for queue in queues))

    async def open(self) -> None:
        """Opens the broadcast file, or selects memory or the brokers. Raises UnusableFile."""
        options = self._options
        if options.is_broadcast and options.offsets == "memory":
            self._storage = MemoryOffsets()
        elif options.is_broadcast:
            path = options.offsets_file or client_directory() / "offsets" / f"{options.group}.json"
            self._storage = await FileOffsets.open(path, numbered=options.offsets_file is None)
        else:
            self._storage = BrokerOffsets(self._session, options.group)

    async def close(self) -> None:
        if self._storage is not None:
            await self._storage.close()

    async def commit(self, buffers: Mapping[Queue, QueueBuffer], *, asks: bool = False) -> list[QueueBuffer]:
        """Commits how far each queue is settled. Returns the buffers whose group was reset in the meantime:
        the broker has ignored their offsets. Raises MetaqError or OSError.

        With `asks`, queues that are not pulled now, because they are full or paused, are committed even if
        nothing has changed: no pull would tell us of a reset.
        """
        chosen = {
            queue: buffer
            for queue, buffer in buffers.items()
            if not buffer.dropped
            and (
                self._last.get(queue) != self._stored(queue, buffer.committable)
                or (asks and not buffer.is_pulling and not self._options.is_broadcast)
            )
        }
        if not chosen:
            return []
        reset = await self.set({queue: buffer.committable for queue, buffer in chosen.items()})
        return [chosen[queue] for queue in reset]

    async def set(self, offsets: Mapping[Queue, int]) -> frozenset[Queue]:
        """Commits these offsets. Returns the queues whose group was reset, whose offsets were ignored. Raises
        MetaqError or OSError."""
        reset = await self._opened.commit(offsets)
        self._last.update(
            {
                queue: self._stored(queue, queue_offset)
                for queue, queue_offset in offsets.items()
                if queue not in reset
            }
        )
        return reset

    async def read(self, queue: Queue) -> int | None:
        """Returns the committed offset; None if there is none. Raises MetaqError."""
        return await self._opened.read(queue)

    def forget(self, queue: Queue) -> None:
        """Makes the next commit of this queue happen even if its offset is the same."""
        self._last.pop(queue, None)

    async def start_offset(self, queue: Queue) -> int:
        """Returns the committed offset, or the offset of `start` if the group has none. Raises MetaqError."""
        committed = await self._opened.read(queue)
        noted_end = self._ends.pop(queue, None)
        if committed is not None and committed >= 0:
            self._last[queue] = self._stored(queue, committed)
            return committed
        # A queue that appeared after we joined holds only messages newer than us, and none may be lost.
        if queue.topic == self._options.retry_topic or self._shares.has_appeared(queue):
            return await resolve_position(self._session, queue, "earliest")
        if noted_end is not None:
            return noted_end
        return await resolve_position(self._session, queue, self._options.start)

    def _stored(self, queue: Queue, queue_offset: int) -> tuple[int, str | None]:
        is_local = self._options.is_broadcast
        return queue_offset, None if is_local else self._session.routes.group_address(queue.broker)

    @property
    def _opened(self) -> Offsets:
        assert self._storage is not None, "the offsets are not open"
        return self._storage
