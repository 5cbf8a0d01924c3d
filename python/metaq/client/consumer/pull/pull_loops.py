"""One loop per queue that pulls messages into the consumer's prefetch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from metaq.client.consumer.pull.buffers import QueueBuffer
from metaq.client.consumer.pull.requests import PullRequests, PullResult
from metaq.client.consumer.settlement.send_back import send_back
from metaq.client.consumer.subscription import DEAD_LETTER_LEVEL, Subscription
from metaq.client.stderr_fallback import once
from metaq.client.tasks import end_tasks
from metaq.errors import MetaqError
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused

if TYPE_CHECKING:
    from metaq.client.consumer.offsets.committed_offsets import CommittedOffsets
    from metaq.client.consumer.options import ConsumerOptions
    from metaq.client.consumer.pull.prefetch import Prefetch
    from metaq.client.message import Message
    from metaq.client.session.routes import Queue
    from metaq.client.session.session import Session

_log = logging.getLogger(__name__)

PAUSED_INTERVAL_S: Final = 0.05
FULL_INTERVAL_S: Final = 0.25
"""A loop with a full buffer looks again after this time, even if nobody has signalled room."""
FAILURE_PAUSE_S: Final = 1.0
BUSY_PAUSE_S: Final = 0.02


class PullLoops:
    """The pull loops of one group member."""

    def __init__(
        self,
        session: Session,
        options: ConsumerOptions,
        subscriptions: Mapping[str, Subscription],
        prefetch: Prefetch,
        committed: CommittedOffsets,
    ) -> None:
        self._session = session
        self._options = options
        self._subscriptions = subscriptions
        self._prefetch = prefetch
        self._committed = committed
        self._requests = PullRequests(
            session,
            options.group,
            carries_subscription=options.is_broadcast,
            read_from=options.read_from,
        )
        self._loops: dict[Queue, asyncio.Task[None]] = {}

    def begin(self, queue: Queue, queue_offset: int, locked_until: float) -> None:
        """Starts to pull a queue from an offset."""
        buffer = QueueBuffer(queue, queue_offset, self._options.limits)
        buffer.locked_until = locked_until
        self._prefetch.add(buffer)
        self._run(buffer)

    def restart(self, buffer: QueueBuffer, queue_offset: int) -> bool:
        """Continues a queue at another offset, because its group was reset, and forgets what was pulled.

        Returns False if the buffer is not used any more, or if the queue is being given up: whoever reads it
        next begins at the new offset.
        """
        queue = buffer.queue
        if buffer.dropped or buffer.revoked or self._prefetch.is_stopped:
            return False
        _log.info("group %s: %s continues at %d after a reset", self._options.group, queue, queue_offset)
        fresh = QueueBuffer(queue, queue_offset, self._options.limits)
        self._prefetch.replace(fresh)
        self._committed.forget(queue)
        former = self._loops[queue]
        if former is not asyncio.current_task():
            former.cancel()
        self._run(fresh)
        return True

    def _run(self, buffer: QueueBuffer) -> None:
        queue = buffer.queue
        self._loops[queue] = asyncio.create_task(
            self._keep_pulling(buffer), name=f"metaq {self._options.group} pull {queue.topic}/{queue.id}"
        )

    async def drop(self, queue: Queue) -> None:
        """Stops to pull a queue and forgets what was pulled."""
        self._prefetch.drop(queue)
        self._committed.forget(queue)
        await end_tasks([self._loops.pop(queue)])

    def cancel(self) -> None:
        """Stops every loop without waiting."""
        for loop in self._loops.values():
            loop.cancel()

    async def end(self) -> None:
        """Stops every loop and waits for its end."""
        await end_tasks(self._loops.values())

    async def _keep_pulling(self, buffer: QueueBuffer) -> None:
        while not buffer.dropped:
            if self._prefetch.is_paused(buffer.queue):
                await asyncio.sleep(PAUSED_INTERVAL_S)
                continue
            buffer.bytes_max = self._prefetch.bytes_per_queue
            if buffer.is_full:
                await self._wait_for_room(buffer)
                continue
            try:
                await self._pull(buffer)
            except MetaqError as error:
                _log.info("group %s: pull of %s failed: %s", self._options.group, buffer.queue, error)
                await asyncio.sleep(FAILURE_PAUSE_S)
            except Exception:
                _log.exception("group %s: pull of %s failed", self._options.group, buffer.queue)
                await asyncio.sleep(FAILURE_PAUSE_S)

    async def _wait_for_room(self, buffer: QueueBuffer) -> None:
        buffer.room.clear()
        buffer.awaits_room = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FULL_INTERVAL_S):
                await buffer.room.wait()

    async def _pull(self, buffer: QueueBuffer) -> None:
        queue = buffer.queue
        count = min(self._options.pull_count, max(1, buffer.limits.count_max - buffer.unsettled))
        room_bytes = max(1, buffer.bytes_max - buffer.bytes_held)
        buffer.is_pulling = True
        try:
            result = await self._requests.pull(
                queue,
                buffer.pull_offset,
                self._subscriptions[queue.topic],
                count,
                bytes_max=room_bytes,
                may_inflate=self._prefetch.may_inflate,
            )
        except Refused as error:
            await self._refused(queue, error)
        else:
            await self._store(buffer, result)
        finally:
            buffer.is_pulling = False

    async def _store(self, buffer: QueueBuffer, result: PullResult) -> None:
        if result.is_reset:
            if self.restart(buffer, result.next_offset):
                # The broker ignores other offsets until it has this one. If we read from a replica, no pull
                # tells it where we are.
                await self._committed.set({buffer.queue: result.next_offset})
            else:
                await asyncio.sleep(PAUSED_INTERVAL_S)
            return
        if result.is_moved:
            if buffer.unsettled or result.next_offset == buffer.pull_offset:
                await asyncio.sleep(PAUSED_INTERVAL_S)  # Messages from before the move are not settled yet.
            else:
                buffer.move(result.next_offset)
                # The group's offset was changed by somebody else: commit ours even if it is the same again.
                self._committed.forget(buffer.queue)
            return
        for message, problem in result.unreadable:
            # Retries would fail for ever. The dead letters keep it for somebody who can read it.
            _log.error("group %s: %s goes to the dead letters: %s", self._options.group, message.id, problem)
            if not self._options.is_broadcast and not await self._bury(message, problem):
                await asyncio.sleep(FAILURE_PAUSE_S)
                return  # The same pull runs again and may bury some messages twice.
        self._prefetch.put(buffer, result.messages, result.next_offset)
        if result.has_more and not result.messages:
            await self._wait_for_room(buffer)

    async def _bury(self, message: Message, problem: Exception) -> bool:
        """Returns whether the broker has accepted the dead letter."""
        try:
            await send_back(self._session, self._options, message, DEAD_LETTER_LEVEL, problem)
        except MetaqError as error:
            _log.warning("group %s: %s is not a dead letter yet: %s", self._options.group, message.id, error)
            return False
        return True

    async def _refused(self, queue: Queue, error: Refused) -> None:
        if error.code in (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST):
            await self._session.beat()
            await asyncio.sleep(BUSY_PAUSE_S)
        elif error.code in (ResponseCode.FLOW_CONTROL, ResponseCode.SYSTEM_BUSY):
            await asyncio.sleep(BUSY_PAUSE_S)
        else:
            _log.warning(
                "group %s: pull of %s was refused: %s",
                self._options.group,
                queue,
                error,
                extra=once("refused", self._options.group, queue.topic),
            )
            await asyncio.sleep(FAILURE_PAUSE_S)
