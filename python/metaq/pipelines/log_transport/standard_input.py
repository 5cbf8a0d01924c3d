"""Lines of a stream that can be read once only: what was not acknowledged is held and sent again.

A thread reads, which nothing can interrupt, while the caller sends, settles and hears that it is to stop.
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
from metaq.pipelines.log_transport.agent import FAILURE_PAUSE_S, PRODUCER_GROUP, AgentSettings, Pace, is_final

READ_AHEAD_LINES_MAX: Final = 64
HELD_LINES_MAX: Final = 10_000
HELD_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of lines that wait for their acknowledgement; more are not taken."""
LOOK_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Piece:
    """A line, or a part of one that is too long for a message."""

    number: int
    body: bytes
    is_cut: bool


def pieces(stream: BinaryIO, bytes_max: int) -> Iterator[Piece]:
    """Every line without its line feed, in parts of so many bytes where it is longer."""
    number, held = 0, None
    while read := stream.readline(bytes_max):
        if held is not None:
            # Only now it is known whether the line goes on behind a part that was full.
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
    """To the end of the stream. After `stop` nothing more is taken, and what was taken is sent.

    Raises what trying again cannot repair.
    """
    progress, pace = Progress("reading standard input"), Pace()
    coming: queue.Queue[Piece | None] = queue.Queue(READ_AHEAD_LINES_MAX)
    reader = threading.Thread(target=_read, args=(stream, settings.line_bytes_max, coming), daemon=True)
    reader.start()
    with Client(settings.nameserver) as client:
        producer = client.producer(PRODUCER_GROUP)
        producer.start()
        try:
            held = _Held(producer, settings, stop)
            while not stop.is_set():
                with contextlib.suppress(queue.Empty):
                    piece = coming.get(timeout=LOOK_S)
                    if piece is None:
                        break
                    held.send(piece)
                    progress.rows += 1
                    progress.bytes += len(piece.body)
                held.settle_known()
                if pace.is_due():
                    progress.rows_per_second = pace.per_second(progress.rows)
                    report(progress)
            held.settle_all()
        finally:
            # Those that failed were sent again, or have been told.
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


class _Held:
    """Lines under way, in their order."""

    def __init__(self, producer: Producer, settings: AgentSettings, stop: threading.Event) -> None:
        self._producer = producer
        self._settings = settings
        self._stop = stop
        self._id = uuid.uuid4().hex
        self._host = socket.gethostname()
        self._under_way: deque[tuple[Piece, SendFuture]] = deque()
        self._bytes = 0

    def send(self, piece: Piece) -> None:
        self._put(piece)
        self._bytes += len(piece.body)
        while len(self._under_way) > HELD_LINES_MAX or self._bytes > HELD_BYTES_MAX:
            self._settle_first()

    def settle_known(self) -> None:
        """Of what is known by now: lets go of what was sent, and sends again what was not."""
        while self._under_way and self._under_way[0][1].done():
            self._settle_first()

    def settle_all(self) -> None:
        while self._under_way:
            self._settle_first()

    def _settle_first(self) -> None:
        piece, future = self._under_way[0]
        error = future.exception()
        if error is None:
            self._under_way.popleft()
            self._bytes -= len(piece.body)
        elif is_final(error):
            raise error
        else:
            self._send_again()

    def _send_again(self) -> None:
        """All of them, so that they stay in their order."""
        for _, future in self._under_way:
            future.exception()  # One that is still under way could overtake.
        again = [piece for piece, _ in self._under_way]
        self._under_way.clear()
        self._stop.wait(FAILURE_PAUSE_S)
        for piece in again:
            self._put(piece)

    def _put(self, piece: Piece) -> None:
        """Tries until it is taken: nobody can read the line again. Told to stop, it raises instead."""
        properties = {
            "log.id": self._id,
            "log.at": str(piece.number),
            "log.file": "-",
            "log.host": self._host,
        }
        if piece.is_cut:
            properties["log.cut"] = "true"
        settings = self._settings
        while True:
            try:
                future = self._producer.send_soon(
                    settings.topic, piece.body, tag=settings.tag, key=self._id, properties=properties
                )
            except MetaqError as error:
                if is_final(error) or self._stop.wait(FAILURE_PAUSE_S):
                    raise
            else:
                self._under_way.append((piece, future))
                return
