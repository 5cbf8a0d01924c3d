"""The audit log: what was done through the console, by whom, from where, and how it ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from metaq.console.audit_log import AuditEntry, AuditLog
from metaq.console.console import console_of
from metaq.console.csv_files import csv_lines, csv_text
from metaq.console.figures import iso
from metaq.console.rendering import render

LIMIT: Final = 50
EXPORTED_AT_ONCE: Final = 2_000
COLUMNS: Final = (
    "number",
    "time",
    "name",
    "role",
    "session",
    "address",
    "command",
    "target",
    "result",
    "detail",
)
STATES: Final = {
    "done": "good",
    "begun": "info",
    "changed": "warning",
    "failed in part": "warning",
    "refused": "bad",
    "failed": "bad",
    "unknown": "unknown",
}
"""The icon of each result."""


async def audit(request: Request) -> Response:
    """The newest entries first; `before` is the number of the entry that the page begins after."""
    search, before = _search(request), _before(request)
    entries = await console_of(request).access.audit.entries(before=before, limit=LIMIT + 1, search=search)
    return render(
        request,
        "audit.html",
        entries=entries[:LIMIT],
        search=search,
        before=before,
        following=entries[LIMIT - 1].number if len(entries) > LIMIT else None,
        states=STATES,
    )


async def export(request: Request) -> Response:
    """All entries that match, as CSV."""
    log = console_of(request).access.audit
    headers = {"Content-Disposition": 'attachment; filename="metaq-audit.csv"'}
    return StreamingResponse(_lines(log, _search(request)), media_type="text/csv", headers=headers)


async def _lines(log: AuditLog, search: str) -> AsyncIterator[str]:
    yield csv_text(COLUMNS, [])
    before: int | None = None
    while entries := await log.entries(before=before, limit=EXPORTED_AT_ONCE, search=search):
        yield csv_lines(COLUMNS, map(_row, entries))
        before = entries[-1].number


def _row(entry: AuditEntry) -> dict[str, object]:
    return {**msgspec.structs.asdict(entry), "time": iso(entry.time_ms)}


def _search(request: Request) -> str:
    return request.query_params.get("q", "").strip()[:200]


def _before(request: Request) -> int | None:
    text = request.query_params.get("before", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else None


ROUTES = [Route("/audit", audit), Route("/audit/export", export)]
