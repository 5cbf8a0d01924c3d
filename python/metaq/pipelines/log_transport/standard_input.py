"""Sends lines of a stream that can be read only once: unacknowledged lines are held and sent again.

A thread of its own reads, because nothing can interrupt a read. The caller sends, waits for acknowledgements
and reacts to the stop event.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from metaq._core import SendFuture
from metaq.client.producer.sync_producer import Producer
from metaq.client.sync import Client
from metaq.errors import MetaqError, NotDelivered
from metaq.pipelines import Progress, Report
from metaq.pipelines.log_transport.agent import FAILURE_PAUSE_S, PRODUCER_GROUP, AgentSettings
from metaq.pipelines.log_transport.line_properties import line_properties
from metaq.pipelines.report_timer import ReportTimer
from metaq.pipelines.send_errors import is_final
from metaq.retry import Retry, steady

READ_AHEAD_LINES_MAX: Final = 64
HELD_LINES_MAX: Final = 10_000
HELD_BYTES_MAX: Final = 32 * 1024 * 1024
"""Limits of the lines that wait for their acknowledgement."""
POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Piece:
    """A line, or a part of a line that is too long for a message."""

    number: int
    body: bytes
    is_cut: bool


def pieces(stream: BinaryIO, bytes_max: int) -> Iterator[Piece]:
    """Yields lines without their line feeds, and longer lines in parts of `bytes_max`."""
    number, held = 0, None
    while read := stream.readline(bytes_max):
        if held is not None:
            # Only now is it known whether the line continues after a full part.
            yield Piece(number, held, is_cut=read != b"\n")
            number += 1
        if read.endswith(b"\n"):
            if held is None or read != b"\n":
                yield Piece(number, read[:-1], is_cut=False)
                number += 1
            held = None
        else:
            held = read
    if held is not None:
        yield Piece(number, held, is_cut=False)


def send_stream(stream: BinaryIO, settings: AgentSettings, report: Report, stop: threading.Event) -> Progress:
    """Sends the whole stream, or up to `stop`: then lines that were taken are still sent.

    Raises errors that a retry cannot repair.
    """
    progress, timer = Progress("reading standard input"), ReportTimer()
    coming: queue.Queue[Piece | None] = queue.Queue(READ_AHEAD_LINES_MAX)
    reader = threading.Thread(target=_read, args=(stream, settings.line_bytes_max, coming), daemon=True)
    reader.start()
    with Client(settings.nameserver) as client:
        producer = client.producer(PRODUCER_GROUP)
        producer.start()
        try:
            lines = _Unacknowledged(producer, settings, stop)
            while not stop.is_set():
                with contextlib.suppress(queue.Empty):
                    piece = coming.get(timeout=POLL_S)
                    if piece is None:
                        break
                    lines.send(piece)
                    progress.rows += 1
                    progress.bytes += len(piece.body)
                lines.release_acknowledged()
                if timer.is_due():
                    progress.rows_per_second = timer.rows_per_second(progress.rows)
                    report(progress)
            lines.wait_all()
        finally:
            # Failed lines were sent again or have raised an error.
            with contextlib.suppress(NotDelivered):
                producer.close()
    progress.phase = "ended"
    report(progress)
    return progress


def _read(stream: BinaryIO, bytes_max: int, into: queue.Queue[Piece | None]) -> None:
    try:
        for piece in pieces(stream, bytes_max):
            into.put(piece)
    finally:
        into.put(None)


class _Unacknowledged:
    """Lines in flight, in order."""

    def __init__(self, producer: Producer, settings: AgentSettings, stop: threading.Event) -> None:
        self._producer = producer
        self._settings = settings
        self._stop = stop
        self._id = uuid.uuid4().hex
        self._host = socket.gethostname()
        self._in_flight: deque[tuple[Piece, SendFuture]] = deque()
        self._bytes = 0

    def send(self, piece: Piece) -> None:
        self._put(piece)
        self._bytes += len(piece.body)
        while len(self._in_flight) > HELD_LINES_MAX or self._bytes > HELD_BYTES_MAX:
            self._wait_first()

    def release_acknowledged(self) -> None:
        """Releases lines that were acknowledged, and sends failed ones again."""
        while self._in_flight and self._in_flight[0][1].done():
            self._wait_first()

    def wait_all(self) -> None:
        while self._in_flight:
            self._wait_first()

    def _wait_first(self) -> None:
        piece, future = self._in_flight[0]
        error = future.exception()
        if error is None:
            self._in_flight.popleft()
            self._bytes -= len(piece.body)
        elif is_final(error):
            raise error
        else:
            self._send_again()

    def _send_again(self) -> None:
        """Sends all lines in flight again, so that they stay in order."""
        for _, future in self._in_flight:
            future.exception()  # A line that is still in flight could overtake.
        again = [piece for piece, _ in self._in_flight]
        self._in_flight.clear()
        self._stop.wait(FAILURE_PAUSE_S)
        for piece in again:
            self._put(piece)

    def _put(self, piece: Piece) -> None:
        """Retries until the send buffer takes the line, which cannot be read again; raises after `stop`."""
        properties = line_properties(self._id, piece.number, "-", self._host, is_cut=piece.is_cut)
        settings = self._settings
        tries = Retry(None, steady(FAILURE_PAUSE_S))
        while True:
            try:
                future = self._producer.send_soon(
                    settings.topic, piece.body, tag=settings.tag, key=self._id, properties=properties
                )
            except MetaqError as error:
                if is_final(error) or not tries.pause_blocking(self._stop):
                    raise
            else:
                self._in_flight.append((piece, future))
                return
