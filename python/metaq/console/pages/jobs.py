"""The progress of a job, which its dialog asks for until the job has ended."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaq.console.access.roles import Role, require
from metaq.console.actions.jobs import Job
from metaq.console.console import console_of
from metaq.console.rendering import render_part

SHOWN = 50
"""Lines of each kind on the page."""


async def show(request: Request) -> Response:
    """How far the job is, and the outcome of each step."""
    return _part(request, _job(request))


async def stop(request: Request) -> Response:
    """Stops the job."""
    require(request, Role.operator)
    job = _job(request)
    await console_of(request).jobs.stop(job)
    return _part(request, job)


def _part(request: Request, job: Job) -> Response:
    return render_part(request, "job.html", job=job, shown=SHOWN)


def _job(request: Request) -> Job:
    job = console_of(request).jobs.find(request.path_params["id"])
    if job is None:
        raise HTTPException(404, "The console does not know this job. It may have been restarted since.")
    return job


ROUTES = [Route("/jobs/{id}", show), Route("/jobs/{id}/stop", stop, methods=["POST"])]
