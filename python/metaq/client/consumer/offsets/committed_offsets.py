"""Committed offsets of a group member: where it starts in each queue, and what it has committed since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from metaq.client.consumer.offsets.positions import resolve_position
from metaq.client.consumer.offsets.storage import BrokerOffsets, FileOffsets, Offsets
from metaq.client.consumer.options import ConsumerOptions, client_directory

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
        self._last: dict[Queue, tuple[int, str | None]] = {}
        """The offset of each queue that was read or committed last, and the address of its broker then. A new
        master may have an older offset, so it gets ours again."""

    async def open(self) -> None:
        """Opens the broadcast file, or selects the brokers. Raises CommandError or OSError."""
        options = self._options
        if options.is_broadcast:
            path = options.offsets_file or client_directory() / "offsets" / f"{options.group}.json"
            self._storage = await FileOffsets.open(path)
        else:
            self._storage = BrokerOffsets(self._session, options.group)

    async def close(self) -> None:
        if self._storage is not None:
            await self._storage.close()

    async def commit(self, buffers: Mapping[Queue, QueueBuffer]) -> None:
        """Commits how far each queue is settled. Raises MetaqError or OSError."""
        changed = {
            queue: buffer.committable
            for queue, buffer in buffers.items()
            if not buffer.dropped and self._last.get(queue) != self._stored(queue, buffer.committable)
        }
        if changed:
            await self.set(changed)

    async def set(self, offsets: Mapping[Queue, int]) -> None:
        """Commits these offsets. Raises MetaqError or OSError."""
        await self._opened.commit(offsets)
        self._last.update(
            {queue: self._stored(queue, queue_offset) for queue, queue_offset in offsets.items()}
        )

    def forget(self, queue: Queue) -> None:
        """Makes the next commit of this queue happen even if its offset is the same."""
        self._last.pop(queue, None)

    async def start_offset(self, queue: Queue) -> int:
        """Returns the committed offset, or the offset of `start` if the group has none. Raises MetaqError."""
        committed = await self._opened.read(queue)
        if committed is not None and committed >= 0:
            self._last[queue] = self._stored(queue, committed)
            return committed
        # A queue that appeared after we joined holds only messages newer than us, and none may be lost.
        if queue.topic == self._options.retry_topic or self._shares.has_appeared(queue):
            return await resolve_position(self._session, queue, "earliest")
        return await resolve_position(self._session, queue, self._options.start)

    def _stored(self, queue: Queue, queue_offset: int) -> tuple[int, str | None]:
        is_local = self._options.is_broadcast
        return queue_offset, None if is_local else self._session.routes.group_address(queue.broker)

    @property
    def _opened(self) -> Offsets:
        assert self._storage is not None, "the offsets are not open"
        return self._storage
