"""Pages of the console as HTML, without a server and without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.requests import Request

from metaq.admin.aio import Admin
from metaq.console.access.roles import Identity, Role
from metaq.console.actions.jobs import Jobs
from metaq.console.console import Console
from metaq.console.live.live import Live
from metaq.console.settings import ConsoleSettings


class Viewed:
    """A console whose live figures and admin client a test provides."""

    def __init__(self, folder: Path, admin: Any = None, access: Any = None) -> None:
        settings = ConsoleSettings("127.0.0.1:9876", folder)
        self.live = Live(cast(Admin, admin), settings)
        self.app = Starlette()
        self.app.state.console = Console(settings, cast(Admin, admin), self.live, access, Jobs())

    def request(self, path: str, *, language: str = "en", **query: str) -> Request:
        """Returns a request of an operator."""
        headers = [(b"accept-language", language.encode())]
        return Request(
            {
                "type": "http",
                "method": "GET",
                "path": path,
                "path_params": {"name": path.rpartition("/")[2]},
                "query_string": urlencode(query).encode(),
                "headers": headers,
                "app": self.app,
                "state": {"identity": Identity("anna", Role.operator, "s1", "csrf")},
            }
        )


def html_of(response: Any) -> str:
    """Returns the page."""
    assert response.status_code == 200
    return bytes(response.body).decode()
