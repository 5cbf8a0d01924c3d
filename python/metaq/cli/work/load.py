"""The load of `metaq bench`: threads or batches that send, and a group that receives."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal
from uuid import uuid4

from metaq.cli.printing.progress import progress
from metaq.cli.work.latencies import Latencies
from metaq.errors import MetaqError

if TYPE_CHECKING:
    from metaq.client.message import Message
    from metaq.client.producer.sync_producer import Producer

StartPosition = Literal["earliest", "latest"]

IDLE_S: Final = 2.0
"""A receiver stops when nothing has come for this long."""
JOIN_S: Final = 30.0
"""A group must have its queues within this time."""


@dataclass(frozen=True, slots=True)
class Load:
    """The messages to send. They stop at the number or at the time, whichever comes first."""

    topic: str
    size_bytes: int
    messages: int | None
    seconds: float
    per_second: float | None
    threads: int
    is_buffered: bool


@dataclass(slots=True)
class Measured:
    """The outcome of one side."""

    what: str
    size_bytes: int = 0
    messages: int = 0
    failed: int = 0
    seconds: float = 0.0
    first_failure: str | None = None
    latencies: Latencies = field(default_factory=Latencies)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self) -> dict[str, object]:
        per_second = self.messages / self.seconds if self.seconds else None
        return {
            "what": self.what,
            "messages": self.messages,
            "failed": self.failed,
            "seconds": round(self.seconds, 3),
            "messages_per_second": None if per_second is None else round(per_second, 1),
            "bytes_per_second": None if not self.seconds else round(self.size_bytes / self.seconds),
            **{f"{name}_ms": value for name, value in self.latencies.record().items()},
        }

    def sent(self, size_bytes: int, milliseconds: float) -> None:
        with self.lock:
            self.messages += 1
            self.size_bytes += size_bytes
        self.latencies.add(milliseconds)

    def refuse(self, error: BaseException) -> None:
        with self.lock:
            self.failed += 1
            self.first_failure = self.first_failure or str(error)


class _Pace:
    """Gives out the numbers of messages, not faster than asked for, until the load is over."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._next = 0
        self._lock = threading.Lock()
        self.started = time.monotonic()

    def take(self) -> bool:
        """Waits for the turn of the next message; False if there is none."""
        load = self._load
        with self._lock:
            number = self._next
            due = 0.0 if load.per_second is None else number / load.per_second
            if (load.messages is not None and number >= load.messages) or due >= load.seconds:
                return False
            self._next += 1
        wait = due - (time.monotonic() - self.started)
        if wait > 0:
            time.sleep(wait)
        return time.monotonic() - self.started < load.seconds


def send_load(nameservers: str, load: Load) -> Measured:
    """Sends the load. Raises MetaqError if the first message cannot be sent."""
    from metaq.client.sync import Client

    with Client(nameservers) as client, client.producer("metaq-bench") as producer:
        # The first one finds the route and opens the connection, which is not what is measured.
        producer.send(load.topic, os.urandom(load.size_bytes))
        with progress(f"send to {load.topic}", load.messages) as advance:
            measured = Measured("buffered sends" if load.is_buffered else "sends")
            pace = _Pace(load)
            if load.is_buffered:
                _send_buffered(producer, load, pace, measured)
            else:
                _send_waiting(producer, load, pace, measured, advance)
            measured.seconds = time.monotonic() - pace.started
    return measured


def _send_waiting(
    producer: Producer, load: Load, pace: _Pace, measured: Measured, advance: Callable[[int], None]
) -> None:
    body = os.urandom(load.size_bytes)

    def work() -> None:
        while pace.take():
            began = time.perf_counter()
            try:
                producer.send(load.topic, body)
            except MetaqError as error:
                measured.refuse(error)
            else:
                measured.sent(len(body), (time.perf_counter() - began) * 1000)
                advance(1)

    threads = [threading.Thread(target=work, name=f"bench-{number}") for number in range(load.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _send_buffered(producer: Producer, load: Load, pace: _Pace, measured: Measured) -> None:
    body = os.urandom(load.size_bytes)
    while pace.take():
        began = time.perf_counter()

        def done(future: object, began: float = began) -> None:
            error = future.exception()  # type: ignore[attr-defined]
            if error is None:
                measured.sent(len(body), (time.perf_counter() - began) * 1000)
            else:
                measured.refuse(error)

        producer.send_soon(load.topic, body).add_done_callback(done)
    with suppress(MetaqError):  # Each message was counted by its callback.
        producer.flush()


@contextmanager
def _receiving(
    nameservers: str, topic: str, group: str, start: StartPosition, measured: Measured
) -> Iterator[threading.Event]:
    """Consumes in the background while the block runs. The event is set whenever messages came."""
    from metaq.client.sync import Client

    came = threading.Event()
    client = Client(nameservers)

    @client.consumer(topic, group=group, start=start, batch=256, concurrency=4)
    def handle(messages: list[Message]) -> None:
        now_ms = time.time() * 1000
        with measured.lock:
            measured.messages += len(messages)
            measured.size_bytes += sum(len(message.body) for message in messages)
        for message in messages:
            measured.latencies.add(now_ms - message.born_at)
        came.set()

    try:
        client.start(wait=JOIN_S)
        yield came
    finally:
        client.close()


def receive_load(nameservers: str, topic: str, group: str, messages: int | None, seconds: float) -> Measured:
    """Receives until the number is reached, the time is over, or nothing comes any more."""
    measured = Measured("receives")
    with (
        progress(f"receive from {topic}", messages) as advance,
        _receiving(nameservers, topic, group, "earliest", measured) as came,
    ):
        began = last = time.monotonic()
        shown = 0
        while time.monotonic() - began < seconds:
            if messages is not None and measured.messages >= messages:
                break
            if came.wait(0.1):
                came.clear()
                last = time.monotonic()
            elif time.monotonic() - last > IDLE_S:
                break
            advance(measured.messages - shown)
            shown = measured.messages
        measured.seconds = max(last - began, 0.001)
    return measured


def send_and_receive(nameservers: str, load: Load) -> list[Measured]:
    """Sends the load while a group of its own receives it."""
    received = Measured("end to end")
    group = f"metaq-bench-{uuid4().hex[:8]}"
    with _receiving(nameservers, load.topic, group, "latest", received) as came:
        began = time.monotonic()
        sent = send_load(nameservers, load)
        deadline = time.monotonic() + JOIN_S
        while received.messages < sent.messages and time.monotonic() < deadline:
            if not came.wait(IDLE_S):
                break
            came.clear()
        received.seconds = time.monotonic() - began
    _forget(nameservers, group)
    return [sent, received]


def _forget(nameservers: str, group: str) -> None:
    """Deletes the group that was only made for the measurement."""
    from metaq.admin import Admin

    with Admin(nameservers) as admin, suppress(MetaqError):  # Otherwise it stays behind; nobody reads it.
        admin.groups.delete(group)
