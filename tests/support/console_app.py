"""A small application behind the console's access checks, on a real port in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from metaq.console.access import sign_in
from metaq.console.access.access import Access
from metaq.console.access.middleware import AccessMiddleware
from metaq.console.access.roles import Directory, Role, identity_of, require
from metaq.console.listener import address_of_socket, bind
from metaq.console.settings import ConsoleSettings
from metaq.console.web_server import TlsFiles, WebServer
from tests.support.visitor import Visitor
from tests.support.waiting import wait_until


@dataclass
class ServedApp:
    access: Access
    address: str
    server: WebServer

    def visitor(self, role: Role | None = None) -> Visitor:
        """Returns a visitor, signed in by a link if a role is given."""
        visitor = Visitor(self.address)
        if role is not None:
            assert visitor.get(f"/?token={self.access.links.create(role)}").status == 303
        return visitor


@contextmanager
def served_app(
    folder: Path, *, directory: Directory | None = None, tls: TlsFiles | None = None, **settings: object
) -> Iterator[ServedApp]:
    """Serves pages that need the access checks; `/` answers with the CSRF token."""
    chosen = ConsoleSettings(nameservers="127.0.0.1:1", state_folder=folder, **settings)  # type: ignore[arg-type]
    access = Access.open(chosen, directory)
    app = Starlette(
        routes=[
            *sign_in.ROUTES,
            Route("/", _csrf),
            Route("/who", _who),
            Route("/change", _change, methods=["POST"]),
            Route("/size", _size, methods=["POST"]),
            Route("/fail", _fail),
            Route("/events", _events),
            Route("/flood", _flood),
            Route("/static/a.css", _style),
        ],
        middleware=[Middleware(AccessMiddleware, settings=chosen, access=access)],
    )
    with serving(app, tls) as (address, server):
        yield ServedApp(access, address, server)


@contextmanager
def serving(app: ASGIApp, tls: TlsFiles | None = None) -> Iterator[tuple[str, WebServer]]:
    """Serves an application on a free port."""
    listener = bind("127.0.0.1", 0, may_move=False)
    server = WebServer(app, tls)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        wait_until(lambda: server.started, what="started")
        yield address_of_socket(listener, is_tls=tls is not None), server
    finally:
        server.stop()
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"
        listener.close()


async def _csrf(request: Request) -> Response:
    return PlainTextResponse(identity_of(request).csrf)


async def _who(request: Request) -> Response:
    identity = identity_of(request)
    return PlainTextResponse(f"{identity.name} {identity.role}")


async def _change(request: Request) -> Response:
    identity = require(request, Role.operator)
    async with request.form() as form:
        return PlainTextResponse(f"{identity.name} changed {form.get('what')}")


async def _size(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


async def _fail(request: Request) -> Response:
    raise RuntimeError("this page always fails")


async def _events(request: Request) -> Response:
    async def stream() -> AsyncIterator[bytes]:
        while True:
            yield b"event: tick\n\n"
            await asyncio.sleep(0.02)

    return StreamingResponse(stream(), media_type="text/event-stream")


async def _flood(request: Request) -> Response:
    async def stream() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65_536
            await asyncio.sleep(0)

    return StreamingResponse(stream())


async def _style(request: Request) -> Response:
    return PlainTextResponse("body {}")
