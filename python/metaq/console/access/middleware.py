"""Checks every request before a page sees it: its host, its link or session, its CSRF token."""

from __future__ import annotations

import asyncio
import hmac
import logging
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metaq.console.access.access import Access
from metaq.console.access.body import BODY_BYTES_MAX, TOO_LARGE, BoundedBody
from metaq.console.access.cookies import with_own_cookies
from metaq.console.access.headers import is_static, secured
from metaq.console.access.hosts import is_known_host, is_own_request, own_path
from metaq.console.access.log_brake import LogBrake
from metaq.console.access.roles import Identity, Role, address_of, only_for
from metaq.console.access.sign_in import LOGIN, LOGOUT, begin_session, sign_in_page
from metaq.console.settings import ConsoleSettings
from metaq.digits import number_in

_log = logging.getLogger(__name__)
_log.addFilter(LogBrake())

_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SMALL_BODY_BYTES_MAX: Final = 64 * 1024
_ADDRESS_FIELDS_MAX: Final = 2_000
_FORM: Final = "application/x-www-form-urlencoded"
_UNKNOWN_HOST: Final = (
    "The console does not know this host name. Use 127.0.0.1 or localhost, "
    "or allow the name with `metaq console --host-name NAME`."
)
_MALFORMED: Final = "The address must be a path, and a request that only reads must have no body."
_MANY_FIELDS: Final = f"The address has more than {_ADDRESS_FIELDS_MAX} fields. Send fewer."
_NO_FORM: Final = f"The console takes forms of the type {_FORM} only."
_FOREIGN: Final = "This request does not come from a page of this console."
_NO_CSRF: Final = (
    "The request lacks the token of your session (X-CSRF-Token, or the field csrf). Reload the page."
)
_VIEWER_MAY_SEND: Final = frozenset({LOGOUT, "/preferences"})
"""Paths to which a viewer may send forms: they change nothing but this person's own browser."""
_SMALL: Final = _VIEWER_MAY_SEND | {LOGIN}
"""Paths with small forms, which need no operator."""
_NOT_SIGNED_IN: Final = (
    "You are not signed in. Run `metaq console link` on the console's machine, and open the link."
)


