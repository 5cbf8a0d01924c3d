"""A small HTTP server for monitoring: metrics, and whether the process is alive and ready."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

import h11

from metaq.connection_shares import ConnectionShares, CountedConnection
from metaq.monitoring.shared_page import SharedPage
from metaq.plain_requests import PlainRequests

_log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 16 * 1024
CONNECTIONS_MAX = 128
WAITING_PER_ADDRESS_MAX = 32
"""Connections of one address. Each may be closed to make room, because each can be opened again."""
PAGES_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of all pages that peers have not read yet. Two pages may always wait for them."""
SLICE_BYTES = 64 * 1024
"""How much of a page is given to a connection at once."""
REQUEST_S = 10.0
"""Time for the first request to arrive whole."""
IDLE_S = 30.0
"""Time for every later request to arrive whole, and for the peer to read an answer."""
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to one request."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT


Page = Callable[[], Awaitable[Response]]


class WebServer:
    """Serves a few pages by their paths. Every request is a GET or HEAD without a body.

    Probes are pages that are made at once. Everybody who waits for another page gets the same one. Peers that
    stay silent, and those who have waited longest, make room for new ones.
    """

    def __init__(self, pages: dict[str, Page], probes: dict[str, Page]) -> None:
        self._pages = {path: SharedPage(partial(_make, path, page)) for path, page in pages.items()}
        self._probes = {path: partial(_make, path, page) for path, page in probes.items()}
        self._unread: dict[asyncio.StreamWriter, Response] = {}
        """Pages that are being written, the oldest first."""
        self._shares = ConnectionShares(CONNECTIONS_MAX, WAITING_PER_ADDRESS_MAX)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""

    async def start(self, host: str, port: int) -> None:
        """Listens on the port, or on a free one if it is taken. Raises OSError."""
        try:
            self._server = await self._listen(host, port)
        except OSError:
            if port == 0:
                raise
            self._server = await self._listen(host, 0)
        bound_host, bound_port = self._server.sockets[0].getsockname()[:2]
        self.address = f"[{bound_host}]:{bound_port}" if ":" in bound_host else f"{bound_host}:{bound_port}"

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._accept, host, port, limit=REQUEST_BYTES_MAX)

    async def stop(self) -> None:
        """Closes everything. Safe to call twice."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for page in self._pages.values():
            page.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        peer = writer.get_extra_info("peername") or ("",)
        connection = self._shares.admit(str(peer[0]), writer.transport.abort)
        if connection is None:
            writer.transport.abort()
            return
        self._tasks.add(task)
        # An answer has been written when the system has all of it; the rest would be lost at the end.
        writer.transport.set_write_buffer_limits(high=0)
        try:
            await self._converse(reader, writer, connection)
        except (OSError, TimeoutError, h11.ProtocolError, asyncio.CancelledError):
            # The peer left or is too slow, it does not speak HTTP, or the server stops.
            pass
        finally:
            self._tasks.discard(task)
            connection.leave()
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counted: CountedConnection
    ) -> None:
        """Answers one request after the other until the peer closes the connection."""
        connection = PlainRequests(REQUEST_BYTES_MAX, takes_bodies=False)
        deadline_s = REQUEST_S
        while True:
            try:
                request = await _read_request(connection, reader, deadline_s)
            except h11.RemoteProtocolError as error:
                if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    status = HTTPStatus(error.error_status_hint)
                    refusal = Response(status, f"{connection.refusal or status.phrase}\n".encode())
                    await _write(connection, writer, refusal, with_body=True, closes=True)
                return
            if request is None:
                return
            # It has just shown that it is alive, so it is the last of its address to be closed.
            counted.work()
            counted.wait()
            response = await self._answer(request)
            # Nobody needs several requests at once, and many of them would keep others waiting.
            closes = bool(connection.trailing_data[0])
            with self._reading(writer, response):
                with_body = request.method != b"HEAD"
                await _write(connection, writer, response, with_body=with_body, closes=closes)
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()
            deadline_s = IDLE_S

    async def _answer(self, request: h11.Request) -> Response:
        path = request.target.partition(b"?")[0].decode("latin-1")
        if request.method not in (b"GET", b"HEAD"):
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD are served here\n")
        if (probe := self._probes.get(path)) is not None:
            return await probe()
        if (page := self._pages.get(path)) is not None:
            return await page.next()
        known = ", ".join(sorted((*self._pages, *self._probes)))
        return Response(HTTPStatus.NOT_FOUND, f"there is no such page; there are {known}\n".encode())

    @contextlib.contextmanager
    def _reading(self, writer: asyncio.StreamWriter, response: Response) -> Iterator[None]:
        """Counts a page that a peer reads. Closes the connections of older pages if these are too many."""
        self._unread[writer] = response
        try:
            for oldest in list(self._unread):
                sizes = {id(page): len(page.body) for page in self._unread.values()}
                if len(sizes) <= 2 or sum(sizes.values()) <= PAGES_BYTES_MAX:
                    break
                del self._unread[oldest]
                oldest.transport.abort()
            yield
        finally:
            self._unread.pop(writer, None)


async def _make(path: str, page: Page) -> Response:
    try:
        return await page()
    except Exception:
        _log.exception("the page %s failed", path)
        return Response(HTTPStatus.INTERNAL_SERVER_ERROR, b"this page failed; the log says why\n")


async def _read_request(
    connection: h11.Connection, reader: asyncio.StreamReader, deadline_s: float
) -> h11.Request | None:
    """Returns the next request; None at the end of the connection. Raises TimeoutError."""
    request: h11.Request | None = None
    async with asyncio.timeout(deadline_s):
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(REQUEST_BYTES_MAX))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.EndOfMessage):
                return request
            elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                return None


async def _write(
    connection: h11.Connection,
    writer: asyncio.StreamWriter,
    response: Response,
    *,
    with_body: bool,
    closes: bool,
) -> None:
    headers = [
        ("content-type", response.content_type),
        ("content-length", str(len(response.body))),
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
    ]
    if closes:
        headers.append(("connection", "close"))
    writer.write(connection.send(h11.Response(status_code=response.status, headers=headers)) or b"")
    body = memoryview(response.body if with_body else b"")
    # A connection whose peer does not read holds one slice. All of them share the page.
    for begin in range(0, len(body), SLICE_BYTES):
        writer.write(connection.send(h11.Data(data=bytes(body[begin : begin + SLICE_BYTES]))) or b"")
        async with asyncio.timeout(IDLE_S):
            await writer.drain()
    writer.write(connection.send(h11.EndOfMessage()) or b"")
    async with asyncio.timeout(IDLE_S):
        await writer.drain()
