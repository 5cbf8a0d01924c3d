"""A small HTTP server for monitoring: metrics, and whether the process is alive and ready."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

import h11

from metaq.connection_shares import ConnectionShares, CountedConnection

_log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 16 * 1024
CONNECTIONS_MAX = 128
WAITING_PER_ADDRESS_MAX = 32
"""Connections of one address that have not sent a whole request, or do not read the answer."""
PAGES_MAX = 16
"""Pages that are made at the same time. Further requests get code 503. Probes do not count."""
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

    Probes are pages that are made at once. They are answered however many other requests wait. Peers that
    stay silent make room for new ones.
    """

    def __init__(self, pages: dict[str, Page], probes: dict[str, Page]) -> None:
        self._pages = {**pages, **probes}
        self._probes = frozenset(probes)
        self._pages_in_work = 0
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
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_BYTES_MAX)
        deadline_s = REQUEST_S
        while True:
            try:
                request = await _read_request(connection, reader, deadline_s)
            except h11.RemoteProtocolError as error:
                if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    status = HTTPStatus(error.error_status_hint)
                    refusal = Response(status, f"{status.phrase}\n".encode())
                    await _write(connection, writer, refusal, with_body=True, closes=True)
                return
            if request is None:
                return
            counted.work()
            response = await self._answer(request)
            counted.wait()
            await _write(connection, writer, response, with_body=request.method != b"HEAD", closes=False)
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()
            deadline_s = IDLE_S

    async def _answer(self, request: h11.Request) -> Response:
        path = request.target.partition(b"?")[0].decode("latin-1")
        if request.method not in (b"GET", b"HEAD"):
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD are served here\n")
        page = self._pages.get(path)
        if page is None:
            known = ", ".join(sorted(self._pages))
            return Response(HTTPStatus.NOT_FOUND, f"there is no such page; there are {known}\n".encode())
        if path in self._probes:
            return await _make(path, page)
        if self._pages_in_work >= PAGES_MAX:
            busy = f"{PAGES_MAX} requests are being answered already; try again later\n"
            return Response(HTTPStatus.SERVICE_UNAVAILABLE, busy.encode())
        self._pages_in_work += 1
        try:
            return await _make(path, page)
        finally:
            self._pages_in_work -= 1


async def _make(path: str, page: Page) -> Response:
    try:
        return await page()
    except Exception:
        _log.exception("the page %s failed", path)
        return Response(HTTPStatus.INTERNAL_SERVER_ERROR, b"this page failed; the log says why\n")


async def _read_request(
    connection: h11.Connection, reader: asyncio.StreamReader, deadline_s: float
) -> h11.Request | None:
    """Returns the next request, after its body; None at the end of the connection. Raises TimeoutError."""
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
    events: list[h11.Event] = [h11.Response(status_code=response.status, headers=headers)]
    if with_body:
        events.append(h11.Data(data=response.body))
    for event in (*events, h11.EndOfMessage()):
        writer.write(connection.send(event) or b"")
    async with asyncio.timeout(IDLE_S):
        await writer.drain()
