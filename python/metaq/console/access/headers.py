"""Headers of every answer: browsers run only our scripts, guess no types and keep no pages."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'self'; object-src 'none'"
)
_HEADERS: Final = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_STATIC_CACHE: Final = "no-cache"
"""Browsers keep static files, and ask whether they are still the same."""


def secured(send: Send, path: str) -> Send:
    """Returns a `send` that adds the headers which an answer lacks."""

    async def send_secured(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if is_static(path) and message["status"] < 400:
                headers.setdefault("cache-control", _STATIC_CACHE)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return send_secured


def is_static(path: str) -> bool:
    return path.startswith("/static/")


class SecureHeaders:
    """Adds the headers to every answer, also to that of a page that fails."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The middleware inside knows which answers are static files.
        await self._app(scope, receive, secured(send, "") if scope["type"] == "http" else send)
