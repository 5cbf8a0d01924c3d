"""The palette: one search over pages, topics, groups, messages and actions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaq.console.access.roles import Role
from metaq.console.actions.table import ACTIONS
from metaq.console.console import console_of
from metaq.console.matching import best_matches
from metaq.console.rendering import render_part, segment, url_of, words_of

PAGES = (
    ("overview", "/"),
    ("topics", "/topics"),
    ("groups", "/groups"),
    ("messages", "/messages"),
    ("dead-letters", "/dead-letters"),
    ("delayed", "/delayed"),
    ("transactions", "/transactions"),
    ("cluster", "/cluster"),
    ("pipelines", "/pipelines"),
    ("audit", "/audit"),
    ("settings", "/settings"),
)
DIRECT_ACTIONS = ("create-topic", "create-group", "send-message")
"""Actions that need no row of a table to begin with."""
MESSAGE_ID = re.compile(r"[0-9A-Fa-f]{32}")


@dataclass(frozen=True, slots=True)
class Item:
    """One line of the palette."""

    icon: str
    text: str
    kind: str
    href: str
    action: bool = False


async def palette(request: Request) -> Response:
    """The best matches for what was typed."""
    typed = request.query_params.get("q", "").strip()[:200]
    return render_part(request, "palette.html", items=list(_items(request, typed)))


def _items(request: Request, typed: str) -> Iterator[Item]:
    live = console_of(request).live
    if MESSAGE_ID.fullmatch(typed):
        yield Item(
            "messages", typed, words_of(request, "common.message"), url_of(request, "/messages", id=typed)
        )
    for icon, path in PAGES:
        title = words_of(request, f"common.page_{icon.replace('-', '_')}")
        if typed.lower() in title.lower() or typed.lower() in icon:
            yield Item(icon, title, "", url_of(request, path))
    if request.state.identity.role.permits(Role.operator):
        for name in DIRECT_ACTIONS:
            if name in ACTIONS:
                title = words_of(request, f"actions.{name.replace('-', '_')}")
                if typed.lower() in title.lower():
                    kind = words_of(request, "common.action")
                    yield Item("add", title, kind, url_of(request, f"/actions/{name}"), action=True)
    for kind, table in (("topics", live.topics.value), ("groups", live.groups.value)):
        if table is not None and typed:
            label = words_of(request, f"common.{kind[:-1]}")
            for name in best_matches(table.rows, typed):
                yield Item(kind, name, label, url_of(request, f"/{kind}/{segment(name)}"))


ROUTES = [Route("/palette", palette)]
