"""The page of the audit log: one row for each action, read again only when there is a new entry."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from metaq.console import audit_log
from metaq.console.access.roles import Identity, Role
from metaq.console.audit_log import AuditLog
from metaq.console.pages.audit import STATES, audit, export
from metaq.console.words import LANGUAGES, catalog
from tests.support.console_pages import Viewed, html_of
from tests.support.waiting import run

ANNA = Identity("anna", Role.operator, "s1", "csrf")


def results_of(text: str) -> list[tuple[str, str]]:
    """Returns the icon and the word of each row."""
    return re.findall(r'<span class="state state--(\w+)"><svg.*?</svg>([^<]+)</span></td>', text)


def test_rows_show_how_actions_ended(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    viewed = Viewed(tmp_path, access=SimpleNamespace(audit=log))

    async def scenario() -> None:
        for result in ("begun", "done", "job failed", "begun"):
            await log.record(ANNA, "127.0.0.1", "metaq dlq resend billing", "billing", result)
        text = html_of(await audit(viewed.request("/audit")))
        assert results_of(text) == [
            ("unknown", "Started, no result"),
            ("bad", "Job failed"),
            ("good", "Done"),
        ]
        await log.record(ANNA, "127.0.0.1", "metaq dlq resend billing", "billing", "job stopped")
        assert results_of(html_of(await audit(viewed.request("/audit"))))[0] == ("warning", "Job stopped")

    run(scenario)


def test_every_result_has_a_word() -> None:
    for language in LANGUAGES:
        assert {f"audit.result_{result.replace(' ', '_')}" for result in STATES} <= catalog(language).keys()


def test_viewers_share_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(tmp_path)
    viewed = Viewed(tmp_path, access=SimpleNamespace(audit=log))
    read: list[Path] = []
    lines_from_end = audit_log._lines_from_end
    monkeypatch.setattr(
        audit_log, "_lines_from_end", lambda path: (read.append(path), lines_from_end(path))[1]
    )

    async def scenario() -> None:
        await log.record(ANNA, "127.0.0.1", "first", "x", "done")
        await asyncio.gather(*(audit(viewed.request("/audit")) for _ in range(10)))
        assert len(read) == 2, "one reading of two files"
        await log.record(ANNA, "127.0.0.1", "second", "x", "done")
        assert "second" in html_of(await audit(viewed.request("/audit")))

    run(scenario)


def test_an_export_has_all_entries(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    viewed = Viewed(tmp_path, access=SimpleNamespace(audit=log))

    async def scenario() -> None:
        for result in ("begun", "done"):
            await log.record(ANNA, "127.0.0.1", "first", "x", result)
        response = await export(viewed.request("/audit/export"))
        lines = "".join([part async for part in response.body_iterator]).splitlines()  # type: ignore[attr-defined]
        assert len(lines) == 3, "a head, the beginning and the end"

    run(scenario)
