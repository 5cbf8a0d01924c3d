"""The list of consumer groups, the worst first."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaq.console.console import console_of
from metaq.console.live.paging import page
from metaq.console.live.tables import GroupTable
from metaq.console.pages.lists import list_query
from metaq.console.rendering import render

COLUMNS = ("name", "lag_ms", "lag", "trend", "clear", "members", "out")
KINDS = ("normal", "system")


async def groups(request: Request) -> Response:
    """All groups with their lag; searched, sorted and cut into pages here."""
    live = console_of(request).live
    kind = request.query_params.get("kind", "normal")
    table = live.groups.value or GroupTable()
    query = list_query(request, COLUMNS, table.worst_first, descending=True)
    found = page(
        table.rows,
        search=query.search,
        kind=kind if kind in KINDS else None,
        sort=query.sort,
        descending=query.descending,
        offset=query.offset,
        limit=query.limit,
    )
    looked = await live.look_at_groups([row.name for row in found.rows])
    rows = tuple(looked.get(row.name, row) for row in found.rows)
    return render(
        request,
        "groups.html",
        query=replace(query, offset=found.offset),
        page=replace(found, rows=rows),
        kind=kind,
        kinds=KINDS,
        notes=table.notes,
    )


ROUTES = [Route("/groups", groups)]
