"""One topic: its messages, the messages that arrive, its queues, clients, groups, settings and traffic.

Each tab has an address of its own, such as `/topics/orders/queues`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaq.admin.results import ConnectedClients
from metaq.console.console import console_of
from metaq.console.live.live import Live
from metaq.console.live.parts import Part
from metaq.console.live.tables import TopicRow
from metaq.console.pages.lists import list_query
from metaq.console.pages.message_search import SPANS, message_query, search
from metaq.console.pages.topic_looks import look_at_groups, look_at_producers, look_at_topic
from metaq.console.rendering import refreshes_live, render
from metaq.errors import MetaqError, NoRoute

TABS: Final = ("messages", "live", "queues", "groups", "producers", "traffic", "settings")
RANGES: Final = ("1h", "24h")

Tab = Callable[[Request, str, TopicRow | None], Awaitable[dict[str, Any]]]
"""Returns the variables of a tab's template."""


async def topic(request: Request) -> Response:
    """The page of a topic with one of its tabs."""
    console = console_of(request)
    name: str = request.path_params["name"]
    tab: str = request.path_params.get("tab", "messages")
    if tab not in TABS:
        raise HTTPException(404)
    row = (await console.live.look_at_topics([name])).get(name)
    if row is None:
        # It may be new, or a part of the cluster does not answer.
        try:
            await console.admin.topics.route(name)
        except NoRoute as error:
            if error.retriable:
                raise
            raise HTTPException(404, str(error)) from None
    context = await _VARIABLES[tab](request, name, row)
    return render(
        request,
        "topic.html",
        name=name,
        tab=tab,
        tabs=TABS,
        row=row,
        as_of_ms=_as_of_ms(console.live, row),
        **context,
    )


def _as_of_ms(live: Live, row: TopicRow | None) -> int:
    """Returns when the figures were true. An age that counts on after the poll would say that a topic is
    quiet; but if the figures are old, it is the age that counts."""
    now_ms = time.time_ns() // 1_000_000
    is_current = row is not None and row.stale_ms is None and live.topics.taken_ms is not None
    return min(live.topics.taken_ms or now_ms, now_ms) if is_current else now_ms


async def _messages(request: Request, name: str, row: TopicRow | None) -> dict[str, Any]:
    """The search is not made again when only the figures above it are refreshed."""
    query, found, fault = message_query(request, name), None, None
    try:
        found = None if refreshes_live(request) else await search(console_of(request), query)
    except MetaqError as error:
        fault = error
    return {"query": query, "found": found, "fault": fault, "spans": SPANS}


async def _live(request: Request, name: str, row: TopicRow | None) -> dict[str, Any]:
    return {"query": message_query(request, name)}


async def _queues(request: Request, name: str, row: TopicRow | None) -> dict[str, Any]:
    look = await look_at_topic(request, name, row)
    query = list_query(request, ("queue",), "queue", descending=False)
    queues = look.value.queues if look.value else ()
    shown = queues[query.offset : query.offset + query.limit]
    return {"look": look, "queues": shown, "list_query": query, "total": len(queues)}


async def _groups(request: Request, name: str, row: TopicRow | None) -> dict[str, Any]:
    look = await look_at_groups(request, name)
    names = look.value or ()
    query = list_query(request, ("name",), "name", descending=False)
    shown = names[query.offset : query.offset + query.limit]
    rows = await console_of(request).live.look_at_groups(shown)
    groups = [(group, rows.get(group)) for group in shown]
    return {"look": look, "groups": groups, "list_query": query, "total": len(names)}


async def _producers(request: Request, name: str, row: TopicRow | None) -> dict[str, Any]:
    # The list stays as it is while the figures above it are refreshed.
    look: Part[ConnectedClients] = Part()
    if not refreshes_live(request):
        look = await look_at_producers(request)
    brokers = {*row.figures.brokers, *row.missing} if row else set()
    clients = look.value.clients if look.value else ()
    connected = [client for client in clients if row is None or brokers.intersection(client.brokers)]
    query = list_query(request, ("name",), "name", descending=False)
    words = query.search.lower().split()
    matching = [
        client
        for client in connected
        if all(word in f"{client.group} {client.client_id} {client.address}".lower() for word in words)
    ]
    return {
        "look": look,
        "producers": matching[query.offset : query.offset + query.limit],
        "list_query": query,
        "total": len(connected),
        "matching": len(matching),
    }


async def _traffic(request: Request, name: str, row: TopicRow | None) -> dict[str, Any]:
    chosen = request.query_params.get("range", "1h")
    return {"range": chosen if chosen in RANGES else "1h", "ranges": RANGES}


async def _settings(request: Request, name: str, row: TopicRow | None) -> dict[str, Any]:
    return {"look": await look_at_topic(request, name, row)}


_VARIABLES: Final[dict[str, Tab]] = {
    "messages": _messages,
    "live": _live,
    "queues": _queues,
    "groups": _groups,
    "producers": _producers,
    "traffic": _traffic,
    "settings": _settings,
}

ROUTES = [Route("/topics/{name}", topic), Route("/topics/{name}/{tab}", topic)]
