"""The settings of the reader, and how the console runs."""

from __future__ import annotations

import platform
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import metaq
from metaq.console.console import console_of
from metaq.console.live.history import SERIES_BYTES_MAX, STILL_BYTES_MAX
from metaq.console.rendering import render

BROKERS_SHOWN: Final = 20
STILL_PER_SERIES: Final = 2
"""Figures that do not move, for each one that does: see `live/history.py`."""


async def settings(request: Request) -> Response:
    """Language, colours, the session, links for others, and how the console runs."""
    console = console_of(request)
    brokers = () if console.live.brokers.value is None else tuple(console.live.brokers.value.values())
    return render(
        request,
        "settings.html",
        metaq_version=metaq.__version__,
        python_version=platform.python_version(),
        brokers=brokers[:BROKERS_SHOWN],
        history_bytes_max=history_bytes_max(console.settings.history_series_max),
        sessions=len(console.access.sessions),
    )


def history_bytes_max(series_max: int) -> int:
    """Returns the memory that the history takes at most."""
    return series_max * (SERIES_BYTES_MAX + STILL_PER_SERIES * STILL_BYTES_MAX)


ROUTES = [Route("/settings", settings)]
