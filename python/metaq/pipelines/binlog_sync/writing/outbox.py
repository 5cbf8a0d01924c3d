"""Sends changes to the topic: in order for each table and queue, and many in a message when they come fast.

A lane is one table in one queue. It has at most one message in flight; changes that arrive meanwhile wait and
form the next message. So messages are small when few changes arrive and large when many do, without a timer.
A message that fails is sent again before anything after it, so no later one can overtake it. A message whose
answer was lost may be stored twice; its sequence numbers reveal that.
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
from metaq.errors import CommandError, MetaqError
from metaq.pipelines.binlog_sync.envelope import rows_message
from metaq.pipelines.send_errors import is_final

_log = logging.getLogger(__name__)

RETRY_PAUSE_S: Final = 0.5
WAIT_S: Final = 0.2
"""How often a wait for acknowledgements checks whether the run is to stop."""


class Future(Protocol):
    """The result of `send_soon`."""

    def exception(self, timeout: float | None = None) -> Exception | None: ...
    def add_done_callback(self, callback: Callable[[Any], Any]) -> None: ...


class Producer(Protocol):
    """The part of `metaq.Client.producer` that is used here."""

    def send_soon(self, topic: str, body: bytes, *, tag: str, queue: Queue) -> Future: ...


class Stopped(Exception):
    """The run was asked to stop."""


@dataclass(slots=True)
class Lane:
    """One table in one queue."""

    queue: Queue
    tag: str
    head: bytes
    waiting: deque[tuple[int, bytes]] = field(default_factory=deque)
    """Changes, each with its number."""
    committed_s: int = 0
    first_in_flight: int | None = None
    """The number of the first change of the message in flight; after a failure, of the first that waits."""


class Outbox:
    """Takes changes from one thread and sends them; acknowledgements arrive in a thread of the client."""

    def __init__(
        self, producer: Producer, *, message_bytes: int, buffer_bytes: int, is_stopping: Callable[[], bool]
    ) -> None:
        self._producer = producer
        self._message_bytes = message_bytes
        self._buffer_bytes = buffer_bytes
        self._is_stopping = is_stopping
        self._changed = threading.Condition()
        self._busy: dict[int, Lane] = {}
        """Lanes with a message in flight, by identity."""
        self._put = 0
        self._held_bytes = 0
        self._failure: Exception | None = None
        self.rows = 0
        self.bytes = 0
        self.messages = 0
        self.retries = 0

    @property
    def put_count(self) -> int:
        """The number of changes that were put so far."""
        return self._put

    def put(self, lane: Lane, committed_s: int, changes: Iterable[bytes]) -> None:
        """Takes changes of one lane in order; waits while the buffer is full. Raises Stopped, MetaqError."""
        self._wait(lambda: self._held_bytes < self._buffer_bytes)
        with self._changed:
            waiting = lane.waiting
            for change in changes:
                self._put += 1
                self._held_bytes += len(change)
                waiting.append((self._put, change))
            lane.committed_s = committed_s
            if lane.first_in_flight is None:
                self._send_next(lane)

    def lowest_open(self) -> int:
        """Returns the number below which every change is acknowledged."""
        with self._changed:
            return min(
                (lane.first_in_flight or self._put for lane in self._busy.values()), default=self._put + 1
            )

    def wait_all(self, timeout_s: float | None = None) -> bool:
        """Waits until everything is acknowledged; returns False on a time-out. Raises like `put`."""
        return self._wait(lambda: not self._busy, timeout_s)

    def send_barrier(self, queues: Iterable[Queue], tag: str, body: Callable[[int], bytes]) -> None:
        """Sends a message to each queue after everything before it is acknowledged, and waits for it."""
        self._wait(lambda: not self._busy)
        for number, queue in enumerate(queues):
            lane = Lane(queue, tag, b"")
            with self._changed:
                self._put += 1
                self._start(lane, body(number), self._put, 0, 0)
        self._wait(lambda: not self._busy)

    def check(self) -> None:
        """Raises the error that ended the sending, if any, for a caller that has nothing to put."""
        with self._changed:
            self._raise_failure()

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
        """Sends as many changes as fit into a message. The caller holds the condition."""
        number, change = lane.waiting.popleft()
        first, changes, size_bytes = number, [change], len(change)
        while lane.waiting and size_bytes + len(lane.waiting[0][1]) <= self._message_bytes:
            change = lane.waiting.popleft()[1]
            changes.append(change)
            size_bytes += len(change)
        body = rows_message(lane.head, lane.committed_s, changes)
        self._start(lane, body, first, len(changes), size_bytes)

    def _start(self, lane: Lane, body: bytes, first: int, rows: int, held_bytes: int) -> None:
        lane.first_in_flight = first
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
                lane.first_in_flight = None
                del self._busy[id(lane)]
            elif self._failure is None:
                self._send_next(lane)
            else:
                # Nothing more is sent. The waiting changes stay open, so the state cannot move past them.
                lane.first_in_flight = lane.waiting[0][0]
            self._changed.notify_all()

    def _go_on_after(self, error: Exception, lane: Lane, body: bytes, rows: int, held_bytes: int) -> None:
        """Sends the message again if that may succeed, and ends the run otherwise. The caller holds the
        condition."""
        if self._is_stopping() or is_final(error):
            self._failure = Stopped() if self._is_stopping() else _refused(lane, error)
            self._changed.notify_all()
            return
        self.retries += 1
        _log.warning("%s: the message was not stored and is sent again: %s", lane.queue, error)
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
        f"a message of {lane.tag} for {lane.queue} was refused: {error}",
        hint="no change was skipped; the next run sends the message again",
    )
