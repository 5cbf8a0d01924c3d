"""Runs a console on a socket that is bound already, until it is stopped."""

from __future__ import annotations

import asyncio
import socket

from metaq.console.access.access import Access
from metaq.console.access.roles import Directory
from metaq.console.settings import ConsoleSettings
from metaq.console.web_server import TlsFiles, WebServer


async def run_console(
    settings: ConsoleSettings,
    listener: socket.socket,
    stop: asyncio.Event,
    *,
    directory: Directory | None = None,
    tls: TlsFiles | None = None,
) -> None:
    """Serves until `stop` is set. Raises OSError if the state folder cannot be used."""
    from metaq.console.app import create_app
    from metaq.console.console import Console

    access = Access.open(settings, directory)
    async with Console.open(settings, access) as console:
        server = WebServer(create_app(console), tls)
        serving = asyncio.create_task(server.serve([listener]))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            server.stop()
            await serving
