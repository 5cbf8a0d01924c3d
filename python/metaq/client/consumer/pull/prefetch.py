"""Messages that a consumer has pulled and not settled yet, of all its queues.

Pull loops put messages in; tasks and threads take them out and settle them. The state is guarded by one lock,
so threads take and settle without the event loop, and the loop only hears about it when it must act.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from metaq.client.consumer.pull.buffers import QueueBuffer, Turns

if TYPE_CHECKING:
    from metaq.client.consumer.options import ConsumerOptions
    from metaq.client.message import Message
    from metaq.client.session.routes import Queue

TURN_MESSAGES: Final = 32
"""The number of messages one queue gives in a row before the next queue has its turn."""

Taken = tuple[QueueBuffer, list["Message"]]
"""Messages of one queue, and the buffer that they are settled in."""


class Prefetch:
    """The buffers of one consumer, and whose turn it is."""

    def __init__(self, options: ConsumerOptions) -> None:
        self._options = options
        self.buffers: dict[Queue, QueueBuffer] = {}
        self.is_stopped = False
        """Nothing more is given out; messages that were taken may still be settled."""
        self._turns = Turns(priority=options.priority, patience=options.priority_patience)
        self._turn_of: QueueBuffer | None = None
        self._turn_left = 0
        self._paused: set[Queue] = set()
        self._all_paused = False
        self._lock = threading.Lock()
        """Guards the buffers."""
        self._ready = threading.Condition(self._lock)
        """Threads without a message wait here."""
        self._idle_threads = 0
        self._ready_on_loop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def in_hand(self) -> int:
        """The number of messages that were taken and not settled."""
        return sum(buffer.in_hand_together for buffer in self.buffers.values())

    @property
    def buffered_bytes(self) -> int:
        return sum(buffer.bytes_held for buffer in list(self.buffers.values()))

    @property
    def bytes_per_queue(self) -> int:
        """The bytes one queue may hold: equal shares, so a queue that stands still does not stop others."""
        return max(1, self._options.limits.bytes_max // max(1, len(self.buffers)))

    def may_inflate(self) -> bool:
        """Whether the queues together hold less than their limit. One compressed message may become larger
        than the share of its queue, and each queue may have one. Queues that are paused do not count: they
        must not stop others."""
        held = sum(buffer.bytes_held for buffer in self.buffers.values() if not self.is_paused(buffer.queue))
        return held < self._options.limits.bytes_max

    def start(self) -> None:
        """Must run on the event loop that `take` is awaited on."""
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        """Gives out nothing more and wakes everybody who waits."""
        self.is_stopped = True
        self.wake()

    # Queues

    def add(self, buffer: QueueBuffer) -> None:
        with self._lock:
            self.buffers[buffer.queue] = buffer

    def drop(self, queue: Queue) -> None:
        """Forgets a queue; messages that were taken from it can no longer be settled."""
        with self._lock:
            self.buffers.pop(queue).dropped = True
            self._turns.forget(queue)

    def replace(self, buffer: QueueBuffer) -> None:
        """Continues a queue with another buffer. Messages that were taken before can no longer be settled;
        in an ordered queue the next one waits for them all the same."""
        with self._lock:
            before = self.buffers[buffer.queue]
            before.dropped = True
            buffer.locked_until = before.locked_until
            buffer.previous = before
            self.buffers[buffer.queue] = buffer

    def put(self, buffer: QueueBuffer, messages: list[Message], next_offset: int) -> None:
        """Adds the result of a pull; runs on the event loop."""
        with self._lock:
            buffer.put(messages, next_offset)
            if self._idle_threads:
                self._ready.notify()
        if messages:
            self._ready_on_loop.set()

    def pause(self, queues: Iterable[Queue] | None = None) -> None:
        """Stops giving and pulling messages of these queues, or of all. The queues stay ours."""
        if queues is None:
            self._all_paused = True
        else:
            self._paused.update(queues)

    def resume(self, queues: Iterable[Queue] | None = None) -> None:
        """Continues with these queues, or with all."""
        if queues is None:
            self._all_paused = False
            self._paused.clear()
        else:
            self._paused.difference_update(queues)
        self.wake()

    def is_paused(self, queue: Queue) -> bool:
        # This runs for every message, so skip the lookup while nothing is paused.
        return self._all_paused or (bool(self._paused) and queue in self._paused)

    # Taking

    async def take(self, count_max: int) -> Taken | None:
        """Waits for the next messages, all of one queue. Returns None once it is stopped."""
        while not self.is_stopped:
            self._ready_on_loop.clear()
            with self._lock:
                taken = self._take(count_max)
            if taken is not None:
                return taken
            await self._ready_on_loop.wait()
        return None

    def take_now(self, count_max: int) -> Taken | None:
        """Returns messages that are there already, or None."""
        if self.is_stopped:
            return None
        with self._lock:
            return self._take(count_max)

    def take_waiting(self, count_max: int, timeout: float | None = None) -> Taken | None:
        """Does the same as `take` for a thread; also returns None when the timeout passes."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while not self.is_stopped:
                taken = self._take(count_max)
                if taken is not None:
                    # Each thread wakes the next one, so only as many run as there is work for.
                    if self._idle_threads and any(map(self._may_give, self.buffers.values())):
                        self._ready.notify()
                    return taken
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._idle_threads += 1
                try:
                    self._ready.wait(left)
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
            self._turn_left = 1 if self._options.priority else TURN_MESSAGES
        messages = chosen.take(count_max)
        self._turn_left -= len(messages)
        return chosen, messages

    def _may_give(self, buffer: QueueBuffer) -> bool:
        if buffer.dropped or buffer.revoked or not len(buffer) or self.is_paused(buffer.queue):
            return False
        if not self._options.ordered:
            return True
        now = time.monotonic()
        return not buffer.in_hand_together and buffer.locked_until > now and buffer.resting_until <= now

    # Settling

    def settle(self, buffer: QueueBuffer, messages: Iterable[Message]) -> None:
        """Marks messages as done. Any thread may call it."""
        with self._lock:
            buffer.settle(messages)
            is_awaited = buffer.awaits_room and buffer.has_room
            if is_awaited:
                buffer.awaits_room = False
        if is_awaited:
            self._on_loop(buffer.room.set)
        if self._options.ordered:
            self.wake()

    def give_back(self, buffer: QueueBuffer, messages: Sequence[Message]) -> None:
        """Returns taken messages to the front of their queue, in order. Any thread may call it."""
        with self._lock:
            buffer.give_back(messages)
        self.wake()

    def wake(self) -> None:
        """Lets everybody who waits for a message look again. Any thread may call it."""
        with self._lock:
            if self._idle_threads:
                self._ready.notify_all()
        self._on_loop(self._ready_on_loop.set)

    def wake_later(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.wake)

    def _on_loop(self, function: Callable[[], None]) -> None:
        loop = self._loop
        if loop is None:
            return
        with contextlib.suppress(RuntimeError):  # The loop has ended, so nobody waits on it.
            loop.call_soon_threadsafe(function)
