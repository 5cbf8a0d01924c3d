"""One consumer group: its lag over time, its queues and their owners, its members, its settings."""

from __future__ import annotations

import asyncio
from typing import Final, Literal

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaq.admin.groups.stacks import for_people
from metaq.admin.results import GroupSettings
from metaq.console.console import console_of
from metaq.console.live.latest import latest_of
from metaq.console.live.paging import page
from metaq.console.live.tables import GroupRow
from metaq.console.pages.group_looks import (
    MEMBERS_ASKED_MAX,
    look_at_members,
    look_at_queues,
    queue_rows,
    topic_rows,
)
from metaq.console.pages.lists import list_query
from metaq.console.rendering import render
from metaq.errors import NoSuchGroup
from metaq.protocol.names import DEAD_LETTER_PREFIX, RETRY_PREFIX

TABS: Final = ("lag", "queues", "members", "settings")
QUEUE_COLUMNS: Final = ("queue", "owner", "committed", "end", "lag", "lag_ms")
TOPICS_SHOWN: Final = 20
STACK_LENGTH_MAX: Final = 200_000
"""Characters of a stack that a page shows."""
SETTINGS_AGE_MS_MAX: Final = 9_000


async def lag(request: Request) -> Response:
    """The lag in messages and in time, over an hour or a day, and by topic."""
    name, row = await _find(request)
    queues = await look_at_queues(request, name, row)
    topics = topic_rows(queues.value.rows.values()) if queues.value else ()
    return _render(
        request,
        "group/lag.html",
        name,
        row,
        tab="lag",
        range=_range(request),
        queues=queues,
        topics=topics[:TOPICS_SHOWN],
        topics_total=len(topics),
        findings=_findings(request, name),
    )


async def queues(request: Request) -> Response:
    """Each queue with its owner, its offsets and its waiting messages."""
    name, row = await _find(request)
    query = list_query(request, QUEUE_COLUMNS, "lag", descending=True)
    looked = await look_at_queues(request, name, row)
    members = await look_at_members(request, name)
    rows = queue_rows(looked.value, members.value if not members.is_stale else None)
    found = page(
        rows,
        search=query.search,
        sort=query.sort,
        descending=query.descending,
        offset=query.offset,
        limit=query.limit,
    )
    return _render(
        request,
        "group/queues.html",
        name,
        row,
        tab="queues",
        query=query,
        page=found,
        queues=looked,
        members=members,
        asked_max=MEMBERS_ASKED_MAX,
    )


async def members(request: Request) -> Response:
    """The clients that consume for the group, their subscriptions, and where these contradict each other."""
    name, row = await _find(request)
    query = list_query(request, ("name",), "name", descending=False)
    looked = await look_at_members(request, name)
    shown = looked.value.members.members if looked.value else ()
    wanted = query.search.lower()
    matching = [one for one in shown if wanted in f"{one.client_id} {one.address}".lower()]
    return _render(
        request,
        "group/members.html",
        name,
        row,
        tab="members",
        query=query,
        looked=looked,
        matching=matching,
        shown=matching[query.offset : query.offset + query.limit],
        total=len(shown),
        asked_max=MEMBERS_ASKED_MAX,
    )


async def stack(request: Request) -> Response:
    """The stacks of the threads of one member, asked for now."""
    name = request.path_params["name"]
    client_id = request.query_params.get("client", "")
    asked = await console_of(request).admin.groups.running(name, stacks=True, client_ids=[client_id])
    found = next(iter(asked.members), None)
    text = await asyncio.to_thread(for_people, found.stack, name) if found and found.stack else ""
    return render(
        request,
        "group/stack.html",
        name=name,
        client_id=client_id,
        member=found,
        text=text[:STACK_LENGTH_MAX],
        length=len(text),
    )


async def settings(request: Request) -> Response:
    """The settings and limits on each broker."""
    name, row = await _find(request)
    admin = console_of(request).admin

    async def ask(_: tuple[GroupSettings, ...] | None) -> tuple[GroupSettings, ...]:
        return await admin.groups.settings(name)

    found = await latest_of(request).ask(("group-settings", name), ask, age_ms_max=SETTINGS_AGE_MS_MAX)
    return _render(request, "group/settings.html", name, row, tab="settings", found=found)


def _render(request: Request, template: str, name: str, row: GroupRow | None, **context: object) -> Response:
    live = console_of(request).live
    table, letters = live.groups.value, live.dead_letters.value
    return render(
        request,
        template,
        200,
        name=name,
        row=row,
        tabs=TABS,
        retry_topic=RETRY_PREFIX + name,
        dead_letter_topic=DEAD_LETTER_PREFIX + name,
        letters=None if letters is None else letters.get(name),
        letters_known=letters is not None,
        is_known=table is None or table.has_all_figures,
        **context,
    )


async def _find(request: Request) -> tuple[str, GroupRow | None]:
    """Returns the name and the row of the group. A group that no broker has is a page that does not exist."""
    name = request.path_params["name"]
    live = console_of(request).live
    table = live.groups.value
    if table is not None and name in table.rows:
        looked = await live.look_at_groups([name])
        return name, looked.get(name, table.rows[name])
    try:
        # The list may be older than the group.
        await console_of(request).admin.groups.settings(name)
    except NoSuchGroup as error:
        raise HTTPException(404, str(error)) from error
    return name, None


def _findings(request: Request, name: str) -> list[object]:
    health = console_of(request).live.health.value
    return [] if health is None else [finding for finding in health.findings if finding.subject == name]


def _range(request: Request) -> Literal["1h", "24h"]:
    return "24h" if request.query_params.get("range") == "24h" else "1h"


ROUTES = [
    Route("/groups/{name}", lag),
    Route("/groups/{name}/queues", queues),
    Route("/groups/{name}/members", members),
    Route("/groups/{name}/stack", stack),
    Route("/groups/{name}/settings", settings),
]
