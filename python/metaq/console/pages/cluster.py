"""The servers of the cluster: name servers, brokers, and groups of brokers with their replicas."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaq.console.console import console_of
from metaq.console.pages.lists import list_query
from metaq.console.rendering import render


async def cluster(request: Request) -> Response:
    """All servers as the last poll found them; this page sends no request."""
    live = console_of(request).live
    query = list_query(request, ("name",), "name", descending=False)
    rows = () if live.brokers.value is None else tuple(live.brokers.value.values())
    words = query.search.lower().split()
    matching = [
        row
        for row in rows
        if all(word in f"{row.name} {row.health.cluster} {row.health.address}".lower() for word in words)
    ]
    shown = matching[query.offset : query.offset + query.limit]
    names = {row.health.name for row in shown}
    health = live.health.value
    return render(
        request,
        "cluster.html",
        query=query,
        shown=shown,
        matching=len(matching),
        total=len(rows),
        health=health,
        groups=[] if health is None else [group for group in health.groups if group.name in names],
        foreign=sorted({row.health.name for row in shown if row.health.kind == "rocketmq"}),
    )


ROUTES = [Route("/cluster", cluster)]
