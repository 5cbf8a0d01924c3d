"""The first page: is the cluster healthy, what should be done, how does it run."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaq.admin.health.results import Finding, Health
from metaq.console.console import console_of
from metaq.console.live.paging import page
from metaq.console.live.tables import GroupTable
from metaq.console.rendering import render, words_of

WORST_GROUPS = 5
FINDINGS_MAX = 20


async def overview(request: Request) -> Response:
    """One sentence of health, the findings, four charts and the groups that are furthest behind."""
    live = console_of(request).live
    health = live.health.value
    table = live.groups.value or GroupTable()
    groups = table.rows
    worst = page(groups, kind="normal", sort=table.worst_first, descending=True, limit=WORST_GROUPS)
    return render(
        request,
        "overview.html",
        health=health,
        headline=_headline(request, health) if health else "",
        finding_address=lambda finding: _finding_address(finding, groups, live.brokers.value or {}),
        findings=health.findings[:FINDINGS_MAX] if health else (),
        worst=worst,
        totals=live.totals.value,
    )


def _headline(request: Request, health: Health) -> str:
    """Returns the health in one sentence of the reader's language."""
    answering = sum(broker.error is None for broker in health.brokers)
    critical = sum(finding.severity == "critical" for finding in health.findings)
    warnings = sum(finding.severity == "warning" for finding in health.findings)
    if not health.brokers:
        is_listed = any(server.error is None for server in health.name_servers)
        return words_of(request, "overview.no_brokers" if is_listed else "overview.unreachable")
    key = "critical" if critical else "warnings" if warnings else "calm"
    one = "one_" if answering == 1 and len(health.brokers) == 1 else ""
    return words_of(
        request,
        f"overview.{one}{key}",
        answering=answering,
        brokers=len(health.brokers),
        critical=critical,
        warnings=warnings,
    )


def _finding_address(finding: Finding, groups: Mapping[str, object], brokers: Mapping[str, object]) -> str:
    """Returns the page about the subject of a finding; nothing if there is none."""
    subject = quote(finding.subject, safe="")
    if finding.kind == "dead-letters":
        return f"/dead-letters/{subject}"
    if finding.subject in groups:
        return f"/groups/{subject}"
    return f"/cluster/{subject}" if finding.subject in brokers else ""


ROUTES = [Route("/", overview)]
