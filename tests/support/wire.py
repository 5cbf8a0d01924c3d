"""A bare client for tests of the native server: one socket, frames in and out, no routes."""

from __future__ import annotations

import select
import socket
import struct
from itertools import count

from metaq import _core


class Wire:
    """Sends requests and reads answers, in the order that the test wants."""

    def __init__(self, port: int, *, binary: bool = False) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.binary = binary
        self._decoder = _core.FrameDecoder()
        self._frames: list[_core.Frame] = []
        self._opaque = count(1)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def write(self, code: int, fields: dict[str, object], body: bytes = b"", flag: int = 0) -> int:
        opaque = next(self._opaque)
        texts = {name: str(value) for name, value in fields.items()}
        self.socket.sendall(
            _core.encode_frame(code, opaque=opaque, flag=flag, fields=texts, body=body, binary=self.binary)
        )
        return opaque

    def read(self) -> _core.Frame:
        while not self._frames:
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    def is_answered(self, wait_s: float) -> bool:
        """Returns whether an answer is here or comes within that time."""
        return bool(self._frames) or bool(select.select([self.socket], [], [], wait_s)[0])

    def call(self, code: int, fields: dict[str, object], body: bytes = b"") -> _core.Frame:
        opaque = self.write(code, fields, body)
        frame = self.read()
        assert frame.opaque == opaque
        return frame

    def send(
        self, topic: str, body: bytes, *, queue: int = 0, properties: str = "", **more: object
    ) -> _core.Frame:
        return self.call(310, send_fields(topic, queue, properties) | more, body)

    def pull(self, topic: str, queue_offset: int, *, queue: int = 0, **more: object) -> _core.Frame:
        return self.call(11, pull_fields(topic, queue, queue_offset) | more)


def send_fields(topic: str, queue: int = 0, properties: str = "") -> dict[str, object]:
    short = {"a": "producers", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": 0, "g": 1_700_000_000_000}
    return {**short, "h": 0, "i": properties, "j": 0, "k": "false", "m": "false"}


def pull_fields(topic: str, queue: int, queue_offset: int, *, suspend_ms: int = 0) -> dict[str, object]:
    return {
        "consumerGroup": "readers",
        "topic": topic,
        "queueId": queue,
        "queueOffset": queue_offset,
        "maxMsgNums": 32,
        "sysFlag": 4 | (2 if suspend_ms else 0),
        "commitOffset": 0,
        "suspendTimeoutMillis": suspend_ms,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
    }


def batch(*bodies: bytes, properties: bytes = b"") -> bytes:
    """Returns the body of a batch send: size, magic, crc, flag, body and properties of each message."""
    out = b""
    for body in bodies:
        size = 4 * 5 + len(body) + 2 + len(properties)
        out += struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body
        out += struct.pack(">h", len(properties)) + properties
    return out


def properties(**values: str) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in values.items())
