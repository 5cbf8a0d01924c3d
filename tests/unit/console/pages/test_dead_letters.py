"""The page of a group's dead letters: it never says that none wait if nobody knows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from metaq.admin.messages.letter_pages import DeadLetterPage
from metaq.admin.results import BrokerFailure, DeadLetter, DeadLetterCount
from metaq.client.message import Message
from metaq.console.access.roles import Identity, Role
from metaq.console.actions.action import Call
from metaq.console.live.parts import Part
from metaq.console.pages import dead_letters
from tests.support.console_calls import call_of

NONE_WAIT = "No dead letter is waiting."


class Letters:
    def __init__(self, page: DeadLetterPage, waiting: int | None = 0) -> None:
        self.page = page
        self.waiting = waiting
        self.asked: dict[str, object] = {}

    async def counts(self, groups: list[str]) -> tuple[DeadLetterCount, ...]:
        return (DeadLetterCount(groups[0], self.waiting, self.waiting),)

    async def newest(self, group: str, **options: object) -> DeadLetterPage:
        self.asked = options
        return self.page


def part_of(call: Call, page: Callable[[Request], Awaitable[Response]], query: str = "") -> str:
    """Returns the part of a page that changes."""
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/dead-letters",
        "query_string": query.encode(),
        "headers": [(b"hx-request", b"true"), (b"hx-target", b"div#live")],
        "path_params": {"group": "billing"},
        "state": {"identity": Identity("ann", Role.operator)},
        "app": call.request.app,
    }

    async def ask() -> Response:
        return await page(Request(scope))

    return bytes(asyncio.run(ask()).body).decode()


def shown(letters: Letters, query: str = "", missing: tuple[str, ...] = ()) -> str:
    call = call_of(SimpleNamespace(dead_letters=letters), {}, missing={"%DLQ%billing": missing})
    return part_of(call, dead_letters.letters, query)


@pytest.mark.parametrize("error", [None, "connection refused"])
def test_the_list_of_groups_is_green_only_if_all_brokers_answer(error: str | None) -> None:
    call = call_of(None, {})
    row = SimpleNamespace(name="broker-b", error=error, stale_ms=None)
    live: Any = call.console.live
    nothing: Part[dict[str, object]] = Part()
    live.dead_letters = nothing.renewed({}, 1)
    live.brokers = SimpleNamespace(value={"broker-b": row})
    text = part_of(call, dead_letters.groups)
    assert ("No group has dead letters." in text) == (error is None)
    assert ("No dead letter was found on the brokers that answer." in text) == (error is not None)


def letter(number: int) -> DeadLetter:
    return DeadLetter(
        Message("%DLQ%billing", b"body", id=f"id-{number}", offset_id=f"{number:032X}"), "orders"
    )


def test_no_letter_waits() -> None:
    assert NONE_WAIT in shown(Letters(DeadLetterPage()))


def test_a_broker_that_does_not_answer_may_hold_letters() -> None:
    failed = DeadLetterPage(failures=(BrokerFailure("broker-b", "away"),))
    for text in (shown(Letters(failed)), shown(Letters(DeadLetterPage()), missing=("broker-b",))):
        assert NONE_WAIT not in text
        assert "broker-b" in text
        assert "No dead letter was found on the brokers that answer." in text
        assert "≥ 0 not resent" in text


def test_a_page_whose_letters_were_all_sent_again_leads_to_older_ones() -> None:
    text = shown(Letters(DeadLetterPage(before="1-2-broker-a", resent=50)))
    assert NONE_WAIT not in text
    assert "before=1-2-broker-a" in text


def test_pages_have_a_bounded_number_of_letters() -> None:
    letters = Letters(DeadLetterPage((letter(1), letter(2)), before="1-2-broker-a", unchecked=2), waiting=900)
    text = shown(letters, "before=3-4-broker-a&all=1")
    assert letters.asked == {"resent": True, "limit": dead_letters.SHOWN, "before": "3-4-broker-a"}
    assert "id-1" in text and "id-2" in text
    assert "It is not known whether 2 letters were resent" in text
