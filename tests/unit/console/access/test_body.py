"""The body of a request has one deadline, in however many parts it comes."""

from __future__ import annotations

import asyncio

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message

from metaq.console.access import body
from metaq.console.access.body import BoundedBody
from tests.support.waiting import run


@pytest.mark.parametrize("reader", ["page", "middleware"])
def test_a_body_in_many_small_parts(monkeypatch: pytest.MonkeyPatch, reader: str) -> None:
    monkeypatch.setattr(body, "BODY_TIMEOUT_S", 0.3)
    parts = 0

    async def receive() -> Message:
        nonlocal parts
        await asyncio.sleep(0.05)
        parts += 1
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def scenario() -> None:
        bounded = BoundedBody(receive)
        with pytest.raises(HTTPException) as refused:
            while True:
                await (bounded() if reader == "page" else bounded.read())
        assert (refused.value.status_code, refused.value.headers) == (408, {"Connection": "close"})
        assert parts > 1

    run(scenario)


def test_a_complete_body_has_no_deadline_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_TIMEOUT_S", 0.0)
    messages: list[Message] = [
        {"type": "http.request", "body": b"x", "more_body": False},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        if len(messages) == 1:
            # A page that streams waits here for the end of the connection.
            await asyncio.sleep(0.01)
        return messages.pop(0)

    async def scenario() -> None:
        bounded = BoundedBody(receive)
        assert await bounded.read() == b"x"
        assert [(await bounded())["type"] for _ in range(2)] == ["http.request", "http.disconnect"]

    run(scenario)
