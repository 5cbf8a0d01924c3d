"""Messages of `send_soon` on asyncio that cannot enter the buffer yet.

They wait for room, or, with a sharding key, until the queues of their topic are known. `send_soon` never
waits: it accepts a message at once and returns its future. At most `buffer_bytes_max` bytes wait here, and
`Producer.drain` waits until nothing is left.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metaq._core import AsyncSendFuture
from metaq.errors import MetaqError, NotSent

if TYPE_CHECKING:
    from metaq.client.producer.options import PreparedSend, ProducerOptions
    from metaq.client.producer.sending import Sender
    from metaq.client.tasks import Tasks

Enter = Callable[[dict[str, Any]], AsyncSendFuture | None]
"""Puts a message into the buffer. Returns None if there is no room. Raises MetaqError."""


def buffer_full(options: ProducerOptions, timeout_s: float) -> NotSent:
    """Returns the error for a message that found no room in the buffer in time."""
    return NotSent(
        f"the buffer of {options.buffer_bytes_max} bytes was full for {timeout_s:g} s",
        hint="the brokers do not take messages as fast as you send them",
    )


@dataclass(slots=True, eq=False)
class WaitingSend:
    """One message that waits."""

    arguments: dict[str, Any]
    """The arguments of the buffer's put. The queue is added when it is known."""
    topic: str
    key: str | None
    timeout_s: float
    size_bytes: int
    future: AsyncSendFuture
    epoch: int
    deadline: float
    waits_for_queue: bool
    timer: asyncio.TimerHandle | None = None
    is_settled: bool = False


