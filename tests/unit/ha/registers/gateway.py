"""A gateway with scripted answers, for what a real etcd does not do on demand."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

CLUSTER = 7


def ok(cluster: int = CLUSTER, **fields: object) -> bytes:
    """An answer as etcd gives it."""
    return answer(json.dumps({"header": {"cluster_id": str(cluster), "revision": "5"}, **fields}).encode())


def error(code: int, message: str, status: int = 400) -> bytes:
    return answer(json.dumps({"error": message, "code": code, "message": message}).encode(), status)


def answer(body: bytes, status: int = 200) -> bytes:
    return f"HTTP/1.1 {status} Any\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def chunk(body: bytes) -> bytes:
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class FakeGateway:
    """Answers ranges with nothing found, and everything else as the script says.

    A script returns bytes for the wire, at once or later. With None no answer comes, and with a
    ConnectionError the connection ends. With `close_after` it ends after each answer.
    """

    script: Callable[[Request], bytes | Awaitable[bytes] | None]
    cluster: int = CLUSTER
    close_after: bool = False
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    port: int = 0

    def sent(self, path: str) -> int:
        return sum(request.path == path for request in self.requests)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FakeGateway]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._tasks: set[asyncio.Task[None]] = set()
        try:
            yield self
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                request = await _read(reader)
                self.requests.append(request)
                given = self._answer(request)
                if inspect.isawaitable(given):
                    given = await given
                if given is None:
                    await asyncio.Event().wait()
                    return
                writer.write(given)
                await writer.drain()
                if self.close_after:
                    break
        writer.close()

    def _answer(self, request: Request) -> bytes | Awaitable[bytes] | None:
        # This is how the client asks a new connection for its cluster.
        if request.path == "/v3/kv/range" and request.body.get("serializable"):
            return ok(self.cluster)
        return self.script(request)


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers["content-length"]))
    return Request(first.split()[1], headers, json.loads(body))
