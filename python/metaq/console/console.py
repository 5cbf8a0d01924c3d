"""Everything that a page of the console needs, in one place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from metaq.admin.aio import Admin
from metaq.console.actions.jobs import Jobs
from metaq.console.live.live import Live
from metaq.console.pages.body_reading import limit_bodies
from metaq.console.settings import ConsoleSettings

if TYPE_CHECKING:
    from metaq.console.access.access import Access

REQUEST_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Console:
    """A console of one cluster."""

    settings: ConsoleSettings
    admin: Admin
    live: Live
    access: Access
    jobs: Jobs

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: ConsoleSettings, access: Access) -> AsyncIterator[Console]:
        """Connects to the cluster and polls it until the end. If the cluster does not answer, the pages
        say so."""
        limit_bodies()
        async with Admin(
            settings.nameservers, timeout=REQUEST_TIMEOUT_S, partial=True, credentials=settings.credentials
        ) as admin:
            live, jobs = Live(admin, settings), Jobs()
            await live.start()
            try:
                yield cls(settings, admin, live, access, jobs)
            finally:
                await jobs.close()
                await live.stop()


def console_of(request: HTTPConnection) -> Console:
    """Returns the console that serves a request."""
    console = request.app.state.console
    assert isinstance(console, Console)
    return console
