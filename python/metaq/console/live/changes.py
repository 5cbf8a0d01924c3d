"""A change of the cluster that was made through the console: pages soon show its effect."""

from __future__ import annotations

from starlette.requests import Request

from metaq.console.console import console_of
from metaq.console.live.latest import latest_of


def changed_cluster(request: Request) -> None:
    """Forgets all kept answers and has the cluster polled soon. It never waits and never fails, so it may
    stand in a `finally`: even a change that seems to have failed may have been made."""
    latest_of(request).forget()
    console_of(request).live.changed()
