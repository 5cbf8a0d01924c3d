"""The progress of a job: a page of its own, and a part that its dialog asks for until the job has ended."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaq.console.access.roles import Role, address_of, require
from metaq.console.actions.jobs import Job
from metaq.console.console import console_of
from metaq.console.rendering import render, render_part

SHOWN = 50
"""Lines of each kind on the page."""


async def show(request: Request) -> Response:
    """How far the job is, and the outcome of each step."""
    job = _job(request)
    if request.headers.get("hx-request") == "true":
        return _part(request, job)
    return render(request, "job_page.html", job=job, shown=SHOWN)


async def stop(request: Request) -> Response:
    """Stops the job. The audit log has who did."""
    identity = require(request, Role.operator)
    job = _job(request)
    await console_of(request).jobs.stop(job, identity, address_of(request))
    return _part(request, job)


def _part(request: Request, job: Job) -> Response:
    response = render_part(request, "job.html", job=job, shown=SHOWN)
    if not job.is_running:
        # It asks no more after this answer. The page behind it shows what the job has changed.
        response.headers["HX-Trigger"] = "changed-cluster"
    return response


def _job(request: Request) -> Job:
    job = console_of(request).jobs.find(request.path_params["id"])
    if job is None:
        raise HTTPException(404, "The console does not know this job. It may have been restarted since.")
    return job


ROUTES = [Route("/jobs/{id}", show), Route("/jobs/{id}/stop", stop, methods=["POST"])]
