"""Mutates recorded frames with a seeded generator, and sends them without end."""

from __future__ import annotations

import json
import random
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

TEXTS = [
    "",
    "-1",
    "0",
    str(2**31),
    str(2**63),
    "-9223372036854775808",
    "NaN",
    "x" * 300,
    "ü",
    "\x00",
    "../..",
    "%DLQ%",
]
NUMBERS = [0, 1, 3, 4, 5, 127, 255, 256, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
CODES = [
    *(10, 11, 12, 14, 15, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 45, 46),
    *(105, 106, 200, 201, 202, 203, 204, 206, 207, 208, 212, 215, 221, 222, 301, 303, 307, 310, 314, 320),
    *(321, 323, 324, 325, 326, 351, 352, 361, 370, 30321, -1, 0, 99_999),
]
BATCH = 16
CONNECTIONS = 32
READ_BYTES = 1 << 18
SEND_TIMEOUT_S = 5.0


@dataclass
class Mutator:
    """Makes new frames from recorded ones; the same seed makes the same frames."""

    frames: Sequence[bytes]
    seed: int

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def next(self) -> tuple[bytes, bool]:
        """Returns a frame, and whether the server can understand other frames behind it."""
        frame = self._random.choice(self.frames)
        fields = [self._change_field] * 6
        ways = [*fields, self._change_body, self._change_body, self._change_bytes, self._change_size]
        return self._random.choice(ways)(frame)

    def _change_field(self, frame: bytes) -> tuple[bytes, bool]:
        """A whole frame in which some field is absurd."""
        header, body = parsed(frame)
        fields = header["extFields"]
        chance = self._random
        what = chance.randrange(6)
        if what == 0:
            header["code"] = chance.choice(CODES)
        elif what == 1:
            header[chance.choice(["flag", "version", "opaque"])] = chance.choice(NUMBERS) & 0x7FFFFFFF
        elif fields and what == 2:
            del fields[chance.choice(list(fields))]
        elif fields and what == 3:
            one, other = chance.choice(list(fields)), chance.choice(list(fields))
            fields[one], fields[other] = fields[other], fields[one]
        elif fields:
            fields[chance.choice(list(fields))] = chance.choice(TEXTS)
        return (as_json if chance.random() < 0.5 else as_binary)(header, body), True

    def _change_body(self, frame: bytes) -> tuple[bytes, bool]:
        size = struct.unpack_from(">I", frame, 4)[0] & 0xFFFFFF
        body = self._mutated(frame[8 + size :])
        return struct.pack(">I", 4 + size + len(body)) + frame[4 : 8 + size] + body, True

    def _change_bytes(self, frame: bytes) -> tuple[bytes, bool]:
        """A frame of the right size whose header may be anything; the server closes if it is none."""
        word = struct.unpack_from(">I", frame, 4)[0]
        size = word & 0xFFFFFF
        header = self._mutated(frame[8 : 8 + size])
        rest = struct.pack(">I", (word & 0xFF000000) | len(header)) + header + frame[8 + size :]
        return struct.pack(">I", len(rest)) + rest, False

    def _change_size(self, frame: bytes) -> tuple[bytes, bool]:
        """Lengths that lie, cuts, two frames in one."""
        chance = self._random
        data = bytearray(frame)
        what = chance.randrange(4)
        if what == 0:
            struct.pack_into(">I", data, 0, chance.choice(NUMBERS))
        elif what == 1:
            struct.pack_into(">I", data, 4, chance.choice(NUMBERS))
        elif what == 2:
            del data[chance.randrange(len(data)) :]
        else:
            other = chance.choice(self.frames)
            data = data[: chance.randrange(len(data))] + other[chance.randrange(len(other)) :]
        return bytes(data), False

    def _mutated(self, data: bytes) -> bytes:
        chance = self._random
        changed = bytearray(data)
        for _ in range(chance.randrange(1, 5)):
            at = chance.randrange(len(changed) + 1)
            what = chance.randrange(4)
            if what == 0:
                changed[at : at + 1] = bytes([chance.randrange(256)])
            elif what == 1:
                changed[at:at] = chance.randbytes(chance.randrange(1, 9))
            elif what == 2:
                del changed[at : at + chance.randrange(1, 9)]
            else:
                changed[at : at + 4] = struct.pack(">I", chance.choice(NUMBERS))
        return bytes(changed)


def parsed(frame: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the body of a recorded frame, whose header is JSON or in RocketMQ's binary encoding."""
    word = struct.unpack_from(">I", frame, 4)[0]
    size = word & 0xFFFFFF
    data, body = frame[8 : 8 + size], frame[8 + size :]
    if not word >> 24:
        header = json.loads(data)
        header["extFields"] = header.get("extFields") or {}
        return header, body
    code, language, version, opaque, flag, remark_size = struct.unpack_from(">hBhiii", data)
    at = struct.calcsize(">hBhiii") + remark_size + 4
    fields = {}
    while at < len(data):
        name_size = struct.unpack_from(">H", data, at)[0]
        name = data[at + 2 : at + 2 + name_size].decode()
        at += 2 + name_size
        value_size = struct.unpack_from(">I", data, at)[0]
        fields[name] = data[at + 4 : at + 4 + value_size].decode(errors="replace")
        at += 4 + value_size
    names = {"code": code, "language": language, "version": version, "opaque": opaque, "flag": flag}
    return {**names, "extFields": fields}, body


def as_json(header: dict[str, Any], body: bytes) -> bytes:
    if isinstance(header["language"], int):
        header = {**header, "language": "JAVA"}
    data = json.dumps(header).encode()
    return struct.pack(">II", 4 + len(data) + len(body), len(data)) + data + body


def as_binary(header: dict[str, Any], body: bytes) -> bytes:
    language = header["language"] if isinstance(header["language"], int) else 0
    fields = bytearray()
    for name, value in header["extFields"].items():
        encoded = str(value).encode()
        fields += struct.pack(">H", len(name)) + name.encode() + struct.pack(">I", len(encoded)) + encoded
    numbers = (
        header["code"] % 0x8000,
        language,
        header["version"] % 0x8000,
        header["opaque"],
        header["flag"],
    )
    data = struct.pack(">hBhiiii", *numbers, 0, len(fields)) + fields
    return struct.pack(">II", 4 + len(data) + len(body), 1 << 24 | len(data)) + data + body


class FrameSource(Protocol):
    """Makes frames without end."""

    def next(self) -> tuple[bytes, bool]: ...


class FrameThrower:
    """Sends frames to one server on a few connections in turn, and reads what comes back.

    After a frame that the server cannot understand nothing else is sent on that connection. It is closed in
    its next turn, when the server has seen the frame.
    """

    def __init__(self, address: str, source: FrameSource) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._source = source
        self._connections: deque[socket.socket | None] = deque([None] * CONNECTIONS)
        self._finished: set[socket.socket] = set()
        self.frames = 0
        self.connections = 0

    def throw(self) -> None:
        """Sends a few frames at once, on the connection whose turn it is."""
        connection = self._read(self._connections.popleft())
        batch = bytearray()
        count, is_last = 0, False
        while count < BATCH and not is_last:
            frame, goes_on = self._source.next()
            batch += frame
            count, is_last = count + 1, not goes_on
        try:
            connection = connection or self._open()
            connection.sendall(batch)
            self.frames += count
            if is_last:
                self._finished.add(connection)
        except OSError:
            self._close(connection)
            connection = None
        self._connections.append(connection)

    def close(self) -> None:
        for connection in self._connections:
            self._close(connection)

    def _read(self, connection: socket.socket | None) -> socket.socket | None:
        """Reads what has come. Returns None if the connection has ended."""
        if connection is None:
            return None
        connection.setblocking(False)
        try:
            while connection.recv(READ_BYTES):
                pass
        except BlockingIOError:
            connection.settimeout(SEND_TIMEOUT_S)
            if connection not in self._finished:
                return connection
        except OSError:
            pass
        self._close(connection)
        return None

    def _open(self) -> socket.socket:
        self.connections += 1
        return socket.create_connection(self._address, timeout=SEND_TIMEOUT_S)

    def _close(self, connection: socket.socket | None) -> None:
        if connection is not None:
            self._finished.discard(connection)
            connection.close()


def throw_frames(
    throwers: Sequence[FrameThrower], frames: int, ends_at: float, tell: Callable[[], None]
) -> None:
    """Spreads the frames evenly over the time, so that all attacks happen together."""
    began = time.monotonic()
    while (done := sum(thrower.frames for thrower in throwers)) < frames:
        now = time.monotonic()
        due = frames * (now - began) / max(ends_at - began, 1e-9)
        if done > due:
            time.sleep(0.005)
            continue
        # The first one is the broker, which gets most of them.
        for thrower in (throwers[0], *throwers):
            for _ in range(8):
                thrower.throw()
        tell()
    for thrower in throwers:
        thrower.close()
