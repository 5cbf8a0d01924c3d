"""The queues that a group member reads: gained and lost by rebalancing, locked for ordered consumption."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from metaq.client.consumer.group.rebalance import Locks, Shares
from metaq.client.user_code import call_user
from metaq.errors import MetaqError

if TYPE_CHECKING:
    from metaq.client.consumer.offsets.committed_offsets import CommittedOffsets
    from metaq.client.consumer.options import ConsumerOptions
    from metaq.client.consumer.pull.buffers import QueueBuffer
    from metaq.client.consumer.pull.prefetch import Prefetch
    from metaq.client.consumer.pull.pull_loops import PullLoops
    from metaq.client.session.routes import Queue
    from metaq.client.session.session import Session
    from metaq.client.tasks import Tasks

_log = logging.getLogger(__name__)

REBALANCE_INTERVAL_S: Final = 20.0
INCOMPLETE_INTERVAL_S: Final = 1.0
"""The interval while a topic has no route yet, because its first message may create it at any time."""
LOCK_INTERVAL_S: Final = 20.0
LOCK_WANTED_INTERVAL_S: Final = 0.5
LOCK_TRUSTED_S: Final = 30.0
"""A lock lasts a minute at the broker. We stop long before, so a queue never has two readers."""
LOST_TRUSTED_S: Final = 3.0
"""When its connection has ended, a broker gives our queues away after 5 s without a sign of us."""
LOST_INTERVAL_S: Final = 0.5
"""The interval at which locks are renewed after their connection has ended."""
RELEASE_TIMEOUT_S: Final = 25.0
"""How long an ordered queue waits for the message in hand before it goes to another member."""
RELEASE_INTERVAL_S: Final = 0.01


class Assignment:
    """Keeps the queues that this member pulls equal to its share."""

    def __init__(
        self,
        session: Session,
        options: ConsumerOptions,
        shares: Shares,
        prefetch: Prefetch,
        committed: CommittedOffsets,
        pulls: PullLoops,
        tasks: Tasks,
    ) -> None:
        self._session = session
        self._options = options
        self._shares = shares
        self._locks = Locks(session, options.group)
        self._prefetch = prefetch
        self._committed = committed
        self._pulls = pulls
        self._tasks = tasks
        self._wanted: frozenset[Queue] = frozenset()
        self._rebalance_now = asyncio.Event()
        self._changing = asyncio.Lock()
        self.ready = asyncio.Event()
        """Set when the share of every subscribed topic was known once, and its queues were begun."""
        self._doubtful: set[Queue] = set()
        """Queues whose locks were not renewed since the connection to their broker ended."""

    async def find_routes(self) -> None:
        """Asks for the routes of all topics, so that the first heartbeat reaches their brokers."""
        for topic in self._shares.topics:
            with contextlib.suppress(MetaqError):  # A topic without a route does not keep us from joining.
                queues = await self._shares.look(topic)
                if topic != self._options.retry_topic:
                    await self._committed.note_ends(queues)
        self._session.routes.watch(self._route_changed)

    def start(self) -> None:
        """Starts to rebalance in the background."""
        self._tasks.spawn(self._keep_balanced(), "rebalance")
        if self._options.ordered:
            self._tasks.spawn(self._keep_asking_for_locks(), "wanted locks")
            self._tasks.run_every(LOCK_INTERVAL_S, self._renew_locks, "renewal of locks")
            self._session.watch_lost(self._connection_lost)

    def stop(self) -> None:
        """Ignores further changes of routes."""
        self._session.routes.unwatch(self._route_changed)
        self._session.unwatch_lost(self._connection_lost)

    async def unlock(self) -> None:
        """Gives the locks of all queues back."""
        if self._options.ordered:
            await self._locks.unlock(frozenset(self._prefetch.buffers))

    def rebalance_soon(self) -> None:
        self._rebalance_now.set()

    async def reset(self, offsets: Mapping[Queue, int]) -> None:
        """Continues at other offsets in these queues, and forgets messages that were pulled and not settled.

        The next message of an ordered consumer waits for the one in hand, however long that takes.
        """
        buffers = self._prefetch.buffers
        moved = {
            queue: queue_offset
            for queue, queue_offset in offsets.items()
            if queue in buffers and self._pulls.restart(buffers[queue], queue_offset)
        }
        if moved:
            await self._committed.set(moved)

    async def follow_resets(self, buffers: Iterable[QueueBuffer]) -> None:
        """Continues where the group was reset to in these queues, whose broker has ignored our commits."""
        for buffer in buffers:
            queue_offset = await self._committed.read(buffer.queue)
            if queue_offset is not None and self._prefetch.buffers.get(buffer.queue) is buffer:
                await self.reset({buffer.queue: queue_offset})

    # Rebalancing

    def _route_changed(self, topic: str) -> None:
        if topic in self._shares.topics:
            self.rebalance_soon()

    async def _keep_balanced(self) -> None:
        while True:
            self._rebalance_now.clear()
            try:
                self._wanted = await self._shares.work_out()
                await self._change_to(self._wanted)
            except Exception:
                _log.exception("group %s: the rebalance failed and runs again", self._options.group)
            lacks_route = any(topic not in self._shares.known for topic in self._shares.topics)
            lacks_queue = not self._options.ordered and self._wanted != self._prefetch.buffers.keys()
            if not lacks_queue and all(
                subscription.topic in self._shares.known for subscription in self._options.subscriptions
            ):
                self.ready.set()
            interval_s = INCOMPLETE_INTERVAL_S if lacks_route or lacks_queue else REBALANCE_INTERVAL_S
            # Not wait_for, which loses a cancellation that arrives together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._rebalance_now.wait()

    async def _change_to(self, wanted: frozenset[Queue]) -> None:
        async with self._changing:
            lost = frozenset(self._prefetch.buffers) - wanted
            if lost:
                await self._notify(frozenset(), lost)
                await asyncio.gather(*(self._release(queue) for queue in lost))
            if self._prefetch.is_stopped:
                return
            gained = wanted - frozenset(self._prefetch.buffers)
            if self._options.ordered and gained:
                gained = await self._locks.lock(gained)
            if gained:
                gained = frozenset(filter(None, await asyncio.gather(*(self._acquire(q) for q in gained))))
            if gained:
                await self._commit_start_offsets()
                await self._notify(gained, frozenset())

    async def _commit_start_offsets(self) -> None:
        """Commits where we start at once, so messages that arrive while nobody runs are not skipped."""
        try:
            await self._committed.commit(self._prefetch.buffers)
        except (MetaqError, OSError) as error:
            _log.info("group %s: the start offsets are committed later: %s", self._options.group, error)

    async def _acquire(self, queue: Queue) -> Queue | None:
        try:
            queue_offset = await self._committed.start_offset(queue)
        except MetaqError as error:
            _log.info("group %s cannot start %s yet: %s", self._options.group, queue, error)
            return None
        self._pulls.begin(queue, queue_offset, time.monotonic() + LOCK_TRUSTED_S)
        return queue

    async def _release(self, queue: Queue) -> None:
        """Commits how far a queue is settled and gives it up; an ordered one after the message in hand."""
        buffer = self._prefetch.buffers[queue]
        await self._finish_in_hand(buffer)
        try:
            await self._committed.commit({queue: buffer})
        except (MetaqError, OSError) as error:
            _log.info("group %s releases %s without a last commit: %s", self._options.group, queue, error)
        await self._pulls.drop(queue)
        if self._options.ordered:
            await self._locks.unlock(frozenset((queue,)))

    async def _finish_in_hand(self, buffer: QueueBuffer) -> None:
        """Stops giving out messages of a queue; if it is ordered, waits until the one in hand is settled."""
        buffer.revoked = True
        if self._options.ordered and buffer.in_hand_together:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RELEASE_TIMEOUT_S):
                    while buffer.in_hand_together and buffer.locked_until > time.monotonic():
                        await asyncio.sleep(RELEASE_INTERVAL_S)

    async def _notify(self, gained: frozenset[Queue], lost: frozenset[Queue]) -> None:
        if self._options.on_rebalance is None:
            return
        try:
            await call_user(self._options.on_rebalance, gained, lost)
        except Exception:
            _log.exception("group %s: on_rebalance failed", self._options.group)

    # Locks of ordered consumers

    async def _keep_asking_for_locks(self) -> None:
        """Asks again for queues of our share that the previous member still has locked."""
        while True:
            await asyncio.sleep(LOCK_WANTED_INTERVAL_S)
            if self._wanted - frozenset(self._prefetch.buffers):
                try:
                    await self._change_to(self._wanted)
                except Exception:
                    _log.exception("group %s: asking for locks failed", self._options.group)

    def _connection_lost(self, address: str) -> None:
        """Trusts the locks of a broker only for a moment, because it may give our queues away."""
        if self._prefetch.is_stopped:
            return
        trusted_until = time.monotonic() + LOST_TRUSTED_S
        is_renewing = bool(self._doubtful)
        for queue, buffer in self._prefetch.buffers.items():
            if self._session.routes.group_address(queue.broker) == address:
                buffer.locked_until = min(buffer.locked_until, trusted_until)
                self._doubtful.add(queue)
        if self._doubtful and not is_renewing:
            self._tasks.spawn(self._regain_locks(), "locks of lost connections")

    async def _regain_locks(self) -> None:
        while self._doubtful:
            await self._renew_locks()
            self._doubtful &= self._prefetch.buffers.keys()
            if self._doubtful:
                await asyncio.sleep(LOST_INTERVAL_S)

    async def _renew_locks(self) -> None:
        buffers = self._prefetch.buffers
        asked_at = time.monotonic()
        held = frozenset(buffers)
        granted = await self._locks.lock(held) if held else held
        for queue in granted & frozenset(buffers):
            buffers[queue].locked_until = asked_at + LOCK_TRUSTED_S
            self._doubtful.discard(queue)
        self._prefetch.wake()
        if held - granted:
            # In a task of its own: a rebalance may take long, and the next renewal must not wait for it.
            self._tasks.spawn(self._drop_lapsed(held - granted), "lapsed locks")

    async def _drop_lapsed(self, queues: frozenset[Queue]) -> None:
        async with self._changing:
            for queue in queues & frozenset(self._prefetch.buffers):
                if self._prefetch.buffers[queue].locked_until < time.monotonic():
                    # Another member may read it by now, so our messages of it no longer count.
                    await self._pulls.drop(queue)
