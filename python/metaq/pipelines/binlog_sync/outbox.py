"""Changes on their way into the topic: in order for each table and queue, as many in a message as have
gathered.

A lane is one table in one queue. It has at most one message under way; what comes meanwhile gathers and is
the next message. So messages are small where little happens and large where much does, without a timer, and
a message that fails is sent again before anything behind it: no later one can overtake it. A message whose
answer was lost may be stored twice, which its sequence numbers tell.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from metaq.client.session.routes import Queue
from metaq.errors import CommandError, MetaqError, NotDurable
from metaq.pipelines.binlog_sync.messages import rows_message

log = logging.getLogger(__name__)

RETRY_PAUSE_S: Final = 0.5
WAIT_S: Final = 0.2
"""How often who waits for acknowledgements looks whether it is to stop."""


class Future(Protocol):
    """What `send_soon` gives."""

    def exception(self, timeout: float | None = None) -> Exception | None: ...
    def add_done_callback(self, callback: Callable[[Any], Any]) -> None: ...


class Producer(Protocol):
    """What sends; `metaq.Client.producer` makes one."""

    def send_soon(self, topic: str, body: bytes, *, tag: str, queue: Queue) -> Future: ...


class Stopped(Exception):
    """The run is to end."""


@dataclass(slots=True)
class Lane:
    """One table in one queue."""

    queue: Queue
    tag: str
    head: bytes
    waiting: deque[tuple[int, bytes]] = field(default_factory=deque)
    """Changes with the number each was put with."""
    committed: int = 0
    under_way: int | None = None
    """The number of the first change of the message that is under way; after a failure, of what waits."""


class Outbox:
    """Takes changes from one thread, and sends them; acknowledgements come in a thread of the client's."""

    def __init__(
        self, producer: Producer, *, message_bytes: int, buffer_bytes: int, is_stopping: Callable[[], bool]
    ) -> None:
        self._producer = producer
        self._message_bytes = message_bytes
        self._buffer_bytes = buffer_bytes
        self._is_stopping = is_stopping
        self._changed = threading.Condition()
        self._busy: dict[int, Lane] = {}
        """Lanes with something under way, by their identity."""
        self._put = 0
        self._held_bytes = 0
        self._failure: Exception | None = None
        self.rows = 0
        self.bytes = 0
        self.messages = 0
        self.retries = 0

    @property
    def put_count(self) -> int:
        """How many changes were put so far."""
        return self._put

    def put(self, lane: Lane, committed: int, changes: Iterable[bytes]) -> None:
        """Takes changes of one lane, in order; waits while too much is held. Raises Stopped, MetaqError."""
        self._wait(lambda: self._held_bytes < self._buffer_bytes)
        with self._changed:
            waiting = lane.waiting
            for change in changes:
                self._put += 1
                self._held_bytes += len(change)
                waiting.append((self._put, change))
            lane.committed = committed
            if lane.under_way is None:
                self._send_next(lane)

    def lowest_open(self) -> int:
        """Every change with a smaller number is acknowledged."""
        with self._changed:
            return min((lane.under_way or self._put for lane in self._busy.values()), default=self._put + 1)

    def wait_all(self, timeout_s: float | None = None) -> bool:
        """Waits until everything is acknowledged; False where the time was not enough. Raises as `put`."""
        return self._wait(lambda: not self._busy, timeout_s)

    def send_barrier(self, queues: Iterable[Queue], tag: str, body: Callable[[int], bytes]) -> None:
        """Everything before it is acknowledged first, and it is itself before anything that follows."""
        self._wait(lambda: not self._busy)
        for number, queue in enumerate(queues):
            lane = Lane(queue, tag, b"")
            with self._changed:
                self._put += 1
                self._start(lane, body(number), self._put, 0, 0)
        self._wait(lambda: not self._busy)

    def check(self) -> None:
        """Raises what ended the sending, if anything did; for those who have nothing to put."""
        with self._changed:
            self._raise_failure()

    # Inside

    def _wait(self, until: Callable[[], bool], timeout_s: float | None = None) -> bool:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while True:
                self._raise_failure()
                if until():
                    return True
                if deadline is None:
                    if self._is_stopping():
                        raise Stopped
                    self._changed.wait(WAIT_S)
                else:
                    left_s = deadline - time.monotonic()
                    if left_s <= 0:
                        return False
                    self._changed.wait(left_s)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _send_next(self, lane: Lane) -> None:
        """As many as fit into a message. The condition is held."""
        number, change = lane.waiting.popleft()
        first, changes, size_bytes = number, [change], len(change)
        while lane.waiting and size_bytes + len(lane.waiting[0][1]) <= self._message_bytes:
            change = lane.waiting.popleft()[1]
            changes.append(change)
            size_bytes += len(change)
        body = rows_message(lane.head, lane.committed, changes)
        self._start(lane, body, first, len(changes), size_bytes)

    def _start(self, lane: Lane, body: bytes, first: int, rows: int, held_bytes: int) -> None:
        lane.under_way = first
        self._busy[id(lane)] = lane
        self._submit(lane, body, rows, held_bytes)

    def _submit(self, lane: Lane, body: bytes, rows: int, held_bytes: int) -> None:
        try:
            future = self._producer.send_soon(lane.queue.topic, body, tag=lane.tag, queue=lane.queue)
        except MetaqError as error:
            self._go_on_after(error, lane, body, rows, held_bytes)
            return
        future.add_done_callback(lambda done: self._done(done, lane, body, rows, held_bytes))

    def _done(self, future: Future, lane: Lane, body: bytes, rows: int, held_bytes: int) -> None:
        error = future.exception(0)
        with self._changed:
            if error is not None:
                self._go_on_after(error, lane, body, rows, held_bytes)
                return
            self.rows += rows
            self.bytes += len(body)
            self.messages += 1
            self._held_bytes -= held_bytes
            if not lane.waiting:
                lane.under_way = None
                del self._busy[id(lane)]
            elif self._failure is None:
                self._send_next(lane)
            else:
                # Nothing more is sent, and what waits here stays open: no place behind it is safe.
                lane.under_way = lane.waiting[0][0]
            self._changed.notify_all()

    def _go_on_after(self, error: Exception, lane: Lane, body: bytes, rows: int, held_bytes: int) -> None:
        """Tries again, however often, what may succeed; anything else ends the run. The condition is held."""
        # What is stored less safely than it should be is no harm twice.
        may_succeed = getattr(error, "retriable", False) or isinstance(error, NotDurable)
        if self._is_stopping() or not may_succeed:
            self._failure = Stopped() if self._is_stopping() else _refused(lane, error)
            self._changed.notify_all()
            return
        self.retries += 1
        log.warning("%s: not stored, it is sent again: %s", lane.queue, error)
        timer = threading.Timer(RETRY_PAUSE_S, self._retry, (lane, body, rows, held_bytes))
        timer.daemon = True
        timer.start()

    def _retry(self, lane: Lane, body: bytes, rows: int, held_bytes: int) -> None:
        with self._changed:
            self._submit(lane, body, rows, held_bytes)


def _refused(lane: Lane, error: Exception) -> Exception:
    if not isinstance(error, MetaqError):
        return error
    return CommandError(
        f"a message of {lane.tag} for {lane.queue} is refused: {error}",
        hint="nothing was skipped; a run that follows begins with it again",
    )
