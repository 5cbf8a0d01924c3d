"""The addresses of actions."""

from __future__ import annotations

import asyncio
from urllib.parse import urlencode

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from metaq.client.message import BODY_BYTES_MAX
from metaq.console.access.roles import Identity, Role
from metaq.console.actions import routes
from metaq.console.actions.action import Action, Call, Outcome, Preview
from metaq.errors import MetaqError
from tests.support.console_calls import call_of


class Audit:
    def __init__(self) -> None:
        self.results: list[str] = []

    async def record(self, *entry: object) -> None:
        self.results.append(str(entry[4]))


class Failing(Action):
    name = "failing"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def target(self, call: Call) -> str:
        return "orders"

    async def preview(self, call: Call) -> Preview:
        return Preview("metaq fail", "Fails.")

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        raise self.error


@pytest.mark.parametrize("error", [MetaqError("one of two brokers"), ValueError(), asyncio.CancelledError()])
def test_a_change_that_seems_to_have_failed_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    audit, changed = Audit(), list[Request]()
    call = call_of(
        None,
        {"fingerprint": Preview("metaq fail", "").fingerprint},
        audit=audit,
    )

    async def call_and_action(request: Request) -> tuple[Action, Call]:
        return Failing(error), call

    monkeypatch.setattr(routes, "_call", call_and_action)
    monkeypatch.setattr(routes, "_refused", lambda *_, **__: Response())
    monkeypatch.setattr(routes, "changed_cluster", changed.append)

    async def check() -> None:
        if isinstance(error, MetaqError):
            await routes.apply(call.request)
        else:
            with pytest.raises(type(error)):
                await routes.apply(call.request)

    asyncio.run(check())
    assert changed == [call.request]
    assert audit.results == ["begun", "failed" if isinstance(error, MetaqError) else "unknown"]


def test_a_form_takes_the_largest_body_that_a_broker_takes() -> None:
    body = urlencode({"topic": "orders", "body": "x" * BODY_BYTES_MAX}).encode()

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    call = call_of(None, {})
    scope = {
        "type": "http",
        "method": "POST",
        "headers": [(b"content-type", b"application/x-www-form-urlencoded")],
        "path_params": {"name": "send-message"},
        "state": {"identity": Identity("ann", Role.operator)},
        "app": call.request.app,
    }

    async def length() -> int:
        _, made = await routes._call(Request(scope, receive))
        return len(made.form["body"])

    assert asyncio.run(length()) == BODY_BYTES_MAX
