"""A member of a consumer group: its share of the queues, what it pulled of them, and how far it is.

Two forms of consumption stand on it (handlers, iteration; `pull_consumer` does without a group's share).
`take` and `take_waiting` give messages, `Settlement` takes back what became of them.

All of it lives on one event loop but for the messages: threads take and settle them themselves, under
`_guard`, and the loop hears of it only where it has to do something.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from metaq.client.consumer.buffers import QueueBuffer, Turns
from metaq.client.consumer.offsets import (
    BrokerOffsets,
    FileOffsets,
    Offsets,
    end_offset,
    first_offset,
    offset_at,
)
from metaq.client.consumer.options import ConsumerOptions, client_directory
from metaq.client.consumer.pull import Pull, Puller
from metaq.client.consumer.rebalance import Locks, Shares
from metaq.client.consumer.settlement import send_back
from metaq.client.consumer.subscription import DEAD_LETTER_LEVEL, Subscription
from metaq.client.session.routes import Queue
from metaq.client.user_code import call_user
from metaq.errors import MetaqError
from metaq.protocol.bodies import ConsumerData
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused

if TYPE_CHECKING:
    from metaq.client.message import Message
    from metaq.client.session.session import Session

_log = logging.getLogger(__name__)

REBALANCE_INTERVAL_S: Final = 20.0
ROUTE_WANTED_INTERVAL_S: Final = 1.0
"""While a topic has no route yet: its first message may make it."""
COMMIT_INTERVAL_S: Final = 5.0
LOCK_INTERVAL_S: Final = 20.0
LOCK_WANTED_INTERVAL_S: Final = 0.5
LOCK_TRUSTED_S: Final = 30.0
"""A lease lasts a minute at the broker; we stop by ourselves long before, so no queue has two readers."""
PAUSED_PAUSE_S: Final = 0.05
FULL_PAUSE_S: Final = 0.25
"""A full buffer is looked at again then, even where nobody told that there is room."""
TURN_MESSAGES: Final = 32
"""How many messages in a row one queue gives before the next has its turn."""
FAILURE_PAUSE_S: Final = 1.0
BUSY_PAUSE_S: Final = 0.02
END_AGAIN_S: Final = 0.5
"""A task that did not hear that it is to end is told again."""
RELEASE_TIMEOUT_S: Final = 25.0
"""How long a queue in order is kept for the message in hand before it goes to another member."""

Taken = tuple[QueueBuffer, list["Message"]]
"""Messages of one queue, and where they are settled."""


class GroupConsumer:
    """One consumer in a group, on one event loop."""

    def __init__(self, session: Session, options: ConsumerOptions) -> None:
        self._session = session
        self.options = options
        self.started_ms = 0
        self.buffers: dict[Queue, QueueBuffer] = {}
        self.is_closing = False
        self._subscriptions = {subscription.topic: subscription for subscription in options.subscriptions}
        if not options.is_broadcast:
            self._subscriptions[options.retry_topic] = Subscription.of(options.retry_topic)
        self._shares = Shares(session, options)
        self._locks = Locks(session, options.group)
        self._puller = Puller(session, options.group, carries_subscription=options.is_broadcast)
        self._turns = Turns(priority=options.priority, patience=options.priority_patience)
        self._offsets: Offsets | None = None
        self._committed: dict[Queue, int] = {}
        self._paused: set[Queue] = set()
        self._all_paused = False
        self._wanted: frozenset[Queue] = frozenset()
        self._something = asyncio.Event()
        self._guard = threading.Lock()
        """Held by whoever takes, puts or settles."""
        self._more = threading.Condition(self._guard)
        """What threads without a message wait on."""
        self._idle_threads = 0
        self._turn_of: QueueBuffer | None = None
        self._turn_left = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rebalance_now = asyncio.Event()
        self._pulls: dict[Queue, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changing = asyncio.Lock()
        session.telemetry.watch_buffer("receive", self)

    @property
    def session(self) -> Session:
        return self._session

    @property
    def offsets(self) -> Offsets:
        assert self._offsets is not None, "the consumer is not started"
        return self._offsets

    @property
    def in_hand(self) -> int:
        return sum(buffer.in_hand for buffer in self.buffers.values())

    @property
    def buffered_bytes(self) -> int:
        return sum(buffer.bytes_held for buffer in list(self.buffers.values()))

    # Its life

    async def start(self) -> None:
        """Joins the group and begins to pull; does not wait for a share of the queues."""
        self.started_ms = time.time_ns() // 1_000_000
        self._loop = asyncio.get_running_loop()
        if self.options.is_broadcast:
            path = self.options.offsets_file or client_directory() / "offsets" / f"{self.options.group}.json"
            self._offsets = await FileOffsets.open(path)
        else:
            self._offsets = BrokerOffsets(self._session, self.options.group)
        for topic in self._shares.topics:
            # A heartbeat goes to the brokers of known routes; no route yet is no reason not to join.
            with contextlib.suppress(MetaqError):
                await self._shares.look(topic)
        self._session.routes.watch(self._route_changed)
        await self._session.add_consumer(self.describe)
        self.spawn(self._keep_balanced(), "rebalance")
        self.spawn(self._every(COMMIT_INTERVAL_S, self.commit), "commit")
        if self.options.ordered:
            self.spawn(self._want_locks(), "wanted locks")
            self.spawn(self._every(LOCK_INTERVAL_S, self._renew_locks), "locks")

    async def stop_taking(self) -> None:
        """Pulls nothing more and gives nothing more; what is in hand may still be settled."""
        self.is_closing = True
        self.wake()
        for task in self._pulls.values():
            task.cancel()

    async def leave(self) -> None:
        """Commits, gives up its queues and leaves the group."""
        self.is_closing = True
        try:
            await _end([*self._tasks, *self._pulls.values()])
            try:
                await self.commit()
            except (MetaqError, OSError) as error:
                _log.warning("group %s: the last offsets are not committed: %s", self.options.group, error)
            if self.options.ordered:
                await self._locks.unlock(frozenset(self.buffers))
        finally:
            # Also where the time is over meanwhile.
            self._session.routes.unwatch(self._route_changed)
            for buffer in self.buffers.values():
                buffer.dropped = True
            try:
                await self._session.remove_consumer(self.describe)
            finally:
                if self._offsets is not None:
                    await self._offsets.close()

    def describe(self) -> ConsumerData:
        """What heartbeats tell of it."""
        start = self.options.start
        where = "TIMESTAMP" if isinstance(start, datetime) else f"{start.upper()}_OFFSET"
        return ConsumerData(
            group_name=self.options.group,
            consume_from_where=f"CONSUME_FROM_{where}",
            consume_type="CONSUME_PASSIVELY",
            message_model="BROADCASTING" if self.options.is_broadcast else "CLUSTERING",
            subscription_data_set=[subscription.data() for subscription in self._subscriptions.values()],
        )

    def spawn(self, work: Awaitable[None], name: str) -> None:
        """A task that ends with the consumer."""
        task = asyncio.ensure_future(work)
        task.set_name(f"metaq {self.options.group} {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Taking

    async def take(self, count_max: int) -> Taken | None:
        """The next messages, all of one queue; None once it is closing."""
        while not self.is_closing:
            self._something.clear()
            with self._guard:
                taken = self._take(count_max)
            if taken is not None:
                return taken
            await self._something.wait()
        return None

    def take_now(self, count_max: int) -> Taken | None:
        """What is there, if anything."""
        if self.is_closing:
            return None
        with self._guard:
            return self._take(count_max)

    def take_waiting(self, count_max: int, timeout: float | None = None) -> Taken | None:
        """The same for a thread; None also where none came in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._guard:
            while not self.is_closing:
                taken = self._take(count_max)
                if taken is not None:
                    # One wakes the next, so that as many run as there is work for.
                    if self._idle_threads and any(map(self._may_give, self.buffers.values())):
                        self._more.notify()
                    return taken
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._idle_threads += 1
                try:
                    self._more.wait(left)
                finally:
                    self._idle_threads -= 1
        return None

    def _take(self, count_max: int) -> Taken | None:
        chosen = self._turn_of
        if chosen is None or self._turn_left <= 0 or not self._may_give(chosen):
            chosen = self._turns.next([buffer for buffer in self.buffers.values() if self._may_give(buffer)])
            if chosen is None:
                return None
            self._turn_of = chosen
            self._turn_left = 1 if self.options.priority else TURN_MESSAGES
        messages = chosen.take(count_max)
        self._turn_left -= len(messages)
        return chosen, messages

    def settle(self, buffer: QueueBuffer, messages: Iterable[Message]) -> None:
        """They are done with; any thread may say so."""
        with self._guard:
            buffer.settle(messages)
            is_awaited = buffer.awaits_room and buffer.has_room
            if is_awaited:
                buffer.awaits_room = False
        if is_awaited:
            self._on_loop(buffer.room.set)
        if self.options.ordered:
            self.wake()

    def give_back(self, buffer: QueueBuffer, messages: Sequence[Message]) -> None:
        """What was taken comes again, first and in its order."""
        with self._guard:
            buffer.give_back(messages)
        self.wake()

    def wake(self) -> None:
        """Something may be there to take; any thread may say so."""
        with self._guard:
            if self._idle_threads:
                self._more.notify_all()
        self._on_loop(self._something.set)

    def wake_later(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.wake)

    def _on_loop(self, function: Callable[[], None]) -> None:
        loop = self._loop
        if loop is None:
            return
        with contextlib.suppress(RuntimeError):  # The loop has ended: nobody waits any more.
            loop.call_soon_threadsafe(function)

    def _may_give(self, buffer: QueueBuffer) -> bool:
        if buffer.dropped or buffer.revoked or not len(buffer) or self._is_paused(buffer.queue):
            return False
        if not self.options.ordered:
            return True
        now = time.monotonic()
        return not buffer.in_hand and buffer.locked_until > now and buffer.resting_until <= now

    def _is_paused(self, queue: Queue) -> bool:
        # Asked for every message: a queue is not looked up where none is paused.
        return self._all_paused or (bool(self._paused) and queue in self._paused)

    def pause(self, queues: Iterable[Queue] | None = None) -> None:
        """Gives and pulls nothing of these queues, or of any, until resumed; the queues stay ours."""
        if queues is None:
            self._all_paused = True
        else:
            self._paused.update(queues)

    def resume(self, queues: Iterable[Queue] | None = None) -> None:
        if queues is None:
            self._all_paused = False
            self._paused.clear()
        else:
            self._paused.difference_update(queues)
        self.wake()

    # Offsets

    async def commit(self) -> None:
        """Makes known how far every queue is settled."""
        fresh = {
            queue: buffer.committable
            for queue, buffer in self.buffers.items()
            if not buffer.dropped and self._committed.get(queue) != buffer.committable
        }
        if fresh:
            await self.offsets.commit(fresh)
            self._committed.update(fresh)

    async def reset(self, offsets: dict[Queue, int]) -> None:
        """Goes on elsewhere in these queues; what was pulled of them and is not settled does not count. In
        order the message in hand is waited for, or another one would overtake it."""
        async with self._changing:
            mine = {queue: offset for queue, offset in offsets.items() if queue in self.buffers}
            await asyncio.gather(*(self._finish_in_hand(self.buffers[queue]) for queue in mine))
            for queue, queue_offset in mine.items():
                locked_until = self.buffers[queue].locked_until
                await self._drop(queue)
                self._begin(queue, queue_offset, locked_until)
            if mine:
                await self.offsets.commit(mine)
                self._committed.update(mine)

    async def _first_offset(self, queue: Queue) -> int:
        committed = await self.offsets.read(queue)
        if committed is not None and committed >= 0:
            self._committed[queue] = committed
            return committed
        start = self.options.start
        # A queue that came later has nothing older than us; what it got before we saw it must not be lost.
        if queue.topic == self.options.retry_topic or start == "first" or self._shares.has_appeared(queue):
            return await first_offset(self._session, queue)
        if isinstance(start, datetime):
            return await offset_at(self._session, queue, int(start.timestamp() * 1000))
        return await end_offset(self._session, queue)

    # Our share

    def rebalance_soon(self) -> None:
        self._rebalance_now.set()

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
                _log.exception("group %s: the rebalance failed and is tried again", self.options.group)
            lacking = any(topic not in self._shares.known for topic in self._shares.topics)
            unmet = not self.options.ordered and self._wanted != self.buffers.keys()
            wait_s = ROUTE_WANTED_INTERVAL_S if lacking or unmet else REBALANCE_INTERVAL_S
            # Not wait_for, which loses a cancellation that comes together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._rebalance_now.wait()

    async def _change_to(self, wanted: frozenset[Queue]) -> None:
        async with self._changing:
            lost = frozenset(self.buffers) - wanted
            if lost:
                await self._tell(frozenset(), lost)
                await asyncio.gather(*(self._release(queue) for queue in lost))
            gained = frozenset() if self.is_closing else wanted - frozenset(self.buffers)
            if self.options.ordered and gained:
                gained = await self._locks.lock(gained)
            if gained:
                gained = frozenset(filter(None, await asyncio.gather(*(self._acquire(q) for q in gained))))
            if gained:
                await self._commit_places()
                await self._tell(gained, frozenset())

    async def _commit_places(self) -> None:
        """Where we begin is the group's place from now on: what comes while nobody runs is not skipped."""
        try:
            await self.commit()
        except (MetaqError, OSError) as error:
            _log.info("group %s: where it begins is committed later: %s", self.options.group, error)

    async def _acquire(self, queue: Queue) -> Queue | None:
        try:
            queue_offset = await self._first_offset(queue)
        except MetaqError as error:
            _log.info("group %s cannot begin %s yet: %s", self.options.group, queue, error)
            return None
        self._begin(queue, queue_offset, time.monotonic() + LOCK_TRUSTED_S)
        return queue

    def _begin(self, queue: Queue, queue_offset: int, locked_until: float) -> None:
        buffer = QueueBuffer(queue, queue_offset, self.options.limits)
        buffer.locked_until = locked_until
        with self._guard:
            self.buffers[queue] = buffer
        self._pulls[queue] = asyncio.create_task(
            self._keep_pulling(buffer), name=f"metaq {self.options.group} pull {queue.topic}/{queue.id}"
        )

    async def _release(self, queue: Queue) -> None:
        """Gives a queue up: what is settled is committed, and in order its last message is waited for."""
        buffer = self.buffers[queue]
        await self._finish_in_hand(buffer)
        try:
            if self._committed.get(queue) != buffer.committable:
                await self.offsets.commit({queue: buffer.committable})
        except (MetaqError, OSError) as error:
            _log.info("group %s gives %s up without a last commit: %s", self.options.group, queue, error)
        await self._drop(queue)
        if self.options.ordered:
            await self._locks.unlock(frozenset((queue,)))

    async def _finish_in_hand(self, buffer: QueueBuffer) -> None:
        """Gives nothing more of it, and in order waits until what was given is settled."""
        buffer.revoked = True
        if self.options.ordered and buffer.in_hand:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RELEASE_TIMEOUT_S):
                    while buffer.in_hand and buffer.locked_until > time.monotonic():
                        await asyncio.sleep(0.01)

    async def _drop(self, queue: Queue) -> None:
        with self._guard:
            self.buffers.pop(queue).dropped = True
            self._turns.forget(queue)
        self._committed.pop(queue, None)
        await _end([self._pulls.pop(queue)])

    async def _tell(self, gained: frozenset[Queue], lost: frozenset[Queue]) -> None:
        if self.options.on_rebalance is None:
            return
        try:
            await call_user(self.options.on_rebalance, gained, lost)
        except Exception:
            _log.exception("group %s: the rebalance listener failed", self.options.group)

    async def _want_locks(self) -> None:
        """Asks again for queues that are ours by share but still locked by the member who had them."""
        while True:
            await asyncio.sleep(LOCK_WANTED_INTERVAL_S)
            if self._wanted - frozenset(self.buffers):
                try:
                    await self._change_to(self._wanted)
                except Exception:
                    _log.exception("group %s: locks could not be asked for", self.options.group)

    async def _renew_locks(self) -> None:
        asked = time.monotonic()
        held = frozenset(self.buffers)
        granted = await self._locks.lock(held) if held else held
        for queue in granted & frozenset(self.buffers):
            self.buffers[queue].locked_until = asked + LOCK_TRUSTED_S
        self.wake()
        if held - granted:
            # By itself: a rebalance may take long, and the next renewal must not wait for it.
            self.spawn(self._drop_lapsed(held - granted), "lapsed locks")

    async def _drop_lapsed(self, queues: frozenset[Queue]) -> None:
        async with self._changing:
            for queue in queues & frozenset(self.buffers):
                if self.buffers[queue].locked_until < time.monotonic():
                    # Another member may have it: what we hold of it is worth nothing.
                    await self._drop(queue)

    # Pulling

    async def _keep_pulling(self, buffer: QueueBuffer) -> None:
        queue = buffer.queue
        subscription = self._subscriptions[queue.topic]
        while not buffer.dropped:
            if self._is_paused(queue):
                await asyncio.sleep(PAUSED_PAUSE_S)
                continue
            buffer.bytes_max = self._bytes_share()
            if buffer.is_full:
                await self._room(buffer)
                continue
            count = min(self.options.pull_count, max(1, buffer.limits.count_max - buffer.unsettled))
            room_bytes = max(1, buffer.bytes_max - buffer.bytes_held)
            try:
                try:
                    pull = await self._puller.pull(
                        queue, buffer.pull_offset, subscription, count, bytes_max=room_bytes
                    )
                except Refused as error:
                    await self._refused(queue, error)
                else:
                    await self._keep(buffer, pull)
            except MetaqError as error:
                _log.info("group %s: pull of %s: %s", self.options.group, queue, error)
                await asyncio.sleep(FAILURE_PAUSE_S)
            except Exception:
                _log.exception("group %s: pull of %s failed", self.options.group, queue)
                await asyncio.sleep(FAILURE_PAUSE_S)

    def _bytes_share(self) -> int:
        """What one queue may hold: equal shares, so that one which stands still stops no other."""
        return max(1, self.options.limits.bytes_max // max(1, len(self.buffers)))

    async def _room(self, buffer: QueueBuffer) -> None:
        """Waits until there is some, for a while."""
        buffer.room.clear()
        buffer.awaits_room = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FULL_PAUSE_S):
                await buffer.room.wait()

    async def _keep(self, buffer: QueueBuffer, pull: Pull) -> None:
        if pull.is_moved:
            if buffer.unsettled or pull.next_offset == buffer.pull_offset:
                await asyncio.sleep(PAUSED_PAUSE_S)  # Until what we hold of the old place is settled.
            else:
                buffer.move(pull.next_offset)
                # The group was put elsewhere: what it had committed counts no longer, be it the same again.
                self._committed.pop(buffer.queue, None)
            return
        for message, problem in pull.unreadable:
            # It would fail for ever; the dead letters keep it for somebody who can read it.
            _log.error("group %s: %s goes to the dead letters: %s", self.options.group, message.id, problem)
            if not self.options.is_broadcast and not await self._buried(message):
                await asyncio.sleep(FAILURE_PAUSE_S)
                return  # The same pull again: what was buried already may be so twice.
        with self._guard:
            buffer.put(pull.messages, pull.next_offset)
            if self._idle_threads:
                self._more.notify()
        if pull.messages:
            self._something.set()

    async def _buried(self, message: Message) -> bool:
        try:
            await send_back(self, message, DEAD_LETTER_LEVEL)
        except MetaqError as error:
            _log.warning("group %s: %s: %s", self.options.group, message.id, error)
            return False
        return True

    async def _refused(self, queue: Queue, error: Refused) -> None:
        if error.code in (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST):
            await self._session.beat()
            await asyncio.sleep(BUSY_PAUSE_S)
        elif error.code in (ResponseCode.FLOW_CONTROL, ResponseCode.SYSTEM_BUSY):
            await asyncio.sleep(BUSY_PAUSE_S)
        else:
            _log.warning("group %s: pull of %s: %s", self.options.group, queue, error)
            await asyncio.sleep(FAILURE_PAUSE_S)

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except (MetaqError, OSError) as error:
                _log.info("group %s: %s", self.options.group, error)
            except Exception:
                _log.exception("group %s: background work failed", self.options.group)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    while left := [task for task in tasks if not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=END_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)