class WaitingSends:
    """The messages of one producer that wait, in their order. Only the event loop uses it."""

    def __init__(
        self,
        options: ProducerOptions,
        sender: Sender,
        tasks: Tasks,
        enter: Enter,
        on_failure: Callable[[Exception], None],
        on_change: Callable[[], None],
    ) -> None:
        self._options = options
        self._sender = sender
        self._tasks = tasks
        self._enter = enter
        self._on_failure = on_failure
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._for_room: deque[WaitingSend] = deque()
        self._for_queues: dict[str, deque[WaitingSend]] = {}
        """Topic → messages with a key, whose queue nobody knows yet."""
        self.held_bytes = 0
        self._epoch = 0
        self._unsettled: dict[int, int] = {}
        """Epoch → how many messages of it wait. Each flush begins a new epoch."""
        self._flushing: dict[asyncio.Future[None], int] = {}
        self._draining: deque[asyncio.Future[None]] = deque()

    def __bool__(self) -> bool:
        return bool(self._unsettled)

    def blocks(self, prepared: PreparedSend) -> bool:
        """Whether messages wait that this one must not overtake."""
        return bool(self._for_room) or (
            prepared.key is not None and prepared.message.topic in self._for_queues
        )

    def add(
        self, prepared: PreparedSend, arguments: dict[str, Any], size_bytes: int, *, needs_queue: bool
    ) -> AsyncSendFuture:
        """Lets a message wait. Raises NotSent if too many wait already."""
        limit = self._options.buffer_bytes_max
        if self.held_bytes and self.held_bytes + size_bytes > limit:
            raise NotSent(
                f"the buffer of {limit} bytes is full, and as many bytes wait for room in it",
                hint="`await producer.send_soon(…)` waits for room; buffer_bytes_max is the limit",
            )
        future = AsyncSendFuture.waiting(self._loop)
        deadline = self._loop.time() + prepared.timeout_s
        waiting = WaitingSend(
            arguments,
            prepared.message.topic,
            prepared.key,
            prepared.timeout_s,
            size_bytes,
            future,
            self._epoch,
            deadline,
            needs_queue,
        )
        waiting.timer = self._loop.call_at(deadline, self._expire, waiting)
        self.held_bytes += size_bytes
        self._unsettled[self._epoch] = self._unsettled.get(self._epoch, 0) + 1
        if needs_queue:
            self._find_queue(waiting)
        else:
            self._for_room.append(waiting)
        self._on_change()
        return future

    def serve(self) -> None:
        """Lets messages enter the buffer while it has room."""
        line = self._for_room
        while line:
            waiting = line[0]
            if not waiting.is_settled:
                try:
                    entered = self._enter(waiting.arguments)
                except MetaqError as error:
                    self._refuse(waiting, error)
                else:
                    if entered is None:
                        return
                    waiting.future._enter(entered)
                    self._settled(waiting)
            line.popleft()

    async def drain(self) -> None:
        """Returns when nothing waits. Callers return one after the other, so that each may send again."""
        if self._unsettled or self._draining:
            turn: asyncio.Future[None] = self._loop.create_future()
            self._draining.append(turn)
            self._wake_one()
            try:
                await turn
            finally:
                self._loop.call_soon(self._wake_one)

    def begin_flush(self) -> int:
        """Returns the number of this flush: messages that wait now belong to it, later ones do not."""
        self._epoch += 1
        return self._epoch

    def count_before(self, flush: int) -> int:
        """Returns how many messages of a flush still wait."""
        return sum(count for epoch, count in self._unsettled.items() if epoch < flush)

    async def wait_for(self, flush: int) -> None:
        """Waits until no message of a flush waits here any more."""
        if self.count_before(flush):
            done: asyncio.Future[None] = self._loop.create_future()
            self._flushing[done] = flush
            try:
                await done
            finally:
                del self._flushing[done]

    def refuse_all(self, error: Exception) -> None:
        """Gives up everything that waits, because the producer closes."""
        for waiting in list(self._all()):
            self._refuse(waiting, error)
        self._for_room.clear()
        self._for_queues.clear()
        self._wake_one()

    @property
    def count(self) -> int:
        """How many messages wait."""
        return sum(self._unsettled.values())

    def take_all(self) -> Iterator[WaitingSend]:
        """Yields what waits for room, when the event loop has ended and nobody else will serve it."""
        while self._for_room:
            waiting = self._for_room.popleft()
            if not waiting.is_settled:
                yield waiting

    def sent_at_exit(self, waiting: WaitingSend) -> None:
        """Counts a message of `take_all` that is in the buffer now. No event loop runs any more."""
        self._unsettled[waiting.epoch] -= 1

    def _all(self) -> Iterator[WaitingSend]:
        yield from self._for_room
        for line in self._for_queues.values():
            yield from line

    def _find_queue(self, waiting: WaitingSend) -> None:
        topic = waiting.topic
        line = self._for_queues.get(topic)
        if line is not None:
            line.append(waiting)
            return
        self._for_queues[topic] = deque((waiting,))
        self._tasks.spawn(self._find_queues(topic, self._for_queues[topic]), f"queues of {topic}")

    async def _find_queues(self, topic: str, line: deque[WaitingSend]) -> None:
        while line:
            waiting = line[0]
            key = waiting.key
            assert key is not None, "a message without a key waits for room alone"
            if not waiting.is_settled:
                try:
                    left_s = max(waiting.deadline - self._loop.time(), 0.0)
                    queue = await self._sender.queue_of_key(topic, key, left_s)
                    waiting.arguments["queue"] = (queue.broker, queue.id)
                    waiting.waits_for_queue = False
                except MetaqError as error:
                    # The topic has no route for the messages behind it either.
                    behind = [waiting] if error.retriable else list(line)
                    for each in behind:
                        self._refuse(each, error)
            if not waiting.is_settled:
                self._for_room.append(waiting)
            line.popleft()
            if not line and self._for_queues.get(topic) is line:
                del self._for_queues[topic]  # From now on, messages of the topic wait for room at most.
            self.serve()

    def _expire(self, waiting: WaitingSend) -> None:
        if waiting.waits_for_queue:
            error = NotSent(f"{waiting.topic} had no writable queue for {waiting.timeout_s:g} s")
        else:
            error = buffer_full(self._options, waiting.timeout_s)
        self._refuse(waiting, error)

    def _refuse(self, waiting: WaitingSend, error: Exception) -> None:
        if not waiting.is_settled:
            waiting.future._refuse(error)
            self._on_failure(error)
            waiting.arguments.clear()  # The line may keep it for a while.
            self._settled(waiting)

    def _settled(self, waiting: WaitingSend) -> None:
        waiting.is_settled = True
        if waiting.timer is not None:
            waiting.timer.cancel()
        self.held_bytes -= waiting.size_bytes
        left = self._unsettled[waiting.epoch] - 1
        if left:
            self._unsettled[waiting.epoch] = left
            return
        del self._unsettled[waiting.epoch]
        for done, flush in self._flushing.items():
            if not done.done() and not self.count_before(flush):
                done.set_result(None)
        if not self._unsettled:
            self._on_change()
            self._wake_one()

    def _wake_one(self) -> None:
        while self._draining and not self._unsettled:
            turn = self._draining.popleft()
            if not turn.done():
                turn.set_result(None)
                return
