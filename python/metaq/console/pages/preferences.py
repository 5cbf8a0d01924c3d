"""The language and the colours that a reader prefers, kept in cookies of the browser."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from metaq.console.console import console_of
from metaq.console.words import LANGUAGES

YEAR_S = 365 * 86_400
NEXT_THEME = {"auto": "dark", "dark": "light", "light": "auto"}


async def change(request: Request) -> Response:
    """Stores what was chosen and goes back to the page."""
    settings = console_of(request).settings
    form = await request.form()
    back = form.get("back")
    # Only a path of this console: `//host` would be another one.
    is_ours = (
        isinstance(back, str) and back.startswith(settings.base_path + "/") and not back.startswith("//")
    )
    response = RedirectResponse(str(back) if is_ours else settings.base_path + "/", status_code=303)
    language, theme = form.get("language"), form.get("theme")
    if theme == "next":
        theme = NEXT_THEME.get(request.cookies.get("metaq-theme", "auto"), "dark")
    for name, value, allowed in (
        ("metaq-language", language, LANGUAGES),
        ("metaq-theme", theme, tuple(NEXT_THEME)),
    ):
        if isinstance(value, str) and value in allowed:
            response.set_cookie(
                name,
                value,
                max_age=YEAR_S,
                path=settings.base_path or "/",
                samesite="lax",
                secure=settings.secure_cookies,
            )
    return response


def _own_path(back: object, base_path: str) -> str:
    """Returns the page to go back to: `//host` and `/\\host` would be another site."""
    is_path = isinstance(back, str) and back.startswith(f"{base_path}/") and back.isprintable()
    return str(back) if is_path and str(back)[1:2] not in ("/", "\\") else f"{base_path}/"


ROUTES = [Route("/preferences", change, methods=["POST"])]
