"""The web application: all addresses, and the answers to errors."""

from __future__ import annotations

import logging

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from metaq.console import events, static_files
from metaq.console.access import sign_in
from metaq.console.access.log_brake import LogBrake
from metaq.console.access.middleware import AccessMiddleware
from metaq.console.actions import routes as actions
from metaq.console.console import Console
from metaq.console.pages.table import MODULES
from metaq.console.rendering import refreshes_live, render, render_part
from metaq.errors import MetaqError, NoSuchGroup, NoSuchMessage

log = logging.getLogger(__name__)
log.addFilter(LogBrake())


def create_app(console: Console) -> ASGIApp:
    """Returns the application of one console."""
    routes = [
        *static_files.ROUTES,
        *sign_in.ROUTES,
        *events.ROUTES,
        *actions.ROUTES,
        *(route for module in MODULES for route in module.ROUTES),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(AccessMiddleware, settings=console.settings, access=console.access)],
        exception_handlers={
            HTTPException: _http_error,
            MetaqError: _cluster_error,
            ClientDisconnect: _nobody_waits,
            Exception: _failure,
        },
    )
    app.state.console = console
    return BasePath(app, console.settings.base_path)


class BasePath:
    """Takes the base path away, whether the proxy in front has left it or taken it away already."""

    def __init__(self, app: ASGIApp, base_path: str) -> None:
        self._app = app
        self._base_path = base_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        base_path = self._base_path
        if base_path and scope["type"] == "http":
            path: str = scope["path"]
            if path == base_path or path.startswith(base_path + "/"):
                scope = {**scope, "path": path[len(base_path) :] or "/"}
        await self._app(scope, receive, send)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = {403: "forbidden", 404: "not_found"}.get(error.status_code, "refused")
    response = _error_page(request, error.status_code, kind, error.detail)
    response.headers.update(error.headers or {})
    return response


async def _nobody_waits(request: Request, error: Exception) -> Response:
    """The answer to somebody who left before the request was complete."""
    return Response(status_code=400)


async def _cluster_error(request: Request, error: Exception) -> Response:
    """The page of a cluster that does not answer, refuses what was asked or has no such thing."""
    hint = getattr(error, "hint", "") or ""
    if isinstance(error, NoSuchGroup | NoSuchMessage):
        return _error_page(request, 404, "not_found", str(error), hint)
    return _error_page(request, 502, "cluster", str(error), hint)


async def _failure(request: Request, error: Exception) -> Response:
    log.error("the page %s failed", request.scope["path"], exc_info=error)
    return _error_page(request, 500, "failure", type(error).__name__)


def _error_page(request: Request, status: int, kind: str, detail: str, hint: str = "") -> Response:
    """A page, or a part for the place that asked. If an open page cannot be refreshed, what it shows stays,
    and the reason stands above it. Strangers get one line: the frame of a page is for people who are signed
    in."""
    if getattr(request.state, "identity", None) is None:
        return PlainTextResponse(detail, status)
    if refreshes_live(request):
        response = render_part(request, "live_problem.html", status, kind=kind, detail=detail, hint=hint)
        response.headers["HX-Retarget"] = "#live-problem"
        response.headers["HX-Reswap"] = "innerHTML"
        return response
    return render(request, "error.html", status, kind=kind, detail=detail, hint=hint)