class AccessMiddleware:
    """Lets a request through if it may be served, and answers it otherwise."""

    def __init__(self, app: ASGIApp, *, settings: ConsoleSettings, access: Access) -> None:
        self._app = app
        self._settings = settings
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, secured(send, scope["path"]))

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        scope["headers"] = with_own_cookies(scope["headers"])
        body = BoundedBody(receive, bytes_max=_SMALL_BODY_BYTES_MAX if path in _SMALL else BODY_BYTES_MAX)
        request = Request(scope, body)
        request.state.access = self._access
        request.state.identity = None
        refusal = self._refusal_of_headers(request)
        if refusal is None and not is_static(path):
            identity = self._access.sessions.find(request.cookies.get(self._access.cookie_name, ""))
            request.state.identity = identity
            refusal = await self._admit(request, body, identity)
            if identity is not None:
                send = self._while_signed_in(send, identity)
        if refusal is None:
            await self._app(scope, body, send)
        else:
            await refusal(scope, body, send)

    def _refusal_of_headers(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if not is_known_host(host, self._settings.hosts):
            return PlainTextResponse(_UNKNOWN_HOST, 400)
        if not request.scope["path"].startswith("/"):
            return PlainTextResponse(_MALFORMED, 400)
        if request.scope["query_string"].count(b"&") >= _ADDRESS_FIELDS_MAX:
            return PlainTextResponse(_MANY_FIELDS, 400)
        if request.method in _READING:
            if "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0":
                return PlainTextResponse(_MALFORMED, 400, {"Connection": "close"})
        else:
            if not is_own_request(
                origin=request.headers.get("origin", ""),
                fetch_site=request.headers.get("sec-fetch-site", ""),
                host=host,
                hosts=self._settings.hosts,
            ):
                return PlainTextResponse(_FOREIGN, 403)
            length = request.headers.get("content-length", "0")
            if number_in(length, BODY_BYTES_MAX) is None:
                return PlainTextResponse(TOO_LARGE, 413, {"Connection": "close"})
            # A form in parts may name a character set that takes minutes to decode.
            if _content_type(request) not in ("", _FORM):
                return PlainTextResponse(_NO_FORM, 415)
        return None

    async def _admit(self, request: Request, body: BoundedBody, identity: Identity | None) -> Response | None:
        """Returns the answer to a request that no page may serve, or None."""
        if request.method in ("GET", "HEAD") and "token" in request.query_params:
            return await self._use_link(request, identity)
        if request.scope["path"] == LOGIN:
            return None
        if identity is None:
            return self._ask_to_sign_in(request)
        if request.method in _READING:
            return None
        if not identity.role.permits(Role.operator) and request.scope["path"] not in _VIEWER_MAY_SEND:
            return PlainTextResponse(only_for(Role.operator, identity), 403)
        try:
            given = request.headers.get("x-csrf-token") or await _field(request, body, "csrf")
        except HTTPException as error:
            return PlainTextResponse(error.detail, error.status_code, error.headers)
        if not hmac.compare_digest(given.encode(), identity.csrf.encode()):
            return PlainTextResponse(_NO_CSRF, 403)
        return None

    async def _use_link(self, request: Request, identity: Identity | None) -> Response:
        """Spends the token in the address, and goes on to the same address without it."""
        query = parse_qsl(request.url.query, keep_blank_values=True)
        rest = [(name, value) for name, value in query if name != "token"]
        target = _address(self._settings, self._sent_path(request), rest)
        if request.method == "HEAD" or _is_prefetch(request):
            # Only a person who opens the link uses it up, not a program that looks at it.
            return PlainTextResponse("This link signs in one person. Open it in a browser.", 403)
        role = await asyncio.to_thread(self._access.links.spend, request.query_params["token"])
        if role is None:
            if identity is not None:
                return RedirectResponse(target, 303)
            _log.warning("somebody at %s came with a link that is not valid", address_of(request))
            return sign_in_page(request, 403, problem="link_refused")
        response = RedirectResponse(target, 303)
        await begin_session(request, response, role.value, role, how="link")
        return response

    def _ask_to_sign_in(self, request: Request) -> Response:
        path = request.scope["path"]
        if request.method not in _READING or path == "/events":
            return PlainTextResponse(_NOT_SIGNED_IN, 401)
        if request.headers.get("hx-request"):
            login = _address(self._settings, LOGIN, [])
            return PlainTextResponse(_NOT_SIGNED_IN, 401, {"HX-Redirect": login})
        wanted = self._sent_path(request)
        if request.url.query:
            wanted += f"?{request.url.query}"
        return RedirectResponse(
            _address(self._settings, LOGIN, [] if wanted == "/" else [("next", wanted)]), 303
        )

    def _sent_path(self, request: Request) -> str:
        """Returns the path below the base path as the browser sent it. Decoded, `a%2Fb` would be two
        parts."""
        raw = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
        path, base_path = raw.decode("ascii", "replace"), self._settings.base_path
        if base_path and (path == base_path or path.startswith(f"{base_path}/")):
            path = path[len(base_path) :]
        return path or "/"

    def _while_signed_in(self, send: Send, identity: Identity) -> Send:
        """Returns a `send` that ends a stream, such as /events, when its session ends."""
        is_ended = False

        async def send_while_signed_in(message: Message) -> None:
            nonlocal is_ended
            if is_ended:
                return
            if message.get("more_body") and not self._access.sessions.is_open(identity.session):
                is_ended = True
                message = {"type": "http.response.body", "body": b"", "more_body": False}
            await send(message)

        return send_while_signed_in


async def _field(request: Request, body: BoundedBody, name: str) -> str:
    """Returns a field of a form, or an empty text. The page can read the form again."""
    if _content_type(request) != _FORM:
        return ""
    content = await body.read()

    async def receive() -> Message:
        return {"type": "http.request", "body": content, "more_body": False}

    # A scope of its own: the page must not find a form that is closed already.
    async with Request(dict(request.scope), receive).form(max_part_size=BODY_BYTES_MAX) as form:
        value = form.get(name, "")
    return value if isinstance(value, str) else ""


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _is_prefetch(request: Request) -> bool:
    purposes = (request.headers.get(name, "") for name in ("sec-purpose", "purpose", "x-moz"))
    return any("prefetch" in purpose or "prerender" in purpose for purpose in purposes)


def _address(settings: ConsoleSettings, path: str, query: list[tuple[str, str]]) -> str:
    return f"{settings.base_path}{own_path(path)}" + (f"?{urlencode(query)}" if query else "")
