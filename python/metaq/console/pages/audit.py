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
from metaq.console.live.latest import latest_of
from metaq.console.rendering import render

LIMIT: Final = 50
KEPT_MS: Final = 3_600_000
"""Entries do not change, so a page is read again only when there is a new one."""
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
    "begun": "unknown",
    "job done": "good",
    "job stopped": "warning",
    "job failed": "bad",
    "changed": "warning",
    "failed in part": "warning",
    "refused": "bad",
    "failed": "bad",
    "unknown": "unknown",
}
"""The icon of each result."""


async def audit(request: Request) -> Response:
    """One row for each action, the newest first; the page begins after the entry number `before`."""
    search, before = _search(request), _before(request)
    log = console_of(request).access.audit

    async def ask(_: list[AuditEntry] | None) -> list[AuditEntry]:
        return await log.entries(before=before, limit=LIMIT + 1, search=search, folds=True)

    key = ("audit", search, str(before), str(log.newest_number))
    entries = (await latest_of(request).ask(key, ask, age_ms_max=KEPT_MS)).value or []
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
    async for entries in log.batches(search):
        yield csv_lines(COLUMNS, map(_row, entries))


def _row(entry: AuditEntry) -> dict[str, object]:
    return {**msgspec.structs.asdict(entry), "time": iso(entry.time_ms)}


def _search(request: Request) -> str:
    return request.query_params.get("q", "").strip()[:200]


def _before(request: Request) -> int | None:
    text = request.query_params.get("before", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else None


ROUTES = [Route("/audit", audit), Route("/audit/export", export)]
