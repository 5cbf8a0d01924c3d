"""The search for messages: by id, by key, or by topic and time."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from metaq.console.console import console_of
from metaq.console.matching import best_matches
from metaq.console.pages.message_search import SPANS, FoundMessages, MessageQuery, message_query, search
from metaq.console.rendering import render, segment, url_of
from metaq.errors import MetaqError, NoRoute

WAYS: Final = ("id", "key", "time")
SUGGESTED: Final = 8


async def messages(request: Request) -> Response:
    """The form of one way to search, and the messages that it finds."""
    parameters = request.query_params
    id, topic = parameters.get("id", "").strip()[:500], parameters.get("topic", "").strip()[:200]
    if id:
        path = f"/messages/{segment(id)}"
        return RedirectResponse(url_of(request, path, topic=topic or None), 303)
    way = parameters.get("by", "id")
    query = message_query(request, topic)
    found: FoundMessages | None = None
    fault: MetaqError | None = None
    similar: list[str] = []
    try:
        if topic and _is_complete(way, query):
            found = await search(console_of(request), query)
    except MetaqError as error:
        fault = error
        if isinstance(error, NoRoute) and not error.retriable:
            similar = _similar(request, topic)
    return _page(request, way if way in WAYS else "id", query, found, fault, similar)


def _is_complete(way: str, query: MessageQuery) -> bool:
    return bool(query.key) if way == "key" else way == "time"


def _similar(request: Request, topic: str) -> list[str]:
    """Returns topics whose names contain what was typed, or begin like it."""
    table = console_of(request).live.topics.value
    rows = table.rows if table is not None else {}
    return (best_matches(rows, topic) or best_matches(rows, topic[:4]))[:SUGGESTED]


def _page(
    request: Request,
    way: str,
    query: MessageQuery,
    found: FoundMessages | None,
    fault: MetaqError | None,
    similar: list[str],
) -> Response:
    return render(
        request,
        "messages.html",
        way=way,
        ways=WAYS,
        query=query,
        found=found,
        fault=fault,
        similar=similar,
        spans=SPANS,
    )


ROUTES = [Route("/messages", messages)]
