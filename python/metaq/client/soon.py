"""Messages that may wait a moment for others: kept in a bounded buffer, sent in batches per queue."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from metaq.client.message import Outgoing
from metaq.client.options import Order, ProducerOptions
from metaq.client.picking import by_key
from metaq.client.results import SendResult
from metaq.client.routes import Queue
from metaq.client.sending import Sender
from metaq.errors import NotDelivered, NotSent

FAILURES_KEPT_MAX: Final = 100
UNDER_WAY_MAX: Final = 4
"""Batches of one topic at a time whose order among each other nobody asked for."""


@dataclass(slots=True)
class Waiting:
    """One message in the buffer."""

    message: Outgoing
    size_bytes: int
    future: asyncio.Future[SendResult]


@dataclass(slots=True)
class Lane:
    """What waits for one queue, or for any queue of a topic."""

    queue: Queue | None
    under_way: asyncio.Semaphore
    """One at a time where order counts."""
    waiting: deque[Waiting] = field(default_factory=deque)
    size_bytes: int = 0
    is_driven: bool = False
    due: asyncio.Event = field(default_factory=asyncio.Event)
    """There is a batch's worth, or somebody waits for it."""


class Soon:
    """The buffer of one producer."""

    def __init__(self, sender: Sender, options: ProducerOptions) -> None:
        self._sender = sender
        self._options = options
        self._budget = Budget(options.buffer_bytes_max)
        self._lanes: dict[tuple[str, Queue | None], Lane] = {}
        self._open: set[asyncio.Future[SendResult]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flushing = 0
        self._failed_count = 0
        self._failures: list[Exception] = []

    @property
    def buffered_bytes(self) -> int:
        return self._budget.taken

    async def put(self, order: Order) -> asyncio.Future[SendResult]:
        """Takes it into the buffer and gives its future; waits while the buffer is full.

        Raises NoRoute where the topic has no queue, NotSent where the buffer stays full for too long.
        """
        queue = order.queue
        if order.key is not None:
            queue = by_key(await self._sender.route(order.message.topic), order.key)
        size_bytes = order.message.size_bytes()
        if not self._budget.take_now(size_bytes):
            await self._take_later(size_bytes, order.timeout_s)
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        self._open.add(future)
        future.add_done_callback(self._done)
        future.add_done_callback(lambda _: self._budget.give(size_bytes))
        self._add(order.message, size_bytes, queue, future)
        return future

    async def flush(self, timeout: float | None = None) -> None:
        """Sends everything that is in the buffer now and waits for it; raises NotDelivered for what failed
        since the last flush, or is still open when the time is over."""
        self._flushing += 1
        try:
            for lane in self._lanes.values():
                lane.due.set()
            if self._open:
                await asyncio.wait(self._open, timeout=timeout)
        finally:
            self._flushing -= 1
        late = sum(not future.done() for future in self._open)
        count, failures = self._failed_count + late, self._failures
        self._failed_count, self._failures = 0, []
        if late:
            failures.append(NotSent(f"{late} messages were still being sent when the time was over"))
        if count:
            raise NotDelivered(count, failures)

    async def close(self, timeout: float) -> None:
        """Flushes, then gives up what is left; raises NotDelivered."""
        try:
            await self.flush(timeout)
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for future in list(self._open):
                if not future.done():
                    future.set_exception(NotSent("the producer was closed before it was sent"))

    # Inside

    async def _take_later(self, size_bytes: int, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._budget.take(size_bytes)
        except TimeoutError:
            raise NotSent(
                f"the buffer of {self._options.buffer_bytes_max} bytes was full for {timeout_s:g} s",
                hint="brokers do not take messages as fast as they are sent",
            ) from None

    def _add(
        self, message: Outgoing, size_bytes: int, queue: Queue | None, future: asyncio.Future[SendResult]
    ) -> None:
        name = (message.topic, queue)
        lane = self._lanes.get(name)
        if lane is None:
            lane = Lane(queue, asyncio.Semaphore(UNDER_WAY_MAX if queue is None else 1))
            self._lanes[name] = lane
        if not lane.is_driven:
            lane.is_driven = True
            self._spawn(self._drive(lane))
        lane.waiting.append(Waiting(message, size_bytes, future))
        lane.size_bytes += size_bytes
        if self._flushing or lane.size_bytes >= self._options.batch_bytes_max:
            lane.due.set()

    async def _drive(self, lane: Lane) -> None:
        while lane.waiting:
            if not lane.due.is_set() and self._options.linger_s:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._options.linger_s):
                        await lane.due.wait()
            # More gathers while the ones before are under way: the busier, the larger the batches.
            await lane.under_way.acquire()
            batch = self._take(lane)
            if lane.size_bytes < self._options.batch_bytes_max and not self._flushing:
                lane.due.clear()
            self._spawn(self._send(lane, batch))
        lane.is_driven = False

    def _take(self, lane: Lane) -> list[Waiting]:
        batch: list[Waiting] = []
        size_bytes = 0
        while lane.waiting:
            first = lane.waiting[0]
            alone = not first.message.batchable
            if batch and (alone or size_bytes + first.size_bytes > self._options.batch_bytes_max):
                break
            lane.waiting.popleft()
            lane.size_bytes -= first.size_bytes
            if first.future.done():  # Its sender has changed their mind.
                continue
            batch.append(first)
            size_bytes += first.size_bytes
            if alone:
                break
        return batch

    async def _send(self, lane: Lane, batch: list[Waiting]) -> None:
        try:
            if not batch:
                return
            messages = [waiting.message for waiting in batch]
            results = await self._sender.send_untold(messages, self._options.timeout_s, lane.queue)
        except Exception as error:
            for waiting in batch:
                if not waiting.future.done():
                    waiting.future.set_exception(error)
        else:
            for waiting, result in zip(batch, results, strict=True):
                if not waiting.future.done():
                    waiting.future.set_result(result)
        finally:
            lane.under_way.release()

    def _done(self, future: asyncio.Future[SendResult]) -> None:
        self._open.discard(future)
        if future.cancelled():
            return
        error = future.exception()  # Looked at: a flush or the close reports it, if nobody else does.
        if error is not None:
            self._failed_count += 1
            if len(self._failures) < FAILURES_KEPT_MAX and isinstance(error, Exception):
                self._failures.append(error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Budget:
    """So many bytes; who wants more than are left waits for their turn."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def taken(self) -> int:
        return self._taken

    def take_now(self, size_bytes: int) -> bool:
        """Whether there was enough. What is larger than the whole is let in alone."""
        if self._waiting or not self._fits(size_bytes):
            return False
        self._taken += size_bytes
        return True

    async def take(self, size_bytes: int) -> None:
        """Waits until there is enough."""
        if self.take_now(size_bytes):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give(size_bytes)
            raise

    def give(self, size_bytes: int) -> None:
        self._taken -= size_bytes
        while self._waiting:
            wanted, future = self._waiting[0]
            if future.done():
                self._waiting.popleft()
            elif self._fits(wanted):
                self._waiting.popleft()
                self._taken += wanted
                future.set_result(None)
            else:
                return

    def _fits(self, size_bytes: int) -> bool:
        return self._taken == 0 or self._taken + size_bytes <= self._bytes_max
