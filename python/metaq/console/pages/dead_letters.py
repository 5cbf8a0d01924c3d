"""Dead letters: the groups that have some, the letters of one group, and their export."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from metaq.admin.messages.letter_pages import DeadLetterPage
from metaq.admin.results import DeadLetter
from metaq.console.console import console_of
from metaq.console.live.paging import page as page_of
from metaq.console.pages.body_reading import BodyReader, MessageRow, export_turn
from metaq.console.pages.lists import list_query
from metaq.console.pages.message_export import attachment, file_name
from metaq.console.pages.message_search import silent_brokers
from metaq.console.rendering import render
from metaq.errors import MetaqError, NoSuchMessage, UsageError
from metaq.protocol.names import dead_letter_topic

COLUMNS: Final = ("name", "waiting", "since", "last")
SHOWN: Final = 50
"""Letters on a page. Each costs a request, which asks whether it was sent again."""
JOBS_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class LetterRow:
    """One letter of the list."""

    letter: DeadLetter
    row: MessageRow


async def groups(request: Request) -> Response:
    """The groups that have dead letters, with how many were not sent again."""
    live = console_of(request).live
    query = list_query(request, COLUMNS, "waiting", descending=True)
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
    """The letters of one group, the newest first: those that were not sent again yet, or all of them."""
    console = console_of(request)
    group = request.path_params["group"]
    shows_all = request.query_params.get("all") == "1"
    wanted = request.query_params.get("id", "").strip()[:64]
    before = request.query_params.get("before", "").strip()[:200]
    problem, page = "", DeadLetterPage()
    work = console.admin.dead_letters
    count = (await work.counts([group]))[0]
    try:
        if wanted:
            page = DeadLetterPage((await work.find(group, wanted),))
        else:
            page = await work.newest(group, resent=shows_all, limit=SHOWN, before=before or None)
    except (NoSuchMessage, UsageError) as error:
        problem = str(error)
    reader = BodyReader()
    silent = {failure.broker for failure in page.failures} | set(
        silent_brokers(console, dead_letter_topic(group))
    )
    return render(
        request,
        "dead_letter_group.html",
        group=group,
        rows=[LetterRow(letter, reader.row(letter.message)) for letter in page.letters],
        page=page,
        before=before,
        count=count,
        silent=sorted(silent),
        jobs=console.jobs.of(group)[:JOBS_SHOWN],
        shows_all=shows_all,
        wanted=wanted,
        problem=problem,
    )


async def export(request: Request) -> Response:
    """All letters of a group with their bodies, one JSON object per line, as `metaq dlq export` has them."""
    admin = console_of(request).admin
    group = request.path_params["group"]
    shows_all = request.query_params.get("all") == "1"

    async def lines() -> AsyncIterator[bytes]:
        try:
            async with export_turn(), aclosing(admin.dead_letters.list(group, resent=shows_all)) as letters:
                async for letter in letters:
                    yield await asyncio.to_thread(_line, letter)
        except (MetaqError, HTTPException) as error:
            # The answer has begun, so its last line says that it is not whole.
            reason = error.detail if isinstance(error, HTTPException) else str(error)
            yield msgspec.json.encode({"error": reason, "complete": False}) + b"\n"

    headers = attachment(f"dead-letters-{file_name(group)}.jsonl")
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)


def _line(letter: DeadLetter) -> bytes:
    return msgspec.json.encode(document(letter)) + b"\n"


def document(letter: DeadLetter) -> dict[str, object]:
    """Returns a letter for programs."""
    from metaq.cli.printing.message_views import document as message_document

    return {
        **message_document(letter.message),
        "origin_topic": letter.origin_topic,
        "reason": letter.reason,
        "error_type": letter.error_type,
    }


ROUTES = [
    Route("/dead-letters", groups),
    Route("/dead-letters/{group}", letters),
    Route("/dead-letters/{group}/export", export),
]
