"""The language and the colours that a reader prefers, kept in cookies of the browser."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from metaq.console.access.hosts import own_path
from metaq.console.console import console_of
from metaq.console.words import LANGUAGES

YEAR_S = 365 * 86_400
NEXT_THEME = {"auto": "dark", "dark": "light", "light": "auto"}


async def change(request: Request) -> Response:
    """Stores what was chosen and goes back to the page."""
    settings = console_of(request).settings
    form = await request.form()
    back = str(form.get("back", "")).removeprefix(settings.base_path)
    response = RedirectResponse(settings.base_path + own_path(back), status_code=303)
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


ROUTES = [Route("/preferences", change, methods=["POST"])]
