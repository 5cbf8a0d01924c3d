"""Delayed messages: when they are due, which they are, and how to recall one."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaq.console.console import console_of
from metaq.console.pages.times import moment_of
from metaq.console.rendering import render

BARS: Final = 48
SHOWN: Final = 50


async def delayed(request: Request) -> Response:
    """The histogram of due times, and the messages that are due next or within a chosen span."""
    admin = console_of(request).admin
    parameters = request.query_params
    topic = parameters.get("topic", "").strip()[:255]
    from_ms, to_ms = moment_of(parameters.get("from")), moment_of(parameters.get("to"))
    overview = await admin.delayed.overview(buckets=BARS)
    messages = await admin.delayed.list(topic=topic or None, from_ms=from_ms, to_ms=to_ms, limit=SHOWN)
    return render(
        request,
        "delayed.html",
        overview=overview,
        messages=messages,
        topic=topic,
        from_ms=from_ms,
        to_ms=to_ms,
        tallest=max((bucket.messages for bucket in overview.histogram), default=0),
    )


ROUTES = [Route("/delayed", delayed)]
