"""A small HTTP/1.1 client for JSON over asyncio: one connection, one request at a time.

The standard library's client blocks, so each request would need a thread and a watch could not be cancelled;
none of MetaQ's dependencies brings another. The peer is one known server, so this client understands only
what that server sends: a status, headers, and a body by length, by chunks or until the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Final, Self

HEADERS_BYTES_MAX: Final = 16 * 1024
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Limit of one answer, or of one line of a stream."""
_READ_BYTES: Final = 64 * 1024
# Find peers whose machine vanished, on connections that only read.
_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3))


class HttpError(Exception):
    """The peer does not speak HTTP as it must. The text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. The connection can be used again if `keep_alive`."""

    status: int
    body: bytes
    keep_alive: bool


@dataclass(frozen=True, slots=True)
class _Head:
    status: int
    headers: Mapping[str, str]

    @property
    def chunked(self) -> bool:
        return self.headers.get("transfer-encoding", "").lower() == "chunked"

    @property
    def length(self) -> int | None:
        text = self.headers.get("content-length")
        if text is None:
            return None
        if not re.fullmatch(r"[0-9]{1,12}", text):
            raise HttpError(f"its answer has the length {text[:40]!r}")
        return int(text)


class HttpConnection:
    """One connection. After an error or a cancelled call it must be closed: its state is not known then."""

    def __init__(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.name = name
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, host: str, port: int, tls: ssl.SSLContext | None) -> Self:
        """Connects; the caller limits the time. Raises OSError, also for a failed TLS handshake."""
        try:
            reader, writer = await asyncio.open_connection(host, port, ssl=tls, limit=HEADERS_BYTES_MAX)
        except UnicodeError:
            raise OSError(f"{host!r} is not the name of a host") from None
        stream = writer.get_extra_info("socket")
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            if hasattr(socket, option):
                stream.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        return cls(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", reader, writer)

    @property
    def usable(self) -> bool:
        """Whether neither end has closed the connection, as far as this end knows."""
        return not self._writer.is_closing() and not self._reader.at_eof()

    def close(self) -> None:
        """Closes the connection at once; a TLS peer gets no farewell."""
        self._writer.transport.abort()

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Sends a request and returns the whole answer. Raises OSError, EOFError or HttpError."""
        await self._write(path, body, headers)
        head = await self._read_head()
        content = b"".join([part async for part in self._read_body(head)])
        close_delimited = head.length is None and not head.chunked
        keep_alive = not close_delimited and head.headers.get("connection", "").lower() != "close"
        return Answer(head.status, content, keep_alive)

    async def stream(self, path: str, body: bytes, headers: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """Sends a request and yields the lines of its answer; an empty line means that the answer started.

        Raises OSError, EOFError or HttpError.
        """
        await self._write(path, body, headers)
        head = await self._read_head()
        if head.status != 200:
            raise HttpError(f"it answered with HTTP status {head.status}")
        yield b""
        pending = b""
        async for part in self._read_body(head, whole=False):
            *lines, pending = (pending + part).split(b"\n")
            for line in lines:
                if line:
                    yield line
            if len(pending) > BODY_BYTES_MAX:
                raise HttpError(f"it sent a line of more than {BODY_BYTES_MAX} bytes")

    async def _write(self, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        lines = [
            f"POST {path} HTTP/1.1",
            f"Host: {self.name}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        self._writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        await self._writer.drain()

    async def _read_head(self) -> _Head:
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise HttpError(
                f"its answer does not start with HTTP headers of at most {HEADERS_BYTES_MAX} bytes"
            ) from None
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise HttpError("its answer is not HTTP, or ends in the headers") from None
            raise EOFError("it closed the connection without an answer") from None
        status, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        matched = re.fullmatch(r"HTTP/1\.[01] ([2-5][0-9]{2})( .*)?", status)
        if matched is None:
            raise HttpError(f"its answer starts with {status[:60]!r} and is not HTTP")
        headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise HttpError(f"its answer has the malformed header {line[:60]!r}")
            headers[name.strip().lower()] = value.strip()
        return _Head(int(matched[1]), headers)

    async def _read_body(self, head: _Head, *, whole: bool = True) -> AsyncGenerator[bytes, None]:
        """Yields the parts of a body; with `whole` together they have a limit."""
        total = 0
        parts = self._read_chunks() if head.chunked else self._read_plain(head.length)
        async with contextlib.aclosing(parts):
            async for part in parts:
                total += len(part)
                if whole and total > BODY_BYTES_MAX:
                    raise HttpError(f"its answer is larger than {BODY_BYTES_MAX} bytes")
                yield part

    async def _read_plain(self, length: int | None) -> AsyncGenerator[bytes, None]:
        left = length
        while left is None or left > 0:
            part = await self._reader.read(_READ_BYTES if left is None else min(left, _READ_BYTES))
            if not part:
                if left is not None:
                    raise EOFError("it closed the connection in the middle of an answer")
                return
            if left is not None:
                left -= len(part)
            yield part

    async def _read_chunks(self) -> AsyncGenerator[bytes, None]:
        while True:
            size = await self._read_line()
            matched = re.fullmatch(rb"([0-9a-fA-F]{1,8})[ \t]*(;.*)?", size)
            if matched is None:
                raise HttpError(f"its answer has a chunk of the size {size[:40]!r}")
            left = int(matched[1], 16)
            if left == 0:
                while await self._read_line():
                    pass
                return
            async for part in self._read_plain(left):
                yield part
            if await self._read_line():
                raise HttpError("a chunk of its answer is longer than its size")

    async def _read_line(self) -> bytes:
        try:
            return (await self._reader.readuntil(b"\r\n")).removesuffix(b"\r\n")
        except asyncio.LimitOverrunError:
            raise HttpError("its answer has an endless line") from None
        except asyncio.IncompleteReadError:
            raise EOFError("it closed the connection in the middle of an answer") from None
