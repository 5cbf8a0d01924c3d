"""Lines of a stream that can be read once only: what was not acknowledged is held and sent again."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import uuid
from collections import deque
from typing import BinaryIO, Final

from metaq._core import SendFuture
from metaq.client.sync import Client
from metaq.client.sync_producer import Producer
from metaq.errors import MetaqError, NotDelivered
from metaq.pipelines import Progress, Report
from metaq.pipelines.logs.agent import FAILURE_PAUSE_S, PRODUCER_GROUP, AgentSettings, Pace

HELD_MAX: Final = 10_000
"""Lines that wait for their acknowledgement; more are not read."""


def send_stream(stream: BinaryIO, settings: AgentSettings, report: Report, stop: threading.Event) -> Progress:
    """To the end of the stream. After `stop` nothing more is read, and what was read is sent.

    Raises what trying again cannot repair.
    """
    progress, pace = Progress("reading standard input"), Pace()
    with Client(settings.nameserver) as client:
        producer = client.producer(PRODUCER_GROUP)
        producer.start()
        try:
            held = _Held(producer, settings)
            while not stop.is_set():
                # A line longer than a message comes in parts.
                line = stream.readline(settings.line_bytes_max)
                if not line:
                    break
                held.send(line.removesuffix(b"\n"))
                progress.rows += 1
                progress.bytes += len(line)
                if pace.is_due():
                    progress.rows_per_second = pace.per_second(progress.rows)
                    report(progress)
            held.settle(0)
        finally:
            # Those that failed were sent again, or have been told.
            with contextlib.suppress(NotDelivered):
                producer.close()
    progress.phase = "ended"
    report(progress)
    return progress


class _Held:
    """Lines under way, in their order."""

    def __init__(self, producer: Producer, settings: AgentSettings) -> None:
        self._producer = producer
        self._settings = settings
        self._id = uuid.uuid4().hex
        self._host = socket.gethostname()
        self._count = 0
        self._under_way: deque[tuple[int, bytes, SendFuture]] = deque()

    def send(self, body: bytes) -> None:
        self._put(self._count, body)
        self._count += 1
        if len(self._under_way) >= HELD_MAX:
            self.settle(HELD_MAX // 2)

    def settle(self, left_max: int) -> None:
        """Waits until no more than so many are under way."""
        while len(self._under_way) > left_max:
            error = self._under_way[0][2].exception()
            if error is None:
                self._under_way.popleft()
                continue
            if isinstance(error, MetaqError) and not error.retriable:
                raise error
            self._send_again()

    def _send_again(self) -> None:
        """All of them, so that they stay in their order."""
        for _, _, future in self._under_way:
            future.exception()  # One that is still under way could overtake.
        again = [(number, body) for number, body, _ in self._under_way]
        self._under_way.clear()
        time.sleep(FAILURE_PAUSE_S)
        for number, body in again:
            self._put(number, body)

    def _put(self, number: int, body: bytes) -> None:
        properties = {
            "log.id": self._id,
            "log.at": str(number),
            "log.file": "-",
            "log.host": self._host,
        }
        future = self._producer.send_soon(
            self._settings.topic, body, tag=self._settings.tag, key=self._id, properties=properties
        )
        self._under_way.append((number, body, future))
