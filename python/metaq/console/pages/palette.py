"""The palette: one search over pages, topics, groups, messages and actions; and names for fields of forms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

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
GROUPS_WITH_ACTIONS: Final = 3
SUGGESTED_MAX: Final = 200
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
    if typed:
        yield from _named(request, typed)


def _named(request: Request, typed: str) -> Iterator[Item]:
    """Yields topics, groups and what one does with groups. Names that only the cluster uses come last."""
    live = console_of(request).live
    topics = live.topics.value.rows if live.topics.value is not None else {}
    groups = live.groups.value.rows if live.groups.value is not None else {}
    found_topics, found_groups = best_matches(topics, typed), best_matches(groups, typed)
    own_groups = [name for name in found_groups if groups[name].kind == "normal"]
    yield from _links(request, "topics", [name for name in found_topics if topics[name].kind == "normal"])
    yield from _links(request, "groups", own_groups)
    yield from _of_groups(request, own_groups[:GROUPS_WITH_ACTIONS])
    yield from _links(request, "topics", [name for name in found_topics if topics[name].kind != "normal"])
    yield from _links(request, "groups", [name for name in found_groups if groups[name].kind != "normal"])


def _links(request: Request, kind: str, names: list[str]) -> Iterator[Item]:
    label = words_of(request, f"common.{kind[:-1]}")
    for name in names:
        yield Item(kind, name, label, url_of(request, f"/{kind}/{segment(name)}"))


def _of_groups(request: Request, names: list[str]) -> Iterator[Item]:
    for name in names:
        if request.state.identity.role.permits(Role.operator):
            text = words_of(request, "common.reset_of", group=name)
            address = url_of(request, "/actions/reset-group", group=name)
            yield Item("rewind", text, words_of(request, "common.action"), address, action=True)
        text = words_of(request, "common.dead_letters_of", group=name)
        yield Item("dead-letters", text, "", url_of(request, f"/dead-letters/{segment(name)}"))


async def suggestions(request: Request) -> Response:
    """The names of topics or groups that match what was typed into a field of a form."""
    live = console_of(request).live
    table = live.topics.value if request.path_params["kind"] == "topics" else live.groups.value
    # The field has the name that its form needs.
    typed = next(iter(request.query_params.values()), "").strip()[:255]
    names = best_matches(table.rows, typed, SUGGESTED_MAX) if table is not None else []
    return render_part(request, "suggestions.html", names=names)


ROUTES = [Route("/palette", palette), Route("/suggestions/{kind}", suggestions)]
