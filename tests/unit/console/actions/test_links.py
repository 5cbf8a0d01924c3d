"""The address in a link that an operator makes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from metaq.console.access.access import Access
from metaq.console.access.roles import Identity, Role
from metaq.console.actions.action import Call
from metaq.console.actions.links import CreateLink
from metaq.console.console import Console
from metaq.console.settings import ConsoleSettings
from tests.support.waiting import run


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ({}, "http://tools.example.com/"),
        ({"base_path": "/mq", "secure_cookies": True}, "https://tools.example.com/mq/"),
        (
            {"base_path": "/mq", "public_url": "https://mq.example.com:8443/mq"},
            "https://mq.example.com:8443/mq/",
        ),
    ],
)
def test_the_address_in_a_link(tmp_path: Path, settings: dict[str, Any], address: str) -> None:
    async def scenario() -> None:
        chosen = ConsoleSettings(nameservers="127.0.0.1:9876", state_folder=tmp_path, **settings)
        # A link needs no cluster.
        nothing: Any = None
        console = Console(chosen, nothing, nothing, Access.open(chosen), nothing)
        scope = {
            "type": "http",
            "scheme": "http",
            "path": "/actions/create-link",
            "query_string": b"",
            "headers": [(b"host", b"tools.example.com")],
            "app": SimpleNamespace(state=SimpleNamespace(console=console)),
        }
        call = Call(Request(scope), console, Identity("operator", Role.operator), {"role": "viewer"})
        action = CreateLink()
        outcome = await action.apply(call, await action.preview(call))
        link, _, token = (outcome.secret or "").partition("?token=")
        assert (link, console.access.links.spend(token)) == (address, Role.viewer)

    run(scenario)
