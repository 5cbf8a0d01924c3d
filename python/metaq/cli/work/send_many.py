"""Sending many messages: in batches, at a rate, with a count of what became of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from metaq.errors import MetaqError, NotDelivered

if TYPE_CHECKING:
    from metaq._core import SendFuture
    from metaq.cli.work.message_sources import Outbound
    from metaq.client.producer.sync_producer import Producer

BUFFER_BYTES_MAX: Final = 8 * 1024 * 1024
FLUSH_AFTER_INTERRUPT_S: Final = 5.0
FAULTS_SHOWN: Final = 10


@dataclass(slots=True)
class Tally:
    """The outcome of many sends. Callbacks count in a thread of their own."""

    noun: str = "message"
    """The word for the numbers in `faults`."""
    sent: int = 0
    failed: int = 0
    faults: list[str] = field(default_factory=list)
    """The first ones."""
    is_interrupted: bool = False
    seconds: float = 0.0
    _waiting: int = 0
    """Messages whose outcome is not known."""
    _changing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def per_second(self) -> float | None:
        return self.sent / self.seconds if self.seconds > 0 else None

    def watch(self, number: int, future: SendFuture) -> None:
        with self._changing:
            self._waiting += 1
        future.add_done_callback(lambda done: self._count(number, done))

    def end(self) -> None:
        """Counts messages without an outcome as failed."""
        with self._changing:
            self.failed += self._waiting
            if self._waiting:
                self.faults.append(f"{self._waiting} messages were under way when the command ended")
            self._waiting = 0

    def fail(self, number: int, fault: str) -> None:
        with self._changing:
            self.failed += 1
            if len(self.faults) < FAULTS_SHOWN:
                self.faults.append(f"{self.noun} {number}: {fault}")

    def _count(self, number: int, future: SendFuture) -> None:
        error = future.exception()
        with self._changing:
            self._waiting -= 1
            self.sent += error is None
        if error is not None:
            self.fail(number, str(error))


def send_many(
    producer: Producer,
    topic: str,
    messages: Iterator[Outbound],
    *,
    noun: str,
    rate: float | None,
    advance: Callable[[int], None],
) -> Tally:
    """Sends all messages and returns what became of them. A message that fails does not end it; Ctrl-C does,
    after the messages under way had a moment to arrive."""
    tally = Tally(noun)
    began_s = time.monotonic()
    try:
        for message in _paced(messages, rate):
            advance(1)
            if message.fault is not None:
                tally.fail(message.number, message.fault)
                continue
            try:
                future = producer.send_soon(topic, message.body, **message.options)
            except MetaqError as error:
                tally.fail(message.number, str(error))
                continue
            tally.watch(message.number, future)
        _flush(producer, None)
    except KeyboardInterrupt:
        tally.is_interrupted = True
        _flush(producer, FLUSH_AFTER_INTERRUPT_S)
    tally.seconds = time.monotonic() - began_s
    return tally


def _flush(producer: Producer, timeout_s: float | None) -> None:
    # Callbacks count the messages that fail.
    with suppress(NotDelivered):
        producer.flush(timeout_s)


def _paced(messages: Iterator[Outbound], rate: float | None) -> Iterator[Outbound]:
    """Yields the messages evenly spread over time, and catches up for a second at most."""
    due_s = time.monotonic()
    for message in messages:
        if rate is not None:
            wait_s = due_s - time.monotonic()
            if wait_s > 0:
                time.sleep(wait_s)
            due_s = max(due_s, time.monotonic() - 1) + 1 / rate
        yield message
