"""Pipelines and Spark queries that work on this cluster, by their own reports."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaq.console.console import console_of
from metaq.console.rendering import render


async def pipelines(request: Request) -> Response:
    """The runs that go on and the last runs of the others."""
    found = await console_of(request).admin.pipelines.list()
    search = request.query_params.get("q", "").strip()[:200].lower()
    shown = [
        report
        for report in (found.reports if request.query_params.get("all") == "1" else found.current)
        if search in f"{report.name} {report.kind} {' '.join(report.topics)}".lower()
    ]
    return render(
        request,
        "pipelines.html",
        found=found,
        reports=shown,
        search=search,
        shows_all=request.query_params.get("all") == "1",
    )


ROUTES = [Route("/pipelines", pipelines)]
