"""Dead letters: the groups that have some, the letters of one group, and their export."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from metaq.admin.results import DeadLetter, DeadLetterCount
from metaq.console.bodies import preview
from metaq.console.console import console_of
from metaq.console.live.paging import page as page_of
from metaq.console.pages.lists import list_query
from metaq.console.rendering import render
from metaq.errors import MetaqError, NoSuchMessage

COLUMNS: Final = ("name", "stored", "size", "last")
SHOWN: Final = 50
SHOWN_MAX: Final = 200
"""Each letter that was not sent again costs a request, so a page shows only this many."""


async def groups(request: Request) -> Response:
    """The groups that have dead letters, with how many brokers hold."""
    live = console_of(request).live
    query = list_query(request, COLUMNS, "stored", descending=True)
    held = {name: row for name, row in (live.dead_letters.value or {}).items() if row.stored != 0}
    page = page_of(
        held,
        search=query.search,
        sort=query.sort,
        descending=query.descending,
        offset=query.offset,
        limit=query.limit,
    )
    return render(request, "dead_letters.html", query=query, page=page)


async def letters(request: Request) -> Response:
    """The letters of one group: those that were not sent again yet, or all of them."""
    admin = console_of(request).admin
    group = request.path_params["group"]
    shows_all = request.query_params.get("all") == "1"
    wanted = request.query_params.get("id", "").strip()[:64]
    limit = SHOWN_MAX if request.query_params.get("more") == "1" else SHOWN
    problem, found, is_cut = "", list[DeadLetter](), False
    count: DeadLetterCount | None = None
    try:
        count = (await admin.dead_letters.counts([group]))[0]
        if wanted:
            found = [await admin.dead_letters.find(group, wanted)]
        else:
            found, is_cut = await _first(admin.dead_letters.list(group, resent=shows_all), limit)
    except NoSuchMessage as error:
        problem = str(error)
    return render(
        request,
        "dead_letter_group.html",
        group=group,
        letters=found,
        count=count,
        is_cut=is_cut,
        limit=limit,
        limit_max=SHOWN_MAX,
        shows_all=shows_all,
        wanted=wanted,
        problem=problem,
        preview=preview,
    )


async def export(request: Request) -> Response:
    """All letters of a group with their bodies, one JSON object per line, as `metaq dlq export` has them."""
    admin = console_of(request).admin
    group = request.path_params["group"]
    shows_all = request.query_params.get("all") == "1"

    async def lines() -> AsyncIterator[bytes]:
        try:
            async with aclosing(admin.dead_letters.list(group, resent=shows_all)) as letters:
                async for letter in letters:
                    yield msgspec.json.encode(document(letter)) + b"\n"
        except MetaqError as error:
            # The answer has begun, so its last line says that it is not whole.
            yield msgspec.json.encode({"error": str(error), "complete": False}) + b"\n"

    name = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in group)
    headers = {"Content-Disposition": f'attachment; filename="dead-letters-{name}.jsonl"'}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)


def document(letter: DeadLetter) -> dict[str, object]:
    """Returns a letter for programs."""
    from metaq.cli.printing.message_views import document as message_document

    return {
        **message_document(letter.message),
        "origin_topic": letter.origin_topic,
        "reason": letter.reason,
        "error_type": letter.error_type,
    }


async def _first(letters: AsyncIterator[DeadLetter], limit: int) -> tuple[list[DeadLetter], bool]:
    """Returns the first letters, and whether there are more."""
    found: list[DeadLetter] = []
    async with aclosing(letters) as stream:  # type: ignore[type-var]
        async for letter in stream:
            if len(found) == limit:
                return found, True
            found.append(letter)
    return found, False


ROUTES = [
    Route("/dead-letters", groups),
    Route("/dead-letters/{group}", letters),
    Route("/dead-letters/{group}/export", export),
]
