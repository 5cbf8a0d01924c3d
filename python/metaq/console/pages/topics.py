"""The list of topics."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaq.console.console import console_of
from metaq.console.live.paging import page as page_of
from metaq.console.pages.lists import list_query
from metaq.console.rendering import render

COLUMNS = ("name", "in", "out", "messages", "size", "oldest")
KINDS = ("normal", "retry", "dead-letter", "system")


async def topics(request: Request) -> Response:
    """All topics with their traffic; searched, sorted and cut into pages here."""
    live = console_of(request).live
    query = list_query(request, COLUMNS, "in", descending=True)
    kind = request.query_params.get("kind", "normal")
    page = page_of(
        live.topics.value.rows if live.topics.value else {},
        search=query.search,
        kind=kind if kind in KINDS else None,
        sort=query.sort,
        descending=query.descending,
        offset=query.offset,
        limit=query.limit,
    )
    rows = await live.look_at_topics([row.name for row in page.rows])
    return render(
        request, "topics.html", query=query, page=page, rows=list(rows.values()), kind=kind, kinds=KINDS
    )


ROUTES = [Route("/topics", topics)]
