"""The pages /login and /logout."""

from __future__ import annotations

import hmac
import math
import re
import secrets
from functools import cache
from typing import TYPE_CHECKING, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from metaq.console.access.hosts import own_path
from metaq.console.access.roles import Role, address_of, identity_of
from metaq.console.access.sessions import csrf_token
from metaq.console.static_files import static_path
from metaq.console.words import chosen_language, word

if TYPE_CHECKING:
    from metaq.console.access.access import Access

LOGIN: Final = "/login"
LOGOUT: Final = "/logout"
_FORM_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{43}")


async def show_sign_in(request: Request) -> Response:
    """Shows how to sign in; people who are signed in go on."""
    if request.state.identity is not None:
        return RedirectResponse(_next(request, request.query_params.get("next", "")), 303)
    return sign_in_page(request, 200, wanted=request.query_params.get("next", ""))


async def sign_in(request: Request) -> Response:
    """Signs in by name and password."""
    access: Access = request.state.access
    async with request.form(max_fields=10) as form:
        name, password, csrf, wanted = (
            str(form.get(field, "")) for field in ("name", "password", "csrf", "next")
        )
    form_secret = request.cookies.get(_form_cookie(access), "")
    if not form_secret or not hmac.compare_digest(csrf.encode(), csrf_token(form_secret).encode()):
        return sign_in_page(request, 403, wanted=wanted, problem="form_expired")
    if access.directory is None:
        return sign_in_page(request, 403, wanted=wanted)
    wait_s = access.brake.begin(address_of(request))
    if wait_s > 0:
        return _wait_page(request, wanted, "too_many", wait_s)
    identity = await access.directory.sign_in(name, password)
    if identity is None:
        return sign_in_page(request, 403, wanted=wanted, problem="wrong_password")
    wait_s = access.brake.succeed(address_of(request), identity.name)
    if wait_s > 0:
        return _wait_page(request, wanted, "too_many_sign_ins", wait_s)
    response = RedirectResponse(_next(request, wanted), 303)
    response.delete_cookie(_form_cookie(access), path=access.cookie_path)
    await begin_session(request, response, identity.name, identity.role, how="password")
    return response


async def sign_out(request: Request) -> Response:
    """Ends the session, also in other windows."""
    access: Access = request.state.access
    identity = identity_of(request)
    await access.sessions.remove(identity.session)
    await access.audit.record(identity, address_of(request), "sign out", "console", "done")
    response = sign_in_page(request, 200, problem="signed_out")
    _forget(response, access)
    return response


async def begin_session(request: Request, response: Response, name: str, role: Role, *, how: str) -> None:
    """Signs somebody in with this response, and signs the same browser's former session out."""
    access: Access = request.state.access
    former = request.state.identity
    cookie, identity = await access.sessions.create(name, role)
    if former is not None:
        await access.sessions.remove(former.session)
    await access.audit.record(identity, address_of(request), "sign in", how, "done")
    response.set_cookie(
        access.cookie_name,
        cookie,
        max_age=int(access.settings.session_age_s_max),
        path=access.cookie_path,
        secure=access.settings.secure_cookies,
        httponly=True,
        # A link in a mail or a chat comes from another site, and the redirect after it must have the cookie.
        samesite="lax",
    )


def sign_in_page(
    request: Request, status: int, *, wanted: str = "", problem: str = "", seconds: int = 0
) -> Response:
    """Returns the page that says how to sign in, with the reason why it is shown."""
    access: Access = request.state.access
    language = chosen_language(
        request.cookies.get("metaq-language"), request.headers.get("accept-language", "")
    )
    theme = request.cookies.get("metaq-theme", "")
    form_secret = request.cookies.get(_form_cookie(access), "")
    if not _FORM_SECRET.fullmatch(form_secret):
        form_secret = secrets.token_urlsafe(32)

    def t(key: str, **fields: object) -> str:
        return word(language, key, fields)

    text = (
        _environment()
        .get_template("sign_in.html")
        .render(
            t=t,
            base_path=access.settings.base_path,
            static=lambda name: access.settings.base_path + static_path(name),
            language=language,
            theme=theme if theme in ("light", "dark") else "auto",
            problem=t(f"sign_in.{problem}", seconds=seconds) if problem else "",
            is_error=problem not in ("", "signed_out"),
            has_passwords=access.directory is not None,
            wanted=own_path(wanted) if wanted else "",
            csrf=csrf_token(form_secret),
        )
    )
    response = HTMLResponse(text, status)
    response.set_cookie(
        _form_cookie(access),
        form_secret,
        path=access.cookie_path,
        secure=access.settings.secure_cookies,
        httponly=True,
        samesite="strict",
    )
    return response


def _wait_page(request: Request, wanted: str, problem: str, wait_s: float) -> Response:
    seconds = math.ceil(wait_s)
    page = sign_in_page(request, 429, wanted=wanted, problem=problem, seconds=seconds)
    page.headers["Retry-After"] = str(seconds)
    return page


def _forget(response: Response, access: Access) -> None:
    response.delete_cookie(
        access.cookie_name, path=access.cookie_path, secure=access.settings.secure_cookies, httponly=True
    )


def _form_cookie(access: Access) -> str:
    """Returns the cookie that ties the form to the browser that asked for it."""
    return f"{access.cookie_name}-form"


def _next(request: Request, wanted: str) -> str:
    access: Access = request.state.access
    return access.settings.base_path + own_path(wanted)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("metaq.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


ROUTES = [
    Route(LOGIN, show_sign_in, methods=["GET"]),
    Route(LOGIN, sign_in, methods=["POST"]),
    Route(LOGOUT, sign_out, methods=["POST"]),
]
