"""The stream of server-sent events that keeps open pages up to date.

The browser holds one connection. Each event says that new figures are there; the page then asks for its own
changing part. So a page that nobody looks at costs nothing, and one stream serves all pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from metaq.console.console import console_of
from metaq.console.live.live import Tick

SILENCE_S_MAX: Final = 15.0
"""A page takes a longer silence for a lost connection, and a slow cluster is polled less often than that."""


async def events(request: Request) -> Response:
    """Sends `tick` each time that the cluster was polled, and `alive` at once and during long silences."""
    return event_stream(with_signs_of_life(console_of(request).live.ticks()))


async def with_signs_of_life(
    ticks: AsyncIterator[Tick], silence_s_max: float = SILENCE_S_MAX
) -> AsyncIterator[bytes]:
    """Yields the events of the stream. It ends with the ticks."""
    yield event("alive", {})
    following: asyncio.Task[Tick | None] | None = None
    try:
        while True:
            following = following or asyncio.create_task(_next(ticks))
            done, _ = await asyncio.wait({following}, timeout=silence_s_max)
            if not done:
                yield event("alive", {})
                continue
            tick, following = following.result(), None
            if tick is None:
                return
            yield event("tick", tick)
    finally:
        if following is not None:
            following.cancel()


async def _next(ticks: AsyncIterator[Tick]) -> Tick | None:
    return await anext(ticks, None)


def event_stream(stream: AsyncIterator[bytes]) -> StreamingResponse:
    """Returns a response that no proxy holds back."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


def event(name: str, data: object) -> bytes:
    """Returns one event with JSON as its data."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"


def html_event(name: str, html: str) -> bytes:
    """Returns one event whose data is HTML, line by line."""
    lines = "".join(f"data: {line}\n" for line in html.splitlines())
    return f"event: {name}\n{lines}\n".encode() if name else f"{lines}\n".encode()


ROUTES = [Route("/events", events)]
