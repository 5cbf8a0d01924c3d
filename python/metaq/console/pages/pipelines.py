"""Pipelines and Spark queries that work on this cluster, by their own reports."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaq.admin.pipelines.reports import PipelineReports
from metaq.console.console import console_of
from metaq.console.live.latest import latest_of
from metaq.console.pages.lists import list_query
from metaq.console.rendering import render


async def pipelines(request: Request) -> Response:
    """The runs that go on and the last runs of the others."""
    admin = console_of(request).admin

    async def ask(_: PipelineReports | None) -> PipelineReports:
        return await admin.pipelines.list()

    look = await latest_of(request).ask(("pipelines",), ask)
    query = list_query(request, ("name",), "name", descending=False)
    search = query.search.lower()
    shows_all = request.query_params.get("all") == "1"
    reports = () if look.value is None else look.value.reports if shows_all else look.value.current
    matching = [
        report
        for report in reports
        if search in f"{report.name} {report.kind} {' '.join(report.topics)}".lower()
    ]
    return render(
        request,
        "pipelines.html",
        look=look,
        found=look.value,
        reports=matching[query.offset : query.offset + query.limit],
        matching=len(matching),
        total=len(reports),
        query=query,
        shows_all=shows_all,
    )


ROUTES = [Route("/pipelines", pipelines)]
