"""HTTP for the console: uvicorn with limits on connections and time. Its end does not wait for open pages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from metaq.connection_shares import ConnectionShares, CountedConnection
from metaq.console.access.headers import SecureHeaders
from metaq.console.access.log_brake import LogBrake
from metaq.plain_requests import PlainRequests

_uvicorn_log = logging.getLogger("uvicorn.error")
_uvicorn_log.addFilter(LogBrake())

CONNECTIONS_MAX: Final = 256
"""Silent connections make room for further ones. If all are at work, further requests get code 503."""
CONNECTIONS_HARD_MAX: Final = 2 * CONNECTIONS_MAX
"""Further connections are closed at once. One that still negotiates TLS counts as well."""
WAITING_PER_ADDRESS_MAX: Final = CONNECTIONS_MAX // 4
"""Connections of one address that have not sent a whole request, or do not read the answer."""
TLS_HANDSHAKE_TIMEOUT_S: Final = 5.0
REQUEST_HEAD_BYTES_MAX: Final = 32 * 1024
REQUEST_HEAD_TIMEOUT_S: Final = 10.0
"""Also the time for the rest of a body whose request has its answer already."""
IDLE_TIMEOUT_S: Final = 30
WRITE_TIMEOUT_S: Final = 30.0
"""A browser that does not read its answer for this time is gone."""
_ACCEPT_PAUSE_S: Final = 1.0
_GRACE_S: Final = 0.2
_ACTION_GRACE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The certificate, with its chain, and its key."""

    certificate: str
    key: str


class WebServer(uvicorn.Server):
    """Serves an application on a socket that is bound already."""

    def __init__(self, app: ASGIApp, tls: TlsFiles | None = None) -> None:
        # Bad requests of others are not worth a line in the log; failures of pages are.
        _uvicorn_log.setLevel(logging.ERROR)
        super().__init__(
            uvicorn.Config(
                SecureHeaders(app),
                http="h11",
                ws="none",
                lifespan="off",
                loop="asyncio",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_keep_alive=IDLE_TIMEOUT_S,
                h11_max_incomplete_event_size=REQUEST_HEAD_BYTES_MAX,
                ssl_certfile=tls.certificate if tls else None,
                ssl_keyfile=tls.key if tls else None,
            )
        )
        self._accepting: list[asyncio.Task[None]] = []
        self._opening: set[asyncio.Task[None]] = set()
        # Uvicorn refuses requests from the connection on that reaches its limit.
        usable_max = CONNECTIONS_MAX - 1
        self._shares = ConnectionShares(
            usable_max, WAITING_PER_ADDRESS_MAX, refused_max=CONNECTIONS_HARD_MAX - usable_max
        )

    def stop(self) -> None:
        """Lets `serve` return soon."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leaves signals to the process that serves."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts connections itself: with uvicorn, those that negotiate TLS have no limit."""
        assert sockets is not None
        _raise_descriptor_limit()
        for listener in sockets:
            listener.setblocking(False)
            self._accepting.append(asyncio.create_task(self._accept(listener)))
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends open pages at once. Changes that run may finish for a few seconds."""
        ending = [*self._accepting, *self._opening]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self._wait_for_tasks(_GRACE_S)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await self._wait_for_tasks(_ACTION_GRACE_S)
        for task in list(self.server_state.tasks):
            task.cancel()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(listener)
            except ConnectionAbortedError:
                continue
            except OSError:
                # Descriptors or memory are short.
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            counted = self._shares.admit(str(peer[0]), connection.close)
            if counted is None:
                connection.close()
                continue
            opening = asyncio.create_task(self._open(connection, counted))
            counted.close = opening.cancel
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket, counted: CountedConnection) -> None:
        """Hands a connection to a protocol, after the TLS handshake if there is one."""
        context = self.config.ssl
        # Strangers and port scanners fail here, which is not worth a line in the log.
        with contextlib.ExitStack() as failed, contextlib.suppress(OSError):
            failed.callback(connection.close)
            failed.callback(counted.leave)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _LimitedProtocol(counted, self.config, self.server_state, self.lifespan.state),
                connection,
                ssl=context,
                ssl_handshake_timeout=TLS_HANDSHAKE_TIMEOUT_S if context else None,
            )
            failed.pop_all()

    async def _wait_for_tasks(self, timeout_s: float) -> None:
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=timeout_s)


class _LimitedProtocol(H11Protocol):
    """Closes connections that are too slow. Uvicorn itself waits for a request without end."""

    def __init__(self, counted: CountedConnection, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Browsers send no chunks.
        self.conn: PlainRequests = PlainRequests(REQUEST_HEAD_BYTES_MAX, takes_bodies=True)
        self._counted = counted
        self._read_deadline = _Deadline(self.loop, REQUEST_HEAD_TIMEOUT_S)
        self._write_deadline = _Deadline(self.loop, WRITE_TIMEOUT_S)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._counted.close = transport.abort
        if self.scheme == "http":
            # Even one byte that the browser does not read counts as slow: a close would wait for it without
            # end. With TLS, a close has a time-out of its own.
            transport.set_write_buffer_limits(high=0)
        self._watch_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._counted.leave()
        self._read_deadline.lift()
        self._write_deadline.lift()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_deadline.set(self.transport)
        self._count()

    def resume_writing(self) -> None:
        self._write_deadline.lift()
        super().resume_writing()
        self._count()

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(self.conn.refusal or msg)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._count()

    def _count(self) -> None:
        """Says whether the peer must act next: send the rest of a request, or read its answer."""
        is_served = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        if is_served and not self.flow.write_paused:
            self._counted.work()
        else:
            self._counted.wait()

    def _watch_reading(self) -> None:
        """Sets a deadline as long as no request is served. So the head of a request must arrive in time, and
        likewise the rest of a body after its answer, for which uvicorn has no timer."""
        self._count()
        is_served = self.cycle is not None and not self.cycle.response_complete
        if is_served or self.transport.is_closing():
            self._read_deadline.lift()
        else:
            self._read_deadline.set(self.transport)


class _Deadline:
    """Ends a connection at its time, unless it is lifted before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self._loop = loop
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None

    def set(self, transport: asyncio.Transport) -> None:
        """Starts to wait, unless it waits already."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, transport.abort)

    def lift(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _raise_descriptor_limit() -> None:
    """Lets the process open as many sockets as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
